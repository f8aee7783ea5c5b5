"""Where the metrics of a training run go: a file of lines always, TensorBoard, W&B and SwanLab as asked for.

The file is the record, the others are views of it: one that fails is told of and left out, and training goes on.
"""

from __future__ import annotations

import json
import math
import netrc
import os
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from manyarms import plugins
from manyarms.errors import ConfigError
from manyarms.reporting.console import say
from manyarms.reporting.files import drop_after, not_written
from manyarms.reporting.runs import METRICS_FILE, MetricsLine, read_metrics

#: Our own, beside plug-ins' (entry points ``manyarms.trackers``) and import strings: name -> import string.
BUILT_IN = {
    "tensorboard": f"{__name__}:_TensorBoard",
    "wandb": f"{__name__}:_Wandb",
    "swanlab": f"{__name__}:_SwanLab",
}

#: Seconds in which a service must take a connection, or it is done without.
_PATIENCE = 5.0


class Trackers:
    """Writes metrics to `metrics.jsonl` and hands them to every other tracker of a run."""

    def __init__(self, folder: Path, views: Mapping[str, Tracker], from_step: int) -> None:
        self._path = folder / METRICS_FILE
        self._views = dict(views)
        drop_after(self._path, from_step)
        last = MetricsLine.of(lines[-1]).values if (lines := read_metrics(folder)) else {}
        # A run that goes on counts from where its last line left off; how long it lay still does not matter.
        self._began = time.monotonic() - (found if math.isfinite(found := last.get("seconds", 0.0)) else 0.0)
        try:
            self._file = self._path.open("a")
        except OSError as error:
            raise not_written(self._path, error) from error
        self._session: float | None = None
        """When the first update of this session began: a limit in seconds counts from there."""

    def learning(self) -> None:
        """Hear that the first update of this session begins."""
        self._session = time.monotonic()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write the metrics of a step; they are on disk when this returns."""
        values = {name: float(value) for name, value in metrics.items()}
        now = time.monotonic()
        clock = {"seconds": round(now - self._began, 3)}
        if self._session is not None:
            clock["session_seconds"] = round(now - self._session, 3)
        line = MetricsLine(step, {**clock, **values})
        try:
            self._file.write(line.text())
            self._file.flush()
        except OSError as error:
            raise not_written(self._path, error) from error
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        if finite:
            self._tell(lambda view: view.log(finite, step))
        for path in sorted((self._path.parent / "video").glob(f"*/global_step_{step}/*.mp4")):
            self.video(f"{path.parts[-3]}/{path.stem}", path, step)

    def video(self, name: str, path: Path, step: int) -> None:
        """Show a video, or say where it lies."""
        self._tell(lambda view: view.video(name, path, step))

    def _tell(self, act: Callable[[Tracker], None]) -> None:
        for name, view in list(self._views.items()):
            try:
                act(view)
            except Exception as error:  # noqa: BLE001 (whatever a service raises, training must not end by it)
                say(f"{name} failed and is left out from here on ({error}); {self._path} has all metrics", stderr=True)
                del self._views[name]

    def close(self) -> None:
        """Finish all files."""
        self._close(failed=False)

    def _close(self, failed: bool) -> None:
        self._tell(lambda view: view.close(failed))
        self._views.clear()
        self._file.close()

    def __enter__(self) -> Trackers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(failed=error is not None)


def open_trackers(
    folder: Path,
    *,
    backends: Sequence[str] = ("tensorboard",),
    project_name: str = "manyarms",
    experiment_name: str = "",
    config: Mapping[str, Any] = {},
    from_step: int = 0,
) -> Trackers:
    """Open the trackers of a run; one that goes on after step `from_step` forgets what it had logged later.

    W&B and SwanLab cannot take back what they have: there, going on is another run of the same group.
    """
    kinds = {name: plugins.resolve("trackers", name, trusted=True) for name in backends}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_written(folder, error) from error
    experiment = experiment_name or folder.resolve().name
    plain = json.loads(json.dumps(dict(config), default=str))
    run = Run(folder.resolve(), project_name, experiment, plain, from_step)
    views: dict[str, Tracker] = {}
    with ExitStack() as undo:
        for name, kind in kinds.items():
            views[name] = _opened(name, kind, run)
            undo.callback(views[name].close, failed=True)
        trackers = Trackers(folder, views, from_step)
        undo.pop_all()
    return trackers


def _opened(name: str, kind: Callable[[Run], Tracker], run: Run) -> Tracker:
    try:
        return kind(run)
    except ImportError as error:
        raise ConfigError(
            f"logging to {name} needs a package that is not installed",
            why=str(error),
            do=(f"pip install 'manyarms[{name}]', or " if name in BUILT_IN else "") + "do without: logger_backends=[]",
        ) from None


# -- other trackers ---------------------------------------------------------------------------------------------------


class Tracker(Protocol):
    """A tracker that shows what the file records."""

    def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    def video(self, name: str, path: Path, step: int) -> None: ...

    def close(self, failed: bool) -> None: ...


@dataclass(frozen=True)
class Run:
    """What a tracker is told of a run."""

    folder: Path
    project: str
    experiment: str
    config: dict[str, Any]
    from_step: int

    @property
    def name(self) -> str:
        return f"{self.experiment} from {self.from_step}" if self.from_step else self.experiment


class _TensorBoard:
    """Event files, by TensorBoard's own writer: torch's would make this module need torch."""

    def __init__(self, run: Run) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        events: Any = event_pb2  # its classes are made when it is imported, unseen by type checkers
        summaries: Any = summary_pb2
        self._event, self._summary, self._text = events.Event, summaries.Summary, text_pb
        folder = run.folder / "tensorboard"
        earlier = [path.name for path in folder.glob("events.*")]
        # Files are read in the order of their names, which begin with the second: ours must be a later one.
        while any(f"tfevents.{int(time.time()):010d}." in name for name in earlier):
            time.sleep(0.05)
        self._writer = EventFileWriter(str(folder))
        if earlier:  # TensorBoard then hides what earlier files hold from this step on
            start = events.SessionLog(status=events.SessionLog.START)
            self._writer.add_event(self._event(wall_time=time.time(), step=run.from_step + 1, session_log=start))
        if run.config:
            self._add(text_pb("config", f"```json\n{json.dumps(run.config, indent=2)}\n```"), run.from_step)

    def _add(self, summary: Any, step: int) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._add(self._summary(value=values), step)

    def video(self, name: str, path: Path, step: int) -> None:
        self._add(self._text(name, str(path)), step)

    def close(self, failed: bool) -> None:
        self._writer.close()


class _Wandb:
    """A run of Weights & Biases: online with a key and a network, else in a folder for `wandb sync`."""

    def __init__(self, run: Run) -> None:
        import wandb

        self._wandb: Any = wandb
        known = wandb.setup().settings
        mode = os.environ.get("WANDB_MODE") or known.mode
        url = os.environ.get("WANDB_BASE_URL") or known.base_url
        if mode == "dryrun":  # what offline was called once
            mode = "offline"
        elif mode not in ("offline", "disabled"):
            mode = _online_or_not("wandb", _wandb_key(url), url, "wandb login")
        self._run = _online_if_it_works("wandb", mode, lambda mode: self._begun(run, mode))

    def _begun(self, run: Run, mode: str) -> Any:
        return self._wandb.init(
            mode=mode,
            dir=str(run.folder),
            project=run.project,
            name=run.name,
            group=run.experiment,
            config=run.config,
            reinit="create_new",
            settings=self._wandb.Settings(
                console="off", silent=mode == "offline", login_timeout=_PATIENCE, init_timeout=30
            ),
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def video(self, name: str, path: Path, step: int) -> None:
        self._run.log({name: self._wandb.Video(str(path), format=path.suffix[1:])}, step=step)

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


def _wandb_key(url: str) -> bool:
    """Return whether there is a key for W&B, in the environment or where `wandb login` puts it."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    try:
        logins = netrc.netrc(os.environ.get("NETRC"))
    except (OSError, netrc.NetrcParseError):
        return False
    return any(host in logins.hosts for host in (urlsplit(url).netloc, "api.wandb.ai"))


