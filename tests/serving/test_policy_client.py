"""A client of policies behind sockets: whatever a server does is an answer or one sentence."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

from rlpipe.collection.actions import RunningEpisode
from rlpipe.config.schema import ExternalConfig
from rlpipe.errors import PolicyError
from rlpipe.serving import client as client_module
from rlpipe.serving.client import PolicyClient
from rlpipe.serving.external.sockets import SocketPolicy
from rlpipe.serving.wire import Frame, pack_openpi, unpack
from rlpipe.trajectory import SpaceSpec

ACTIONS = np.float32([[0.5], [0.25]])


@contextmanager
def server(handler, port=0):
    """A server whose connections a function handles; yields its address."""
    with serve(handler, "127.0.0.1", port, compression=None, max_size=None, ping_interval=None) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{listening.socket.getsockname()[1]}"
        finally:
            listening.shutdown()
            thread.join()


def openpi(respond, metadata=None):
    """A handler that answers openpi's requests by a function of a connection and a request."""

    def handle(connection):
        connection.send(pack_openpi(metadata or {}))
        for message in connection:
            respond(connection, unpack(message))

    return handle


def answer(actions):
    return lambda connection, _: connection.send(pack_openpi({"actions": actions}))


def refusal(handler, protocol="openpi", **timeouts) -> str:
    """What a client says of a server, which it names, when it asks it once."""

    def ask(url):
        client = PolicyClient(url, protocol, **{"timeout": 60.0} | timeouts)
        client.begin()
        client.ask({"state": np.zeros(3)})

    with server(handler) as url, pytest.raises(PolicyError) as raised:
        ask(url)
    text = str(raised.value)
    assert text.startswith(f"the policy {url} ")
    assert text.endswith(".")
    return text.removeprefix(f"the policy {url} ")


def test_actions_are_a_chunk_also_where_one_is_answered():
    for actions in (ACTIONS, ACTIONS[0], [0.5], [[0.5], [0.25]]):
        with server(openpi(answer(actions))) as url, PolicyClient(url) as client:
            assert client.ask({}).shape == (len(ACTIONS) if len(actions) > 1 else 1, 1)


def close(connection, _):
    connection.close(1011, "out of memory")


def vanish(connection, _):
    connection.socket.shutdown(socket.SHUT_RDWR)


FAILURES = {
    "closes": (close, "closed the connection with the code 1011 out of memory."),
    "vanishes": (vanish, "closed the connection."),
    "a text": (lambda c, _: c.send("Traceback\n  ...\nKeyError: 'image'"), "KeyError: 'image'"),
    "no msgpack": (lambda c, _: c.send(b"\xc1"), "answered what cannot be read"),
    "no map": (lambda c, _: c.send(pack_openpi([1])), "a list, but a map is expected"),
    "no actions": (lambda c, _: c.send(pack_openpi({"action": 1})), "without actions: its answer has action."),
    "ragged": (answer([[1.0], [1.0, 2.0]]), "no array"),
    "a batch": (answer(np.zeros((1, 2, 1))), "the shape (1, 2, 1); [A] or [H, A] is expected"),
    "a planted object": (
        lambda c, _: c.send(pack_openpi({"actions": {"__ndarray__": True, "data": b"x", "dtype": "|O", "shape": [1]}})),
        "arrays of object are not sent",
    ),
}


@pytest.mark.parametrize(("respond", "words"), FAILURES.values(), ids=FAILURES)
def test_what_is_no_answer_is_said_in_a_sentence(respond, words):
    assert words in refusal(openpi(respond))


PENDULUM = SpaceSpec(3, 1, None, np.float32([-2]), np.float32([2]))


@pytest.mark.parametrize(
    ("actions", "words"),
    [(np.float32([[np.nan]]), "not finite"), ([np.inf], "not finite"), (["left"], "answered <U4"),
     (np.zeros((2, 7)), "an action has the shape (1,)"), (np.zeros((0, 1)), "of the shape (0, 1)")],
)  # fmt: skip
def test_actions_that_are_none_of_the_task_end_the_evaluation(actions, words):
    episode = RunningEpisode(0, 7, np.random.default_rng(0))
    with server(openpi(answer(actions))) as url:
        policy = SocketPolicy(url, PENDULUM, ExternalConfig())
        with pytest.raises(PolicyError) as raised:
            policy.actions(np.zeros((1, 3), np.float32), [episode])
        policy.close()
    assert words in str(raised.value)


def test_an_answer_that_never_comes_is_waited_for_no_longer_than_allowed():
    hangs = openpi(lambda connection, _: None)
    assert "sent nothing within 0.2 s" in refusal(hangs, timeout=0.2)
    assert "may be another than openpi" in refusal(lambda connection: list(connection), timeout=0.2)


def test_a_server_that_stops_reading_is_waited_for_no_longer_than_allowed():
    held = threading.Event()

    def handle(connection):
        connection.send(pack_openpi({}))
        with connection.protocol_mutex:  # reads nothing any more
            held.wait()

    with server(handle) as url:
        client = PolicyClient(url)
        client._timeout = 0.3  # only now, because a slow machine takes longer to connect
        client_module._limit_sending(client._connection, 0.3)
        try:
            with pytest.raises(PolicyError, match=r"read nothing for 0.3 s"):
                client.ask({"image": np.zeros((60, 2**20), np.uint8)})
        finally:
            held.set()


