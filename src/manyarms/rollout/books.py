"""The books of what is being played: arrays over rows, and what was seen and chosen at every decision.

Nothing here runs once per row but what happens once per episode.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from sys import getrefcount
from typing import Any

import numpy as np

from manyarms.arrays import Array, empty, take
from manyarms.policies.base import ActionChunk
from manyarms.rollout.episode import Episode, Parts, Picked, Row, Segment
from manyarms.rollout.schedule import Turn

#: Room is made for so many decisions of every row at a time, or for so many bytes of observations if that is more, but
#: not for more than so many decisions then. It takes memory as it is filled.
_DECISIONS_PER_ROW = 8
_SEGMENT_BYTES = 64 << 20
_MOST_DECISIONS = 4096


def _alike(rooms: Mapping[str, Array], arrays: Mapping[str, Array]) -> bool:
    return rooms.keys() == arrays.keys() and all(
        rooms[name].shape[1:] == array.shape[1:] and rooms[name].dtype == array.dtype for name, array in arrays.items()
    )


class Decisions:
    """What was seen and chosen, by the number of the decision, in segments that live as long as somebody needs them.

    Arrays are copied once, out of the ones that a simulator writes again, and stay on the device that made them. The
    policy is shown that copy.
    """

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._segments: deque[Segment] = deque([Segment(0, 0)])
        self._pool: list[np.ndarray] = []
        """Arrays of all segments that are needed, and of those before: what nobody holds any more is written over."""

    def look(self, fields: Mapping[str, Array], rows: np.ndarray, oldest: int | None) -> dict[str, Array]:
        """Copy what rows show to where the next decisions will be; `oldest` is the first that any row still needs."""
        segment = self._segments[-1]
        if segment.used + len(rows) > segment.room:
            segment = self._extend(fields, oldest)
        found: dict[str, Array] = {}
        for name, array in fields.items():
            place = segment.observations[name][segment.used : segment.used + len(rows)]
            found[name] = take(array, rows, place)
        return found

    def _extend(self, fields: Mapping[str, Array], oldest: int | None) -> Segment:
        """Begin another segment; those that no row needs any more belong to their episodes alone."""
        last = self._segments[-1]
        first = last.first + last.used
        needed = first if oldest is None else oldest
        while self._segments and self._segments[0].first + self._segments[0].used <= needed:
            self._segments.popleft()
        size = sum(array[:1].nbytes for array in fields.values())
        room = max(_DECISIONS_PER_ROW * self._num_rows, min(_SEGMENT_BYTES // max(size, 1), _MOST_DECISIONS))
        segment = Segment(first, room, observations={name: self._empty(array, room) for name, array in fields.items()})
        self._segments.append(segment)
        return segment

    def _empty(self, like: Array, count: int) -> Array:
        """Return room for rows like those of an array; memory is slow when it is new, so it is used again."""
        if not isinstance(like, np.ndarray):
            return empty(like, count)  # PyTorch does the same
        for array in self._pool:
            is_like = array.shape == (count, *like.shape[1:]) and array.dtype == like.dtype
            # Held by the pool, by `array` and for the call itself; a view holds the array that it is of.
            if is_like and getrefcount(array) == 3:
                return array
        self._pool.append(empty(like, count))
        return self._pool[-1]

    def add(self, chunk: ActionChunk) -> int:
        """Keep what was chosen at what was looked at last; return the number of the first of these decisions."""
        segment, count = self._segments[-1], len(chunk)
        if segment.used and not (_alike(segment.actions, chunk.actions) and _alike(segment.extras, chunk.extras)):
            seen = {name: array[segment.used : segment.used + count] for name, array in segment.observations.items()}
            segment = self._extend(seen, self._segments[0].first)
            for name, array in seen.items():
                segment.observations[name][:count] = array
        for rooms, arrays in ((segment.actions, chunk.actions), (segment.extras, chunk.extras)):
            for name, array in arrays.items():
                if name not in rooms:
                    rooms[name] = self._empty(array, segment.room)
                rooms[name][segment.used : segment.used + count] = array
        number = segment.first + segment.used
        segment.used += count
        return number

    def parts(self, numbers: np.ndarray) -> Parts:
        """Return where decisions, in ascending order, lie: segments, and the places in them."""
        last = self._segments[-1]
        if not len(numbers) or numbers[0] >= last.first:
            return ((last, numbers - last.first),)
        found = []
        for segment in self._segments:
            begin, end = numbers.searchsorted((segment.first, segment.first + segment.used)).tolist()
            if begin < end:
                found.append((segment, numbers[begin:end] - segment.first))
        return tuple(found)


class Books:
    """What is known of the episodes under way: one entry per row."""

    def __init__(self, num_rows: int, keep: Collection[str] | None) -> None:
        """Episodes keep the observation fields `keep`; None: all."""
        self._keep = keep
        self.turns: Any = np.full(num_rows, None, object)
        """What each row plays; None: it is free."""
        self.playing = np.zeros(num_rows, bool)
        """Rows that have something to play."""
        self.begun = np.zeros(num_rows, bool)
        """Rows whose first observation has arrived."""
        self.steps = np.zeros(num_rows, np.int64)
        """Actions taken."""
        self.texts: Any = np.full(num_rows, "", object)
        self.ids: Any = np.full(num_rows, None, object)
        self._infos: Any = np.full(num_rows, None, object)
        self._success = np.zeros(num_rows, bool)
        self._made = np.zeros(num_rows, np.int64)
        """Decisions made."""
        self._numbers = np.zeros((num_rows, 8), np.int64)
        """Of each row's decisions."""
        self._rewards = np.zeros((num_rows, 8, 1))
        self._taken = np.zeros((num_rows, 8), np.int64)
        """Actions of each decision that were taken."""
        self._lengths = np.zeros((num_rows, 8), np.int64)
        """Actions of each decision."""
        self._decisions = Decisions(num_rows)

    # -- the life of an episode ---------------------------------------------------------------------------------------

    def assign(self, row: int, turn: Turn) -> None:
        """Give a row something to play."""
        self.turns[row], self.playing[row] = turn, True

    def open(self, row: int, text: str, info: dict[str, Any]) -> None:
        """Begin an episode whose first observation has arrived."""
        self.ids[row] = self.turns[row].episode
        self.texts[row], self._infos[row] = text, info
        self.begun[row], self._success[row] = True, False
        self.steps[row] = self._made[row] = 0

    def look(self, fields: Mapping[str, Array], rows: np.ndarray) -> dict[str, Array]:
        """Return what rows show; what their episodes keep of it is where `decide` will leave it."""
        kept = {name: array for name, array in fields.items() if self._keep is None or name in self._keep}
        found = self._decisions.look(kept, rows, self._oldest())
        others = [name for name in fields if name not in found]
        neighbours = rows[-1] - rows[0] + 1 == len(rows)
        index: Any = slice(int(rows[0]), int(rows[-1]) + 1) if neighbours else rows
        return {**found, **{name: fields[name][index] for name in others}}

    def _oldest(self) -> int | None:
        """Return the number of the first decision of all episodes under way."""
        under_way = np.flatnonzero(self.begun & (self._made > 0))
        return int(self._numbers[under_way, 0].min()) if len(under_way) else None

    def decide(self, rows: np.ndarray, chunk: ActionChunk) -> None:
        """Note what the policy chose for rows that were looked at last."""
        first, turn = self._decisions.add(chunk), self._made[rows]
        self._make_room(int(turn.max()) + 1, chunk.length)
        self._numbers[rows, turn] = first + np.arange(len(rows))
        self._rewards[rows, turn] = 0.0
        self._taken[rows, turn] = 0
        self._lengths[rows, turn] = chunk.length
        self._made[rows] = turn + 1

    def _make_room(self, decisions: int, length: int) -> None:
        rows, room, width = self._rewards.shape
        if decisions <= room and length <= width:
            return
        room, width = 2 * decisions if decisions > room else room, max(length, width)
        for name in ("_numbers", "_taken", "_lengths", "_rewards"):
            old = getattr(self, name)
            new = np.zeros((rows, room, width) if old.ndim == 3 else (rows, room), old.dtype)
            new[tuple(map(slice, old.shape))] = old
            setattr(self, name, new)

    def advance(self, rows: np.ndarray, rewards: np.ndarray, taken: np.ndarray, success: np.ndarray) -> None:
        """Note the next steps of each row's last decision; of its rewards [R, K] as many count as were taken."""
        turn = self._made[rows] - 1
        offset = self._taken[rows, turn]
        i, k = np.nonzero(np.arange(rewards.shape[1]) < taken[:, None])
        self._rewards[rows[i], turn[i], offset[i] + k] = rewards[i, k]
        self._taken[rows, turn] = offset + taken
        self.steps[rows] += taken
        self._success[rows] |= success

    def finish(
        self,
        rows: np.ndarray,
        fields: Mapping[str, Array],
        terminated: np.ndarray,
        truncated: np.ndarray,
        infos: Sequence[dict[str, Any]],
    ) -> list[Episode]:
        """Return the episodes that rows have played to their end, at which they show `fields`."""
        finals = {name: take(a, rows) for name, a in fields.items() if self._keep is None or name in self._keep}
        made = self._made[rows]
        most = int(made.max(initial=0))
        numbers, taken = self._numbers[rows, :most], self._taken[rows, :most]
        rewards, lengths = self._rewards[rows, :most], self._lengths[rows, :most]
        lengths[np.arange(most) >= made[:, None]] = 0
        longest, counts, success = lengths.max(1, initial=0).tolist(), made.tolist(), self._success[rows].tolist()
        ends, truncations = terminated.tolist(), truncated.tolist()
        episodes = []
        for i, row in enumerate(rows.tolist()):
            parts = self._decisions.parts(numbers[i, : counts[i]]) if counts[i] else ()
            episodes.append(
                Episode(
                    id=self.ids[row],
                    text=self.texts[row],
                    observations=Picked(parts, "observations"),
                    final_observation=Row(finals, i),
                    actions=Picked(parts, "actions"),
                    rewards=rewards[i, : counts[i], : longest[i]],
                    num_steps=taken[i, : counts[i]],
                    extras=Picked(parts, "extras"),
                    success=success[i],
                    terminated=ends[i],
                    truncated=truncations[i],
                    info=self._infos[row],
                    last_info=infos[i],
                    attempts=self.turns[row].attempts,
                )
            )
        return episodes

    def clear(self) -> None:
        """Forget all episodes."""
        for row in np.flatnonzero(self.playing).tolist():
            self.free(row)

    def free(self, row: int) -> None:
        """Forget a row's episode."""
        self.turns[row] = self.ids[row] = self._infos[row] = None
        self.playing[row] = self.begun[row] = False


__all__ = ["Books", "Decisions"]