class _SwanLab:
    """A run of SwanLab: online with a key and a network, else in a folder for `swanlab sync`."""

    def __init__(self, run: Run) -> None:
        import swanlab

        self._swanlab: Any = swanlab
        known = self._swanlab.Settings()
        mode = known.mode
        if mode == "online":
            mode = _online_or_not("swanlab", bool(known.api_key), known.api_host, "swanlab login")
        self._run = _online_if_it_works("swanlab", mode, lambda mode: self._begun(run, mode))

    def _begun(self, run: Run, mode: str) -> Any:
        return self._swanlab.init(
            mode=mode,
            log_dir=str(run.folder / "swanlab"),
            project=run.project,
            name=run.name,
            group=run.experiment,
            config=run.config,
            reinit=True,
            settings=self._swanlab.Settings(interactive=False, terminal={"proxy_type": "none"}),
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def video(self, name: str, path: Path, step: int) -> None:
        self._run.log({name: self._swanlab.Text(str(path))}, step=step)  # of videos it takes GIFs only

    def close(self, failed: bool) -> None:
        if failed:
            self._run.finish(state="crashed", error="the run ended with an error")
        else:
            self._run.finish()


def _online_or_not(name: str, key: bool, url: str, login: str) -> str:
    """Return the mode of a service, and say so where it is not the usual one: it must neither ask nor wait."""
    if key and _reachable(url):
        return "online"
    reason = f"{url} cannot be reached" if key else f"there is no API key ({login})"
    say(f"{name} works offline: {reason}", stderr=True)
    return "offline"


def _online_if_it_works(name: str, mode: str, begin: Callable[[str], Any]) -> Any:
    """Begin a run of a service; offline if it does not take it, as with a key that is no longer good."""
    if mode == "online":
        try:
            return begin(mode)
        except Exception as error:  # noqa: BLE001 (whatever a service raises, training must not end by it)
            say(f"{name} works offline: {error}", stderr=True)
    try:
        return begin("offline" if mode == "online" else mode)
    except ValueError as error:
        raise ConfigError(f"{name} does not take the run", why=str(error), do="choose other names for it") from error


def _reachable(url: str) -> bool:
    """Return whether a service answers, be it with a refusal."""
    answered = threading.Event()

    def ask() -> None:
        try:
            urlopen(url, timeout=_PATIENCE).close()
            answered.set()
        except HTTPError as error:
            if error.code < 500:
                answered.set()
        except URLError as error:
            if isinstance(error.reason, ssl.SSLError):  # its client may know other certificates than we do
                answered.set()
        except (OSError, ValueError, HTTPException):
            pass  # not reachable, then

    # Looking up a name knows no timeout, so it is not us who wait for it.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return answered.is_set()
