"""manyarms in a notebook's kernel: the notebook that is shipped, progress, the stop button, threads."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

import manyarms
from conftest import REPOSITORY, environment
from training import in_folder, written

NOTEBOOK = REPOSITORY / "examples/notebooks/many_arms.ipynb"


def test_the_notebook_is_kept_without_outputs() -> None:
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        assert cell["cell_type"] == "markdown" or (cell["outputs"] == [] and cell["execution_count"] is None)


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_it_promises(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    warned = [output.text for outputs in cells.values() for output in outputs if output.get("name") == "stderr"]
    assert not warned, "nothing may look like a fault"

    def last(name: str) -> dict[str, str]:
        return dict(cells[name][-1].data)

    assert "image/png" in last("make")
    assert "image/png" in last("chunk")
    assert last("evaluate")["text/plain"].startswith("100.0 % success (12 of 12 episodes")
    assert "<table" in last("evaluate")["text/html"]
    assert "data:video/mp4;base64," in last("video")["text/html"]
    assert last("record")["text/plain"].startswith("4 episodes (4 solved)")
    assert last("replay")["text/plain"] == "4 of 4 episodes came out the same, bit for bit"
    assert "env-steps/s (2 environments, chunks of 8)" in last("bench")["text/html"]
    assert "held-out episodes" in last("train")["text/plain"]
    assert "to mend" in last("examine")["text/plain"]
    for plot in ("evaluate-plot", "record-plot", "bench-plot", "train-plot"):
        assert "<svg" in last(plot)["text/html"]
        assert last(plot)["image/svg+xml"].startswith("<svg")
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "tape"}, "it writes nowhere else"


# -- a kernel of our own ----------------------------------------------------------------------------------------------


class Kernel:
    """A notebook's kernel, cell by cell."""

    def __init__(self, folder: Path) -> None:
        self._manager = KernelManager(kernel_name="python3")
        self._manager.start_kernel(cwd=str(folder), env=environment(), stderr=subprocess.DEVNULL)
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=600)

    def run(self, code: str, meanwhile: Callable[[], None] = lambda: None) -> list[tuple[str, dict[str, Any]]]:
        """Run a cell; return what it sent, kind and content."""
        request = self._client.execute(code)
        meanwhile()
        sent: list[tuple[str, dict[str, Any]]] = []
        while ("status", {"execution_state": "idle"}) not in sent:
            try:
                message = self._client.get_iopub_msg(timeout=600)
            except queue.Empty:
                pytest.fail(f"the cell does not end: {sent[-3:]}")
            if message["parent_header"].get("msg_id") == request:
                sent.append((message["msg_type"], message["content"]))
        return sent

    def interrupt(self) -> None:
        """Press the stop button."""
        self._manager.interrupt_kernel()

    def workers(self) -> list[psutil.Process]:
        """Return the workers that its cells started."""
        assert self._manager.provisioner is not None
        children = psutil.Process(self._manager.provisioner.pid).children(recursive=True)  # type: ignore[attr-defined]
        return [child for child in children if "manyarms.workers.main" in " ".join(_words(child))]

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    running = Kernel(tmp_path)
    yield running
    running.close()


def said(sent: list[tuple[str, dict[str, Any]]], stream: str) -> str:
    return "".join(content["text"] for kind, content in sent if kind == "stream" and content["name"] == stream)


def drawn(sent: list[tuple[str, dict[str, Any]]], kind: str) -> list[str]:
    return [content["data"].get("text/html", "") for found, content in sent if found == kind]


NAPPING = "options={'naps': {'0': 0.02}, 'max_episode_steps': 20}"


@pytest.mark.slow
@pytest.mark.parametrize("widgets", [True, False], ids=["with widgets", "without widgets"])
def test_progress_is_written_over_in_its_place(kernel: Kernel, widgets: bool, tmp_path: Path) -> None:
    """With ipywidgets or without, for which a kernel here makes it unimportable."""
    if not widgets:
        kernel.run("import sys; sys.modules['ipywidgets'] = None")
    kernel.run("import manyarms")
    config = f"{written(tmp_path)!r}, **{{'runner.logger.log_path': {str(tmp_path)!r}}}"
    for call, begins in (
        (f"manyarms.bench('standins:Sleeper', num_envs=1, steps=60, warmup=2, {NAPPING})", "<div><progress"),
        (f"manyarms.evaluate('standins:Sleeper', num_envs=1, episodes=4, {NAPPING})", "<div><progress"),
        (f"manyarms.train({config})", "<table"),
    ):
        sent = kernel.run(call)
        assert said(sent, "stderr") == ""
        assert said(sent, "stdout") == ""
        assert drawn(sent, "display_data")[-1].startswith(begins)
        updates = drawn(sent, "update_display_data")
        assert any(html.startswith(begins) for html in updates)
        if "progress" in begins:
            assert updates[-1] == "", "the result says it all"
        else:
            assert "6 of 6" in updates[-1], "the board stays"
        assert drawn(sent, "execute_result")[0].startswith("<div><div><strong>")


def after(condition: Callable[[], object], act: Callable[[], None]) -> Callable[[], None]:
    """Act as soon as something is so."""

    def wait() -> None:
        deadline = time.monotonic() + 600
        while not condition():
            assert time.monotonic() < deadline, "it did not come to pass"
            time.sleep(0.1)
        act()

    return wait


