"""Statistics files of three projects, and the formulas that go with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from manyarms.errors import ConfigError
from manyarms.policies.statistics import (
    FieldStatistics,
    load_dataset_statistics,
    load_lerobot_stats,
    load_norm_stats,
)
from manyarms.policies.transforms import (
    CenterCrop,
    GripperSign,
    MaskedQuantile,
    MinMax,
    Quantile,
    Resize,
    Rotate180,
    ZScore,
)

NUMBERS = {"mean": [1.0, 2.0], "std": [0.5, 2.0], "q01": [0.0, -2.0], "q99": [2.0, 6.0], "min": [-1, -3], "max": [3, 7]}


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def test_openpi_statistics_are_read_from_the_file_or_its_folder(tmp_path: Path) -> None:
    path = write(tmp_path / "norm_stats.json", {"norm_stats": {"state": NUMBERS, "actions": NUMBERS}})
    for source in (path, tmp_path):
        found = load_norm_stats(source)
        assert set(found) == {"state", "actions"}
        np.testing.assert_allclose(found["state"].need("q99")[0], [2.0, 6.0])


def test_openvla_statistics_fall_back_to_the_dataset_without_noops(tmp_path: Path) -> None:
    content = {"libero_spatial_no_noops": {"action": {**NUMBERS, "mask": [True, False]}, "num_transitions": 5}}
    path = write(tmp_path / "dataset_statistics.json", content)
    found = load_dataset_statistics(path, "libero_spatial")
    mask = found["action"].mask
    assert mask is not None
    assert mask.tolist() == [True, False]
    with pytest.raises(ConfigError, match="libero_spatial_no_noops"):
        load_dataset_statistics(path, "libero_spatiel")


def test_lerobot_statistics_are_found_in_meta(tmp_path: Path) -> None:
    write(tmp_path / "meta" / "stats.json", {"observation.state": NUMBERS, "action": NUMBERS})
    assert set(load_lerobot_stats(tmp_path)) == {"observation.state", "action"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "cannot be read"),
        ("[]", "not a JSON object"),
        ('{"stats": {}}', "keys found: stats"),
        ('{"norm_stats": {"state": {"average": [1]}}}', "keys found: average"),
        ('{"norm_stats": {"state": {"mean": ["x"]}}}', "arrays of numbers"),
        ('{"norm_stats": {"state": {"mean": [NaN]}}}', "not finite"),
        ('{"norm_stats": {"state": {"mean": 1.0}}}', "single numbers"),
        ('{"norm_stats": {"state": {"mean": [1, 2], "std": [1]}}}', r"unlike shapes\n.*mean \[2\], std \[1\]"),
        ('{"norm_stats": {"state": {"mean": [1, 2], "mask": [true]}}}', "unlike shapes"),
    ],
)
def test_malformed_statistics_are_refused_with_what_was_found(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "norm_stats.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=says) as caught:
        load_norm_stats(path)
    assert str(path) in str(caught.value)


def test_missing_statistics_are_never_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        load_norm_stats(tmp_path / "norm_stats.json")
    with pytest.raises(ConfigError, match="no q01"):
        Quantile(FieldStatistics(mean=np.zeros(2))).apply(np.zeros(2))


def statistics() -> FieldStatistics:
    return FieldStatistics(**{name: np.array(values, float) for name, values in NUMBERS.items()})


def test_the_formulas_by_hand() -> None:
    x = np.array([[2.0, 4.0]])
    np.testing.assert_allclose(ZScore(statistics()).apply(x), [[1 / 0.500001, 2 / 2.000001]], rtol=1e-6)
    np.testing.assert_allclose(
        Quantile(statistics()).apply(x), [[2 / 2.000001 * 2 - 1, 6 / 8.000001 * 2 - 1]], rtol=1e-6
    )
    masked = FieldStatistics(**{**statistics().__dict__, "mask": np.array([True, False])})
    np.testing.assert_allclose(MaskedQuantile(masked).undo(np.array([[0.5, 0.25]])), [[1.5, 0.25]], rtol=1e-6)
    np.testing.assert_allclose(
        MaskedQuantile(statistics(), clip=True).apply(np.array([[9.0, 2.0], [-9.0, 2.0]])),
        [[1.0, 0.0], [-1.0, 0.0]],
        atol=1e-6,
    )
    np.testing.assert_allclose(GripperSign().undo(np.array([[5.0, 0.9], [5.0, 0.1]])), [[5.0, -1.0], [5.0, 1.0]])


@given(hnp.arrays(np.float64, (3, 2), elements=st.floats(-5, 5)))
def test_every_normalisation_is_undone_by_its_pair(x: np.ndarray) -> None:
    for transform in (ZScore(statistics()), Quantile(statistics()), MaskedQuantile(statistics()), MinMax(statistics())):
        np.testing.assert_allclose(transform.undo(transform.apply(x)), x, atol=1e-4)


def test_statistics_narrower_than_the_action_leave_the_rest_as_it_is() -> None:
    x = np.array([[0.5, 0.5, 0.5]])
    assert ZScore(statistics()).undo(x)[0, 2] == np.float32(0.5)
    assert Quantile(statistics()).undo(x)[0, 2] == np.float32(0.5)
    with pytest.raises(ConfigError, match="2 values, but there are 3"):
        ZScore(statistics()).apply(x)


def test_images_are_turned_not_recoloured() -> None:
    images = np.arange(2 * 4 * 6 * 3, dtype=np.uint8).reshape(2, 4, 6, 3)
    turned = Rotate180().apply(images)
    assert (turned[:, 0, 0] == images[:, -1, -1]).all()
    assert (Rotate180().undo(turned) == images).all()


def test_resizing_keeps_what_is_smooth_and_pads_with_black() -> None:
    ramp = np.broadcast_to(np.linspace(0, 250, 64)[None, :, None], (32, 64, 3)).astype(np.uint8)[None]
    small = Resize(16, 32).apply(ramp)
    assert small.shape == (1, 16, 32, 3)
    np.testing.assert_allclose(small[0, 8, :, 0], ramp[0, 8, ::2, 0], atol=4)
    padded = Resize(32, 32, pad=True).apply(ramp)
    assert padded.shape == (1, 32, 32, 3)
    assert not padded[0, :8].any()
    assert padded[0, 16, -1, 0] > 240
    cropped = CenterCrop(0.25).apply(ramp)
    assert cropped.shape == ramp.shape
    np.testing.assert_allclose(cropped[0, 0, [0, -1], 0], [250 * 0.25, 250 * 0.75], atol=4)
