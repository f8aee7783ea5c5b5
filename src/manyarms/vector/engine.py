"""What becomes of rows: commands wait, go out and come back, and the rows of a worker that fails are told so.

The engine knows rows and workers; what the arrays mean is `VectorEnv`'s business.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from manyarms.errors import RowStateError, WorkerError, several
from manyarms.vector.config import VectorConfig
from manyarms.vector.groups import ABORTED, ENDED, LIVE, NEW, LockstepGroup
from manyarms.vector.health import Health
from manyarms.vector.layout import arena_fields
from manyarms.vector.memory import check_room
from manyarms.vector.post import Post
from manyarms.vector.process import READY, WorkerProcess
from manyarms.vector.reasons import simulator_error
from manyarms.vector.spaces import MergedSpec
from manyarms.vector.supervisor import Supervisor
from manyarms.vector.topology import seconds_awake
from manyarms.workers import wire
from manyarms.workers import words as w
from manyarms.workers.arena import Arena, Layout
from manyarms.workers.messages import check_reply


class Engine:
    """Sends rows their commands, collects what they finish, replaces workers that fail."""

    def __init__(self, supervisor: Supervisor, merged: MergedSpec, config: VectorConfig) -> None:
        self.supervisor = supervisor
        rows = config.num_envs
        self.arena = self._lay_out(merged, config)
        self.status = self.arena.array("status")
        self._status_words = [self.arena.words("status", row) for row in range(rows)]
        self._status_memory = self.arena.region("status")
        self._plain_length = 0
        self._plain_status = b""
        self._post = Post(self.arena, supervisor.workers, supervisor.bell_fd)
        self.control = self._post.control
        self._most = _most_of_each_word(merged, config, self.arena)
        self._poll = supervisor.poll
        self.health = Health(supervisor, config)
        self.state = np.full(rows, NEW)
        self.seeds: list[int | None] = [None] * rows
        self.tasks: list[str | None] = [None] * rows
        """Last asked for."""
        self.episodes = [0] * rows
        """That came to their end."""
        self.replies: dict[int, Any] = {}
        self.aborted: dict[int, WorkerError] = {}
        """Rows that come back without a result, and why; whoever collects them takes them out."""
        self._doomed: dict[int, WorkerError] = {}
        """Rows whose episode was lost while nothing was under way: told at the next step."""
        self._blank: set[int] = set()
        """Rows whose worker was replaced, and was not told to reset them yet."""
        self._queued: list[tuple[int, int, bytes]] = []
        """Commands for workers that are being started again."""
        self.lost: set[int] = set()
        """Rows whose worker is given up."""
        self._raise = config.on_failure == "raise"
        self._ready: list[int] = []
        self._failures: list[WorkerError] = []
        self._worker_of = [worker for worker in supervisor.workers for _ in worker.rows]
        self._all_groups = [
            LockstepGroup(worker, merged.rows[worker.rows[0]].partial_reset)
            for worker in supervisor.workers
            if worker.lockstep
        ]
        self._groups = {row: group for group in self._all_groups for row in group.rows}

    def _lay_out(self, merged: MergedSpec, config: VectorConfig) -> Arena:
        """Give the arena its size and have all workers map it."""
        layout = Layout.plan(config.num_envs, arena_fields(merged.spec, config))
        what = f"shared memory for {config.num_envs} environments"
        check_room(layout.size, what, "lower num_envs, max_chunk or the image size")
        os.ftruncate(self.supervisor.arena_fd, layout.size)
        arena = Arena(layout, self.supervisor.arena_fd, populate=True)
        self.supervisor.attach(
            {
                "layout": layout.to_json(),
                "rename": merged.rename,
                "max_episode_steps": config.max_episode_steps,
                "profile": config.profile,
                "stay_awake": seconds_awake(len(self.supervisor.workers), config.stay_awake),
            }
        )
        return arena

    @property
    def in_flight(self) -> int:
        """How many rows have a command that is not yet collected."""
        return self._post.in_flight + len(self._queued) + len(self._ready)

    def at_work(self) -> list[int]:
        """Return the rows that have not finished what they were sent; any thread may ask."""
        words = self.control
        unfinished = words[:, w.DONE] != words[:, w.SEQUENCE]
        return self._post.expected_of(np.flatnonzero(unfinished).tolist())

    # -- sending ------------------------------------------------------------------------------------------------------

    def step_all(self, length: int) -> bool:
        """Have every row take the actions that lie in the arena, and wait; True when all took all `length` of them and
        none has anything else to tell.

        The usual case of `step`, `collect_all` and reading the status, at a third of their cost.
        """
        post = self._post
        if self._groups or post.in_flight or self._ready or self._blank or self.health.needs_care:
            self._step_all_with_care()
            return False
        post.send_step_to_all()
        heard = post.hear_all(self._poll, self.health.check_every)
        if self._plain_length != length:
            self._plain_length = length
            self._plain_status = w.status_bytes(num_steps=length) * len(self.state)
        if heard and self._status_memory.tobytes() == self._plain_status:
            post.accept_all()
            return True
        self._take_in(post.accept())
        self.collect_all()
        return False

    def _step_all_with_care(self) -> None:
        """Step every row; those whose worker cannot begin the next episode by itself are told to, with a seed."""
        rows = range(len(self.state))
        self.require_idle(rows)
        for row in rows:
            replaced = row in self._blank or self.health.wants_recycling(self._worker_of[row])
            if self.state[row] == ABORTED or (self.state[row] == ENDED and replaced):
                seed = self.health.next_seed(row, self.seeds[row])
                self._begin(row, {"task": None, "seed": seed, "init_state": None, "options": None})
            else:
                self._step(row)
        self._flush_full_groups()
        self.collect_all()

    def step(self, rows: Sequence[int]) -> None:
        """Have some rows take the actions that lie in the arena."""
        for row in rows:
            self._step(row)
        self._flush_full_groups()

    def _step(self, row: int) -> None:
        error = self._doomed.pop(row, None)
        if error is None:
            self._submit(row, w.STEP, b"")
        else:
            self._deliver_aborted(row, error)

    def reset(self, rows: Sequence[int], starts: Sequence[dict[str, Any]]) -> None:
        """Begin an episode in each row."""
        for row, start in zip(rows, starts, strict=True):
            self.seeds[row] = start.get("seed")
            self.tasks[row] = start.get("task") or self.tasks[row]
            self._begin(row, start)
        self._flush_full_groups()

    def _begin(self, row: int, start: dict[str, Any]) -> None:
        worker = self._worker_of[row]
        self.state[row] = NEW
        if self.health.wants_recycling(worker) and not any(map(self._is_in_use, worker.rows)):
            self.health.recycle(worker)
            self._blank.update(worker.rows)
            self._post.note_doorbells()
        self._doomed.pop(row, None)
        self._blank.discard(row)
        self._submit(row, w.RESET, wire.encode(start))

    def _is_in_use(self, row: int) -> bool:
        """Tell whether a row is in mid-episode, or has a command under way or a result to be collected."""
        group = self._groups.get(row)
        waits = row in self._ready or (group is not None and row in group.pending)
        return waits or self._post.expects(row) or self.state[row] == LIVE

    def call(self, rows: Sequence[int], payloads: Sequence[bytes]) -> list[Any]:
        """Call a method of each row's simulator and wait for the answers."""
        self.require_idle(rows)
        while any(self._worker_of[row].phase != READY for row in rows) and not self._failures:
            self._pump(None)  # a worker that was replaced is still starting
        self._raise_failures()
        for row, payload in zip(rows, payloads, strict=True):
            if row in self._groups:
                self._groups[row].outstanding += 1
            self._post.send(row, w.CALL, payload)
        wanted = set(rows)
        while wanted - set(self._ready) and not self._failures:
            self._pump(None)
        self._raise_failures()
        self._ready = [row for row in self._ready if row not in wanted]
        failed = [self.aborted.pop(row) for row in rows if row in self.aborted]
        if failed:
            raise several(failed)
        return [self.replies.pop(row)["result"] for row in rows]

    def require_idle(self, rows: Sequence[int]) -> None:
        """Refuse rows that still have a command under way, or whose worker is given up."""
        gone = [row for row in rows if row in self.lost] if self.lost else []
        if gone:
            raise RowStateError(f"the workers of rows {_list(gone)} have died", do="close this and make a new one")
        busy = self._post.expected_of(rows)
        if self._groups or self._ready or self._queued:
            waiting = {row for group in self._all_groups for row in group.pending}.union(self._ready)
            waiting.update(row for row, _, _ in self._queued)
            busy += [row for row in rows if row in waiting]
        if busy:
            raise RowStateError(f"rows {_list(busy)} have not been received yet", do="recv() them before sending again")

    def _submit(self, row: int, command: int, payload: bytes) -> None:
        """Send a command, or keep it until its group is complete or its worker is up."""
        group = self._groups.get(row)
        if group is not None:
            group.pending[row] = (command, payload)
        elif self._worker_of[row].phase == READY:
            self._post.send(row, command, payload)
        else:
            self._queued.append((row, command, payload))

    # -- lock-step groups ---------------------------------------------------------------------------------------------

    def _flush_full_groups(self) -> None:
        for group in self._all_groups:
            if len(group.pending) == len(group.rows):
                self._flush(group)

    def _flush_groups(self) -> None:
        for group in self._all_groups:
            self._flush(group)

    def _flush(self, group: LockstepGroup) -> None:
        """Let a group leave when all that must go together has been sent."""
        if group.outstanding or not group.pending or group.worker.phase != READY:
            return
        leaving = group.leaving(self.state)
        if leaving:
            group.outstanding = len(leaving)
            self._post.send_group(group.rows, {row: group.pending.pop(row) for row in sorted(leaving)})

    def _reachable(self, count: int) -> int:
        """Return how many rows can come back; refuse to wait for a group that waits for us."""
        held = sorted(row for group in self._all_groups for row in group.pending)
        if count and not self.in_flight and not self._any_group_starting():
            if held:
                group = self._groups[held[0]]
                missing = [row for row in group.rows if row not in group.pending and self.state[row] == LIVE]
                raise RowStateError(
                    f"rows {_list(held)} wait for rows {_list(missing)} of their lock-step group",
                    do="send those rows too, or begin a new episode in them",
                )
            raise RowStateError("nothing has been sent", do="begin() or send() rows before recv()")
        return self.in_flight + len(held)

    def _any_group_starting(self) -> bool:
        return any(group.worker.phase != READY for group in self._all_groups if group.pending)

    # -- receiving ----------------------------------------------------------------------------------------------------

    def collect(self, count: int, timeout: float | None) -> list[int]:
        """Wait until `count` rows are done and return all that are; raise what cannot be mended."""
        self._flush_groups()
        count = min(count, self._reachable(count))
        deadline = None if timeout is None else time.monotonic() + timeout
        self._take_in(self._post.accept())
        while len(self._ready) < count and not self._failures:
            if not self._pump(deadline):
                break
            if not self._post.in_flight and len(self._ready) < count:
                # Nothing else can come: let those go that waited for company.
                self._flush_groups()
                if self._ready and not (self._post.in_flight or self._queued or self._any_group_starting()):
                    break  # those left wait for rows that are the caller's to send
        self._raise_failures()
        done, self._ready = self._ready, []
        return done

    def collect_all(self) -> None:
        """Wait for every row in flight; a row that fails does not keep the others from being awaited."""
        while self._post.in_flight or self._queued or self._all_groups:
            self._flush_groups()
            waiting = self._post.in_flight or self._queued or any(group.pending for group in self._all_groups)
            if not waiting:
                break
            self._pump(None)
        self._ready = []
        if self._failures:
            self.replies.clear()
            self._raise_failures()

    def settle(self, rows: np.ndarray) -> np.ndarray:
        """Return the status of rows that are being collected, and note what has become of them.

        What cannot be is not believed: the worker is replaced, the row aborted, and its status zero.
        """
        status = self.status[rows]
        ended = (status[:, w.TERMINATED] | status[:, w.TRUNCATED]) != 0
        runs_on = (status[:, w.WAS_RESET] != 0) | ((status[:, w.NUM_STEPS] != 0) & ~ended)
        self.state[rows] = np.where(runs_on, LIVE, ENDED)
        if self.aborted:
            self.state[[row for row in rows.tolist() if row in self.aborted]] = ABORTED
        sent = self.control[rows, w.NUM_ACTIONS]
        beyond = status.view(np.uint32) > self._most  # what is below zero is beyond all
        beyond[:, w.NUM_STEPS] |= status[:, w.NUM_STEPS] > sent
        for i in np.flatnonzero(beyond.any(axis=1)).tolist() if beyond.any() else ():
            self.refuse(int(rows[i]), wire.Unreadable(f"it reports {status[i].tolist()} after {sent[i]} actions"))
            status[i] = 0
        return status

    def refuse(self, row: int, error: wire.Unreadable) -> None:
        """Abort a row that is being collected, for what it brought cannot be read, and replace its worker."""
        worker = self._worker_of[row]
        told = worker.nonsense(error, self.seeds[row])
        self.status[row] = 0
        self.state[row], self.aborted[row] = ABORTED, told
        self.replies.pop(row, None)
        self._doomed.pop(row, None)
        if worker.phase == READY:  # or what another of its rows brought has ended it already
            self._fail(worker, told)
        if self._failures:  # it is given up
            self.state[row] = NEW
            del self.aborted[row]
            self._raise_failures()

    def abandon(self) -> None:
        """Wait for whatever is under way and forget it, as after an interrupt."""
        for group in self._all_groups:
            group.pending.clear()
        while self._post.in_flight or self._queued:
            self._pump(None)
        for forgotten in (self._ready, self._failures, self.replies, self.aborted):
            forgotten.clear()

    def _raise_failures(self) -> None:
        if self._failures:
            failures, self._failures = self._failures, []
            raise several(failures)

    def _pump(self, deadline: float | None) -> bool:
        """Sleep until something happens, then take it in; False when the time is over."""
        limit = self.health.check_every
        if deadline is not None:
            limit = min(limit, max(0.0, deadline - time.monotonic()))
        dead, risen = self.supervisor.wait(limit)
        self._take_in(self._post.accept())  # what a worker finished before it died counts
        for worker in dead:
            self._fail(worker, self.health.cause_of_death(worker, self._seed_of(worker)))
        for worker in risen:
            self._resume(worker)
        if self.health.check_is_due():
            for worker, error in self.health.check(self._post.oldest_commands(), self._seed_of):
                self._fail(worker, error)
        return deadline is None or time.monotonic() < deadline

    def _take_in(self, rows: Sequence[int]) -> None:
        """Note rows that are back, and fetch what they have to say beyond the arena."""
        for row in rows:
            if self._worker_of[row].pidfd < 0:  # what a neighbour told has just ended their worker
                self._doomed.pop(row, None)
                self._lose_row(row, self.health.failures[-1])
                continue
            words = self._status_words[row]
            if self._groups and row in self._groups:
                self._groups[row].outstanding -= 1
                if self.control[row, w.COMMAND] != w.CALL:
                    # Known at once, not when the caller looks: its neighbours' steps wait for it.
                    self.state[row] = LIVE if _runs_on(words) else ENDED
            if words[w.REPLY]:
                self._take_reply(row)
            else:
                self._ready.append(row)

    def _take_reply(self, row: int) -> None:
        worker = self._worker_of[row]
        try:
            reply = check_reply(worker.receive(), asked=self.control[row, w.COMMAND] == w.CALL)
        except (OSError, wire.Unreadable) as unreadable:
            # Half an answer, or nonsense: nothing it says can be trusted any more.
            told = worker.nonsense(unreadable, self.seeds[row])
            self._lose_row(row, told)
            self._fail(worker, told)
            return
        error = reply.get("error")
        if error is None:
            self.replies[row] = reply
            self._ready.append(row)
            return
        told = simulator_error(worker, row, self.seeds[row], error)
        if error["phase"] == "call":
            self.aborted[row] = told
            self._ready.append(row)
        elif self._raise:
            self.state[row] = NEW
            self._failures.append(told)
        elif error["phase"] == "step" and not worker.lockstep and self.health.forgive(worker):
            self.health.note(told)
            self._deliver_aborted(row, told)
        else:
            self._deliver_aborted(row, told)
            self._fail(worker, told)

    # -- when a worker fails ------------------------------------------------------------------------------------------

    def _deliver_aborted(self, row: int, error: WorkerError) -> None:
        """Have a row come back without a result."""
        self.status[row] = 0
        self.state[row] = ABORTED
        self.aborted[row] = error
        self._ready.append(row)

    def _lose_row(self, row: int, error: WorkerError) -> None:
        if self._raise:
            self.state[row] = NEW
        else:
            self._deliver_aborted(row, error)

    def _fail(self, worker: WorkerProcess, error: WorkerError) -> None:
        """Abort the episodes of a worker's rows, take it down, and start it again unless it has had its chances."""
        self.health.note(error)
        group = self._groups.get(worker.rows[0])
        for row in worker.rows:
            if self._post.withdraw(row):
                self._lose_row(row, error)
            elif group is not None and group.pending.get(row, (0, b""))[0] == w.STEP:
                del group.pending[row]
                self._lose_row(row, error)
            elif self._has_episode(row):
                self._doomed[row] = error
        self._blank.update(worker.rows)
        if group is not None:
            group.outstanding = 0
        final = self.health.take_down(worker, error)
        self._post.note_doorbells()
        if final is not None:
            self._give_up(worker, final)

    def _has_episode(self, row: int) -> bool:
        """Tell whether a row is in mid-episode, as its result says where nobody has collected that yet."""
        if row in self._ready and self.control[row, w.COMMAND] != w.CALL:
            return _runs_on(self._status_words[row])
        return bool(self.state[row] == LIVE)

    def _give_up(self, worker: WorkerProcess, error: WorkerError) -> None:
        self.lost.update(worker.rows)
        self._failures.append(error)
        self._queued = [command for command in self._queued if command[0] not in self.lost]
        for row in worker.rows:
            self._doomed.pop(row, None)
            if row in self._groups:
                self._groups[row].pending.clear()

    def _resume(self, worker: WorkerProcess) -> None:
        """Send a worker that is up again what has been waiting for it."""
        self._post.note_doorbells()
        waiting = [command for command in self._queued if self._worker_of[command[0]] is worker]
        self._queued = [command for command in self._queued if self._worker_of[command[0]] is not worker]
        for command in waiting:
            self._post.send(*command)
        if worker.rows[0] in self._groups:
            self._flush(self._groups[worker.rows[0]])

    def require_episodes(self, rows: Sequence[int]) -> None:
        """Refuse rows whose episode was lost and that have not been told so yet."""
        lost = {id(self._doomed[row]): self._doomed[row] for row in rows if row in self._doomed}
        if lost:
            raise several(list(lost.values()))

    def put_back(self, rows: np.ndarray, ended: Sequence[bool]) -> None:
        """Note rows that go on from a loaded state, whatever had become of their episode."""
        for row, is_over in zip(rows.tolist(), ended, strict=True):
            self._doomed.pop(row, None)
            if is_over is not True:
                self._blank.discard(row)
            self.state[row] = ENDED if is_over is True else LIVE

    def note_ends(self, rows: Sequence[int]) -> None:
        """Count episodes that came to their end."""
        for row in rows:
            self.episodes[row] += 1
            self.health.episode_ended(self._worker_of[row])

    def _seed_of(self, worker: WorkerProcess) -> int | None:
        """Return the seed of the row that a worker is, or was last, at work on."""
        busy = [row for row in worker.rows if self._post.expects(row)]
        return self.seeds[(busy or worker.rows)[0]]


def _most_of_each_word(merged: MergedSpec, config: VectorConfig, arena: Arena) -> np.ndarray:
    """Return how large each word of a status can be."""
    most = np.zeros(w.STATUS_WORDS, np.uint32)
    most[[w.TERMINATED, w.TRUNCATED, w.SUCCESS, w.FAILED, w.REPLY, w.WAS_RESET]] = 1
    most[w.NUM_STEPS] = config.max_chunk
    most[w.INFO_BYTES] = config.info_bytes
    most[w.FINAL_BYTES] = config.info_bytes if "final_info" in arena.layout.slots else 0
    most[w.INFO_MASK] = (1 << len(merged.spec.infos)) - 1
    most[w.FRAMES] = max((ring.shape[1] for ring in arena.arrays("frames").values()), default=0)
    return most


def _runs_on(status: memoryview) -> bool:
    """Tell whether a row is in mid-episode after the command that its status words answer."""
    return bool(status[w.WAS_RESET] or (status[w.NUM_STEPS] and not (status[w.TERMINATED] or status[w.TRUNCATED])))


def _list(rows: Sequence[int]) -> str:
    text = ", ".join(map(str, rows[:8]))
    return text + (f", … ({len(rows)} in all)" if len(rows) > 8 else "")
