"""The arena: nothing overlaps, everything is aligned, both sides see the same."""

from __future__ import annotations

import os

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from manyarms.workers.arena import ALIGNMENT, Arena, Layout

DTYPES = ["b1", "u1", "i4", "i8", "f4", "f8"]
FIELDS = st.dictionaries(
    st.text("abc/", min_size=1, max_size=5),
    st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3).map(tuple)),
    min_size=1,
    max_size=6,
)


def make_arena(layout: Layout) -> tuple[Arena, Arena]:
    """Map the same memory twice, as the two sides do."""
    fd = os.memfd_create("test")
    os.ftruncate(fd, layout.size)
    try:
        return Arena(layout, fd, populate=True), Arena(Layout.from_json(layout.to_json()), fd)
    finally:
        os.close(fd)


@given(FIELDS, st.integers(1, 5))
def test_rows_never_share_a_cache_line(fields: dict[str, tuple[str, tuple[int, ...]]], rows: int) -> None:
    layout = Layout.plan(rows, fields)
    taken: set[int] = set()
    for slot in layout.slots.values():
        size = np.dtype(slot.dtype).itemsize * int(np.prod(slot.shape))
        for row in range(rows):
            start = slot.offset + row * slot.stride
            assert start % ALIGNMENT == 0
            assert start + size <= layout.size
            lines = set(range(start // ALIGNMENT, -(-(start + size) // ALIGNMENT)))
            assert not lines & taken
            taken |= lines


@given(FIELDS, st.integers(1, 4), st.randoms(use_true_random=False))
def test_both_sides_see_the_same_and_no_field_touches_another(fields, rows, random) -> None:  # type: ignore[no-untyped-def]
    layout = Layout.plan(rows, fields)
    ours, theirs = make_arena(layout)
    rng = np.random.default_rng(random.randrange(1 << 30))
    written = {}
    for name in fields:
        array = ours.array(name)
        assert array.shape == (rows, *fields[name][1])
        written[name] = rng.integers(0, 2, array.shape).astype(array.dtype)
        array[...] = written[name]
    for name, expected in written.items():
        np.testing.assert_array_equal(theirs.array(name), expected)


@given(st.integers(1, 6), st.integers(1, 9))
def test_words_are_the_same_memory_as_the_array(rows: int, count: int) -> None:
    layout = Layout.plan(rows, {"control": ("i4", (count,)), "timings": ("f8", (count,))})
    ours, theirs = make_arena(layout)
    for row in range(rows):
        ours.words("control", row)[count - 1] = 7 + row
        ours.words("timings", row)[0] = 0.5 * row
    assert theirs.array("control")[:, count - 1].tolist() == [7 + row for row in range(rows)]
    assert theirs.array("timings")[:, 0].tolist() == [0.5 * row for row in range(rows)]
    assert len(ours.region("control")) == rows * layout.slots["control"].stride