@pytest.mark.slow
def test_the_stop_button_ends_an_evaluation_and_leaves_no_worker(kernel: Kernel) -> None:
    kernel.run("import manyarms")
    call = f"manyarms.evaluate('standins:Sleeper', num_envs=2, episodes=100000, {NAPPING})"
    sent = kernel.run(call, after(kernel.workers, kernel.interrupt))
    assert [content["ename"] for kind, content in sent if kind == "error"] == ["KeyboardInterrupt"]
    assert kernel.workers() == []
    assert ("stream", {"name": "stdout", "text": "still here\n"}) in kernel.run("print('still here')")


@pytest.mark.slow
def test_the_stop_button_ends_a_training_run_with_what_there_is(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run("import manyarms, signal; before = signal.getsignal(signal.SIGINT)")
    settings = {
        "runner.max_steps": 100000,
        "runner.logger.log_path": str(tmp_path),
        "runner.logger.experiment_name": "x",
    }
    call = f"result = manyarms.train({written(tmp_path)!r}, **{settings!r}); print(result.finished_because)"
    begun = tmp_path / "x/checkpoints/global_step_2"
    sent = kernel.run(call, after(begun.is_dir, kernel.interrupt))
    assert said(sent, "stdout") == "SIGINT asked for the end\n"
    assert kernel.workers() == []
    assert said(kernel.run("print(signal.getsignal(signal.SIGINT) == before)"), "stdout") == "True\n"
    assert (tmp_path / "x/report.html").is_file()


@pytest.mark.slow
def test_training_in_a_thread_leaves_signals_alone(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
    with ThreadPoolExecutor(1) as pool:
        words = [*in_folder(tmp_path), "runner.max_steps=2"]
        running = pool.submit(lambda: manyarms.train(written(tmp_path), overrides=words))
        during = []
        while not running.done():
            during.append([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)])
            time.sleep(0.05)
        assert running.result().updates == 2
    assert during
    assert all(handlers == before for handlers in during)


# -- the functions ----------------------------------------------------------------------------------------------------


def test_functions_take_python_s_own_types(tmp_path: Path) -> None:
    tasks, options = ["push_button", "reach_target"], {"arm_mode": "delta_ee", "cameras": []}
    given: dict[str, Any] = {"tasks": tasks, "options": options, "out": str(tmp_path / "x")}
    found = manyarms.evaluate("tabletop", policy="expert", episodes=1, num_envs=2, **given)
    assert [(result.task, result.success) for result in found.results] == [(task, True) for task in tasks]
    assert found.folder == tmp_path / "x"
    assert "expert on tabletop" in repr(found)


def test_what_was_recorded_can_be_read_drawn_and_played_back(tmp_path: Path) -> None:
    tape = manyarms.record("standins:Walker", episodes=2, num_envs=2, max_episode_steps=10, out=tmp_path / "tape")
    outcomes = tape.outcomes()
    assert [(o.length, o.success, o.total_reward) for o in outcomes] == [
        (len(episode), episode.success, pytest.approx(episode.rewards.sum())) for episode in tape
    ]
    assert repr(tape).startswith(f"{len(outcomes)} episodes (")
    assert tape.plot()._repr_svg_().count("<g ") == 2
    assert manyarms.replay(tape.folder, trust_code=True).same


def test_a_check_names_what_does_not_hold(capfd: pytest.CaptureFixture[str]) -> None:
    found = manyarms.check("standins:Drifting", steps=4)
    assert not found.holds
    assert "same seed gives the same episode" in found.failures
    assert capfd.readouterr().out == "", "the result tells"


def test_a_served_policy_answers_until_it_is_closed(tmp_path: Path) -> None:
    with manyarms.serve("standins:Walker", policy="random", port=0) as server:
        port = int(server.url.rpartition(":")[2])
        pairs: dict[str, Any] = {"policy_options": {"port": port}, "max_episode_steps": 5, "out": tmp_path / "x"}
        assert manyarms.evaluate("standins:Walker", policy="remote", episodes=1, num_envs=1, **pairs).complete
        assert server.counts.rows > 0
        assert repr(server).startswith(f"serving random on ws://127.0.0.1:{port}")
    server.close()
    assert repr(server).startswith(f"ws://127.0.0.1:{port} is closed")


def test_a_run_is_watched_until_that_is_closed(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "env/return": 0.5}\n')
    with manyarms.watch(tmp_path, port=0) as page:
        state = json.loads(urllib.request.urlopen(f"{page.url}state", timeout=60).read())
        assert "return 0.5 at update 1" in state["parts"]["small"]
        assert f'<a href="{page.url}"' in page._repr_html_()
    assert repr(page) == f"{tmp_path} is no longer watched"
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(page.url, timeout=10)


def test_what_there_is_can_be_listed() -> None:
    found = manyarms.catalogue("tasks", "tabletop", match="drawer")
    assert [row["task"] for row in found.as_dicts()] == [
        *("tabletop/close_drawer", "tabletop/open_drawer", "tabletop/put_item_in_drawer"),
    ]
    assert repr(found).startswith("3 tasks")


def test_a_program_that_forgets_to_close_its_server_ends_all_the_same() -> None:
    code = "import manyarms; print(manyarms.serve('gym/CartPole-v1', policy='random', port=0).url)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ws://")
    assert done.stderr == ""
