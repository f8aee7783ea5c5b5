"""Episodes on disk, step by step and exact: what was seen, done and earned, to play back or to learn from.

A folder with `recording.json` (which simulator, with which options) and one ``episodes/<position>.npz`` an episode. No
pickles; numbers come back bit for bit.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import manyarms
from manyarms import plugins, trust
from manyarms.decoding import read_object
from manyarms.errors import ConfigError, NotEnoughMemory
from manyarms.policies.scripted import ReplayPolicy
from manyarms.reporting.charts import Curve, Lines, Plot
from manyarms.reporting.console import Shown, Table, Telling
from manyarms.reporting.files import make_folder, not_written, whole, write_atomically
from manyarms.rollout import Episode, Steps
from manyarms.simulators.base import Field, Spec, SpecError
from manyarms.vector import EpisodeId
from manyarms.vector.memory import check_room
from manyarms.workers.wire import decode, encode

_FORMAT = 1

#: Episodes that may wait for the disk; a simulator that is faster than it must not fill the memory.
_WAITING = 8


@dataclass(frozen=True)
class RecordedEpisode:
    """One episode of T steps."""

    position: int
    id: EpisodeId
    text: str
    observations: dict[str, np.ndarray]  # [T + 1, …], the last after the last action
    actions: dict[str, np.ndarray]  # [T, …]
    rewards: np.ndarray  # [T]
    success: bool
    terminated: bool
    truncated: bool

    def __len__(self) -> int:
        return len(self.rewards)


@dataclass(frozen=True)
class Outcome:
    """What came of a recorded episode."""

    position: int
    id: EpisodeId
    success: bool
    length: int
    total_reward: float


class Recorder:
    """A sink that writes every episode it sees. The runner must observe after each action (steps_per_call=1)."""

    def __init__(self, folder: Path, spec: Spec, source: Mapping[str, Any], episodes: Sequence[EpisodeId]) -> None:
        """Record `episodes` of the simulator that `source` describes; all cameras of `spec` are rendered."""
        self.cameras = spec.cameras
        self.folder = folder
        self._positions = {episode.key: i for i, episode in enumerate(episodes)}
        self._rows: dict[int, _Gathered] = {}
        self._pool = ThreadPoolExecutor(1)
        self._writing: deque[Future[None]] = deque()
        make_folder(folder / "episodes")
        head = {"format": _FORMAT, "manyarms": manyarms.__version__, "spec": spec.to_json(), **source}
        write_atomically(folder / "recording.json", json.dumps(head, indent=2) + "\n")

    def begin(self, row: int, episode: EpisodeId, text: str, observation: Mapping[str, np.ndarray]) -> None:
        self._rows[row] = _Gathered(text, [_copied(observation)], [], [])

    def advance(self, row: int, steps: Steps) -> None:
        if len(steps.rewards) != 1:
            raise ConfigError("a recording needs an observation after each action", do="play with steps_per_call=1")
        gathered = self._rows[row]
        gathered.observations.append(_copied(steps.observation))
        gathered.actions.append({name: array[0].copy() for name, array in steps.actions.items()})
        gathered.rewards.append(float(steps.rewards[0]))

    def end(self, row: int, episode: Episode | None) -> None:
        gathered = self._rows.pop(row)
        if episode is not None:
            self._writing.append(self._pool.submit(self._write, gathered, episode))
            self._settle(_WAITING)

    def _write(self, gathered: _Gathered, episode: Episode) -> None:
        position = self._positions[episode.id.key]
        ends = (episode.success, episode.terminated, episode.truncated)
        arrays: dict[str, Any] = {
            "identity": np.frombuffer(encode([_identity(episode.id), gathered.text, *ends]), np.uint8),
            "rewards": np.array(gathered.rewards),
        }
        for role, parts in (("observation", gathered.observations), ("action", gathered.actions)):
            for name in parts[0] if parts else ():
                arrays[f"{role}:{name}"] = np.stack([part[name] for part in parts])
        with whole(_path(self.folder, position)) as beside, beside.open("wb") as file:
            np.savez_compressed(file, **arrays)

    def close(self) -> None:
        """Wait until all is on disk; raise what went wrong."""
        self._pool.shutdown()
        self._settle(0)

    def _settle(self, waiting: int) -> None:
        """Wait until at most so many episodes wait for the disk; raise what went wrong with those before."""
        while self._writing and (len(self._writing) > waiting or self._writing[0].done()):
            try:
                self._writing.popleft().result()
            except OSError as error:
                raise not_written(self.folder, error) from error


@dataclass
class _Gathered:
    text: str
    observations: list[dict[str, np.ndarray]]
    actions: list[dict[str, np.ndarray]]
    rewards: list[float]


class Recording(Shown):
    """A folder of recorded episodes."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.head = read_object(self.folder / "recording.json")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{folder} is not a recording", why=str(error), do="give a folder that `manyarms record` wrote"
            ) from error
        if self.head.get("format") != _FORMAT:
            raise ConfigError(f"{folder} has format {self.head.get('format')}, this version reads {_FORMAT}")
        self.spec = self._spec()
        names = (path.stem for path in (self.folder / "episodes").glob("*.npz"))
        self.positions = sorted(int(name) for name in names if re.fullmatch("[0-9]{6,9}", name))

    def _spec(self) -> Spec:
        try:
            return Spec.from_json(self.head["spec"])
        except (SpecError, TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            raise ConfigError(
                f"{self.folder} is not a recording", why=f"what its simulator shows cannot be read: {error!r:.200}"
            ) from error

    def source(self, *, trust_code: bool = False, python: str | None = None) -> tuple[str, dict[str, Any]]:
        """Return the simulator it was recorded in and its options; one from a stranger names nothing but what is here.

        `python` takes the place of the interpreter that it was recorded with.
        """
        head, file = self.head, self.folder / "recording.json"
        name, options, recorded = head.get("simulator"), head.get("options", {}), head.get("python")
        if not trust_code:
            plugins.check_installed("simulators", name, file)
            trust.check_options(options, file)
        if python is None and recorded is not None and not trust_code:
            raise ConfigError(
                f"{file} names an interpreter: {recorded!r:.200}",
                why="it was recorded in another Python, and a file from somebody else may not say what is started",
                do="name it yourself: --python PATH; or, if you trust whoever made the recording: --trust-code",
            )
        return str(name), {**options, "python": python or recorded}

    def __len__(self) -> int:
        return len(self.positions)

    def __iter__(self) -> Iterator[RecordedEpisode]:
        return (self.load(position) for position in self.positions)

    def outcomes(self) -> list[Outcome]:
        """Return what came of every episode; images stay on disk."""
        return [self._outcome(position) for position in self.positions]

    def _outcome(self, position: int) -> Outcome:
        (identity, _, success, _, _), arrays = self._read(position, ("identity", "rewards"))
        rewards = arrays["rewards"]
        return Outcome(position, identity, success, len(rewards), float(rewards.sum()))

    def told(self) -> Telling:
        outcomes = self.outcomes()
        groups: dict[str, list[Outcome]] = {}
        for outcome in outcomes:
            groups.setdefault(outcome.id.task or str(self.head["simulator"]), []).append(outcome)
        rows = [(task, *_means(group)) for task, group in groups.items()]
        solved, steps = sum(outcome.success for outcome in outcomes), sum(outcome.length for outcome in outcomes)
        return Telling(
            f"{len(outcomes)} episodes ({solved} solved), {steps} steps: {self.folder}",
            [Table(rows, ("task", "solved", "mean steps", "mean return"))] if rows else [],
        )

    def plot(self) -> Plot:
        """Draw how long episodes are and what they earn."""
        outcomes = self.outcomes()
        panels = [
            Lines(
                title,
                [Curve(title, [(o.position, value(o)) for o in outcomes], dots=True, joined=False)],
                below="episode",
            )
            for title, value in (("steps", lambda o: o.length), ("return", lambda o: o.total_reward))
        ]
        return Plot(f"{len(outcomes)} recorded episodes", panels)

    def load(self, position: int) -> RecordedEpisode:
        """Read one episode."""
        (identity, text, success, terminated, truncated), arrays = self._read(position)
        return RecordedEpisode(
            position=position,
            id=identity,
            text=text,
            observations=_named(arrays, "observation"),
            actions=_named(arrays, "action"),
            rewards=arrays["rewards"],
            success=success,
            terminated=terminated,
            truncated=truncated,
        )

    def _read(self, position: int, names: Sequence[str] = ()) -> tuple[list[Any], dict[str, np.ndarray]]:
        """Return who and how an episode is, and its arrays: those named, or all, which must be those of the spec."""
        path = _path(self.folder, position)
        try:
            arrays = _arrays(path, names)
            told = _told(arrays)
            if not names:
                self._check(arrays)
            return told, arrays
        except NotEnoughMemory:
            raise
        except Exception as error:  # anyone may have written it; numpy and zipfile raise anything
            raise ConfigError(f"episode {position} cannot be read", why=f"{path}: {error}") from error

    def _check(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Refuse arrays that no episode of this simulator can have."""
        count = len(arrays["rewards"])
        for role, fields, length in (
            ("observation", self.spec.layout(), count + 1),
            ("action", self.spec.actions if count else {}, count),
        ):
            found = _named(arrays, role)
            if found.keys() != fields.keys():
                raise ValueError(f"it has the {role}s {', '.join(found) or 'of none'}, not {', '.join(fields)}")
            strange = [name for name, field in fields.items() if not _fits(found[name], field, length, role)]
            if strange:
                array = found[strange[0]]
                raise ValueError(f"{role} {strange[0]!r} is {array.shape} {array.dtype}")


def _arrays(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Read arrays, once it is known that there is memory for what their file claims to hold."""
    if not path.is_file():  # a pipe would be waited for
        raise FileNotFoundError("there is no such file")
    with zipfile.ZipFile(path) as packed:
        sizes = {member.filename.removesuffix(".npy"): member.file_size for member in packed.infolist()}
    check_room(sum(sizes[name] for name in names or sizes), str(path), "free memory, or leave this episode out")
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in names or file.files}


def _told(arrays: Mapping[str, np.ndarray]) -> list[Any]:
    """Return the identity of an episode, what it was told, and how it ended; rewards must be a row of numbers."""
    identity, text, *ends = decode(arrays["identity"].tobytes())
    rewards = arrays["rewards"]
    if type(text) is not str or [type(end) for end in ends] != [bool] * 3 or rewards.ndim != 1:
        raise ValueError("it is not as `manyarms record` writes it")
    if rewards.dtype != np.float64:
        raise ValueError(f"its rewards are {rewards.dtype}")
    return [EpisodeId.of(identity), text, *ends]


def _fits(array: np.ndarray, field: Field, length: int, role: str) -> bool:
    """Tell whether an array is of `length` values of a field; actions may be of another precision."""
    alike = array.dtype == field.dtype if role == "observation" else array.dtype.kind in "biuf"
    return alike and array.shape == (length, *field.shape)


def recorded_already(folder: Path, source: Mapping[str, object], episodes: Sequence[EpisodeId]) -> set[int]:
    """Return which episodes a recording to be continued has; those of another recording are not mixed with it."""
    if not (folder / "recording.json").exists():
        return set()
    recording = Recording(folder)
    wanted = {position: episode.key for position, episode in enumerate(episodes)}
    differs = [name for name in ("simulator", "options") if recording.head.get(name) != source[name]]
    if not differs and any(wanted.get(o.position, o.id.key) != o.id.key for o in recording.outcomes()):
        differs = ["tasks or seeds"]
    if differs:
        raise ConfigError(
            f"{folder} was begun with other settings",
            why=f"these differ: {', '.join(differs)}",
            do="use the same, or another --out",
        )
    return set(recording.positions)


def _means(outcomes: Sequence[Outcome]) -> tuple[str, str, str]:
    count = len(outcomes)
    steps, earned = sum(o.length for o in outcomes) / count, sum(o.total_reward for o in outcomes) / count
    return f"{sum(o.success for o in outcomes)} / {count}", f"{steps:.1f}", f"{earned:.2f}"


def replay_policy(spec: Spec, recording: str = "", *, chunk: int = 1) -> ReplayPolicy:
    """Make a policy that plays a recording's actions back (``policy: replay``)."""
    if not recording:
        raise ConfigError("policy 'replay' needs a recording", do="--policy-options recording=FOLDER")
    episodes = {episode.id.key: episode.actions for episode in Recording(recording)}
    return ReplayPolicy(spec, episodes, chunk=chunk)


def _identity(episode: EpisodeId) -> dict[str, Any]:
    return {
        "task": episode.task,
        "seed": episode.seed,
        "init_state": episode.init_state,
        "index": episode.index,
    }


def _named(arrays: Mapping[str, np.ndarray], role: str) -> dict[str, np.ndarray]:
    return {name.partition(":")[2]: array for name, array in arrays.items() if name.startswith(f"{role}:")}


def _path(folder: Path, position: int) -> Path:
    return folder / "episodes" / f"{position:06d}.npz"


def _copied(observation: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in observation.items()}


# -- the second time --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class ReplayResult(Shown):
    """How episodes came out the second time."""

    recording: Path
    positions: tuple[int, ...]
    """The episodes that were played back."""
    differences: dict[int, str]
    """The first difference of each episode that has one."""

    @property
    def same(self) -> bool:
        """Whether all came out the same, bit for bit."""
        return not self.differences

    def told(self) -> Telling:
        count = len(self.positions)
        notes = [f"✗ episode {position}: {difference}" for position, difference in sorted(self.differences.items())]
        headline = f"{count - len(self.differences)} of {count} episodes came out the same, bit for bit"
        return Telling(headline, notes=notes)


class Comparison:
    """A sink that holds every step against a recording."""

    def __init__(self, recorded: Mapping[bytes, RecordedEpisode], cameras: Sequence[str]) -> None:
        self.cameras = tuple(cameras)
        self.differences: dict[int, str] = {}
        self._recorded = recorded
        self._rows: dict[int, tuple[RecordedEpisode, int]] = {}

    def begin(self, row: int, episode: EpisodeId, text: str, observation: Mapping[str, np.ndarray]) -> None:
        recorded = self._recorded[episode.key]
        self._rows[row] = (recorded, 0)
        self._compare(recorded, 0, observation)
        if text != recorded.text:
            self._note(recorded, f"it is told {text!r}, not {recorded.text!r}")

    def advance(self, row: int, steps: Steps) -> None:
        recorded, step = self._rows[row]
        if step < len(recorded) and steps.rewards[0] != recorded.rewards[step]:
            self._note(recorded, f"reward of step {step + 1}: {steps.rewards[0]} instead of {recorded.rewards[step]}")
        self._compare(recorded, step + 1, steps.observation)
        self._rows[row] = (recorded, step + 1)

    def end(self, row: int, episode: Episode | None) -> None:
        recorded, step = self._rows.pop(row)
        if episode is not None and (step != len(recorded) or episode.success != recorded.success):
            found, wanted = (("solved" if e.success else "not solved") for e in (episode, recorded))
            self._note(recorded, f"{step} steps, {found}, instead of {len(recorded)}, {wanted}")

    def _compare(self, recorded: RecordedEpisode, step: int, observation: Mapping[str, np.ndarray]) -> None:
        for name, values in recorded.observations.items():
            if name not in observation or step >= len(values):
                continue
            seen, wanted = observation[name], values[step]
            if seen.shape != wanted.shape:
                self._note(recorded, f"{name or 'observation'} is {seen.shape}, not {wanted.shape}")
            elif seen.tobytes() != wanted.tobytes():
                away = np.abs(seen.astype(np.float64) - wanted.astype(np.float64)).max()
                self._note(recorded, f"{name or 'observation'} after {step} steps is {away:.3g} away")

    def _note(self, recorded: RecordedEpisode, difference: str) -> None:
        self.differences.setdefault(recorded.position, difference)