def test_an_answer_that_is_too_large_is_not_read(monkeypatch):
    monkeypatch.setattr(client_module, "LARGEST_MESSAGE", 2**20)
    assert "answered more than 1 MiB." in refusal(openpi(lambda c, _: c.send(b"\0" * (2**20 + 1))))


def test_what_is_no_server_of_a_policy_is_said(tmp_path):
    with pytest.raises(PolicyError, match=r"could not be reached within 0.3 s: .*refused"):
        PolicyClient("ws://127.0.0.1:1", connect_timeout=0.3)
    with pytest.raises(PolicyError, match=r"scheme isn't ws"):
        PolicyClient("http://127.0.0.1:1")


def test_a_server_that_starts_late_is_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    answers = []

    def ask():
        with PolicyClient(f"ws://127.0.0.1:{port}", connect_timeout=60) as client:
            answers.append(client.ask({}))

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.3)
    with server(openpi(answer(ACTIONS)), port):
        thread.join()
    assert (answers[0] == ACTIONS).all()


def test_servers_of_others_see_a_new_connection_for_each_episode_and_ours_a_seed():
    connections, requests = itertools.count(), []

    def handle(connection, metadata):
        number = next(connections)
        connection.send(pack_openpi(metadata))
        for message in connection:
            requests.append((number, unpack(message)))
            connection.send(pack_openpi({"actions": ACTIONS}))

    for metadata in ({}, {"rlpipe": "0.1.0"}):
        with (
            server(lambda connection, metadata=metadata: handle(connection, metadata)) as url,
            PolicyClient(url) as client,
        ):
            for seed in (7, 8):
                client.begin(seed)
                client.ask({"x": 1})
                client.ask({"x": 2})
    assert requests[:4] == [(0, {"x": 1}), (0, {"x": 2}), (1, {"x": 1}), (1, {"x": 2})]
    assert requests[4:] == [
        (2, {"x": 1, "reset": True, "seed": 7}), (2, {"x": 2}), (2, {"x": 1, "reset": True, "seed": 8}), (2, {"x": 2}),
    ]  # fmt: skip


def vla_eval(respond, frames=None):
    """A handler of vla-eval's protocol that answers observations by a function; frames that came are kept."""

    def handle(connection):
        for message in connection:
            frame = Frame.read(message)
            if frames is not None:
                frames.append(frame)
            if frame.type == "hello":
                connection.send(Frame("hello", {"model_server": "toy"}, frame.seq).packed())
            elif frame.type == "observation":
                respond(connection, frame)

    return handle


def act(connection, frame, value=0.5):
    connection.send(Frame("action", {"actions": np.float32([value])}, frame.seq).packed())


def test_an_episode_of_vla_eval_begins_is_asked_and_ends():
    frames = []
    with server(vla_eval(act, frames)) as url, PolicyClient(url, "vla-eval") as client:
        for seed in (7, 8):
            client.begin(seed)
            assert client.ask({"state": np.zeros(2)}).tolist() == [[0.5]]
        assert client.metadata == {"model_server": "toy"}
    kinds = ["episode_start", "observation", "episode_end"]
    assert [frame.type for frame in frames] == ["hello", *kinds, *kinds]
    assert [frame.seq for frame in frames] == [1, 2, 3, 4, 5, 6, 7]
    assert frames[1].payload == {"task": {"name": "rlpipe"}}  # a server of others gets no seed
    assert (frames[3].payload["steps"], frames[3].payload["metrics"]) == (1, {})


def test_answers_to_other_frames_are_dropped():
    """vla-eval's server sends an error unasked where an episode could not begin; all answers are late from then on."""

    def respond(connection, frame):
        connection.send(Frame("error", {"error": "episode_start_failed"}, frame.seq - 1).packed())
        connection.send(Frame("action", {"actions": np.float32([9])}, 0).packed())
        act(connection, frame, frame.payload["x"])

    with server(vla_eval(respond)) as url, PolicyClient(url, "vla-eval") as client:
        client.begin()
        assert [client.ask({"x": x}).item() for x in (1.0, 2.0, 3.0)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("respond", "words"),
    [(lambda c, f: c.send(Frame("error", {"error": "KeyError: 'state'"}, f.seq).packed()), "error: KeyError: 'state'."),
     (lambda c, f: c.send(Frame("hello", {}, f.seq).packed()), "answered observation with 'hello'"),
     (lambda c, f: c.send(pack_openpi({"actions": ACTIONS})), "lacks type, payload, seq, timestamp")],
)  # fmt: skip
def test_what_is_no_answer_of_vla_eval_is_said_in_a_sentence(respond, words):
    assert words in refusal(vla_eval(respond), "vla-eval")


def test_a_client_that_failed_stays_closed():
    with server(openpi(close)) as url:
        client = PolicyClient(url)
        for words in ("code 1011", "is closed"):
            with pytest.raises(PolicyError, match=words):
                client.ask({})
        client.close()


def test_what_cannot_be_packed_is_not_sent():
    with server(openpi(answer(ACTIONS))) as url, pytest.raises(PolicyError, match="was not asked, because"):
        PolicyClient(url).ask({"x": object()})


def test_closing_a_connection_that_is_gone_is_quiet():
    def handle(connection):
        connection.send(pack_openpi({}))
        raise ConnectionClosed(None, None)

    with server(handle) as url:
        client = PolicyClient(url)
        time.sleep(0.1)
        client.close()
        client.close()
