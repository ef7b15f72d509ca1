"""A policy behind a socket: what it answers is what it does in its evaluation."""

from __future__ import annotations

import importlib.util
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import closing, contextmanager

import gymnasium
import msgpack
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK, InvalidStatus
from websockets.sync.client import connect

import rlpipe
from rlpipe.errors import ConfigError
from rlpipe.serving.client import PolicyClient
from rlpipe.serving.runner import ActingPolicy
from rlpipe.serving.server import PolicyServer, metadata_of, request_keys
from rlpipe.serving.wire import Frame, pack_openpi, unpack
from tests.helpers.acting import trained
from tests.helpers.commands import command
from tests.helpers.gym_trees import Signs
from tests.helpers.serving import listening, served


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    """A run whose policy has a memory and chunks, and samples its actions; and its evaluation."""
    policy = {"name": "gru", "memory_size": 6, "chunk_size": 3, "execute": 2, "normalize_observations": True}
    run = trained(tmp_path_factory.mktemp("served"), "Pendulum-v1", policy, "evaluation.deterministic=false")
    return run.directory, rlpipe.evaluate(run.directory, local=True)


@pytest.fixture(scope="module")
def openpi(pendulum):
    with served(pendulum[0]) as url:
        yield url


@pytest.fixture(scope="module")
def vla_eval(pendulum):
    with served(pendulum[0], "vla-eval") as url:
        yield url


def return_of(client: PolicyClient, seed: int, execute: int) -> float:
    """Undiscounted return of an episode in which a client acts."""
    with closing(gymnasium.make("Pendulum-v1", max_episode_steps=30)) as env:
        observation, _ = env.reset(seed=seed)
        client.begin(seed)
        rewards, ended = [], False
        while not ended:
            for action in client.ask(observation)[:execute]:
                observation, reward, terminated, truncated, _ = env.step(action)
                rewards.append(reward)
                ended = terminated or truncated
                if ended:
                    break
        return sum(rewards)


@pytest.mark.parametrize("protocol", ["openpi", "vla-eval"])
def test_the_episodes_of_a_client_are_those_of_the_evaluation(protocol, pendulum, request):
    url = request.getfixturevalue(protocol.replace("-", "_"))
    _, report = pendulum
    with PolicyClient(url, protocol) as client:
        execute = client.metadata["execute"] if protocol == "openpi" else 1  # vla-eval asks for every action
        for episode in report.episodes:
            assert return_of(client, episode.seed, execute) == pytest.approx(episode.episode_return, rel=1e-12)


def test_clients_side_by_side_answer_as_each_alone(openpi):
    observations = np.random.default_rng(0).normal(size=(4, 2, 3)).astype(np.float32)

    alone = []
    for number in range(2):
        with PolicyClient(openpi) as client:
            client.begin(seed=number)
            alone.append([client.ask({"state": row}) for row in observations[:, number]])
    with PolicyClient(openpi) as first, PolicyClient(openpi) as second:
        first.begin(seed=0)
        second.begin(seed=1)
        for step, rows in enumerate(observations):
            assert (first.ask({"state": rows[0]}) == alone[0][step]).all()
            assert (second.ask({"state": rows[1]}) == alone[1][step]).all()


def test_episodes_without_a_seed_have_different_noise(openpi):
    with PolicyClient(openpi) as client:
        actions = []
        for _ in range(2):
            client.begin()
            actions.append(client.ask({"state": np.zeros(3)}))
    assert not np.array_equal(*actions)


def test_the_metadata_tell_what_the_policy_takes_and_gives(openpi, pendulum):
    _, report = pendulum
    with connect(openpi) as connection:
        metadata = unpack(connection.recv())
    assert metadata["leaves"] == {"observation": {"dtype": "float32", "shape": [3]}}
    assert metadata["bounds"] == {"low": [-2.0], "high": [2.0]}
    names = ("chunk_size", "execute", "deterministic", "memory_width", "iteration")
    assert [metadata[name] for name in names] == [3, 2, False, 12, report.iteration]
    assert len(metadata["digest"]) == 64
    assert metadata["estimates"][0]["value"] == report.estimates[0].value


def test_an_openpi_client_that_knows_nothing_of_rlpipe_is_answered(openpi):
    """Bytes of openpi-client 0.1.2: markers are bytes."""
    state = {b"__ndarray__": True, b"data": np.float32([1, 0, 0]).tobytes(), b"dtype": "<f4", b"shape": (3,)}
    with connect(openpi) as connection:
        connection.recv()
        connection.send(msgpack.packb({"observation/state": state, "prompt": "swing up"}))
        answer = msgpack.unpackb(connection.recv())
    actions = answer["actions"]
    assert (actions[b"dtype"], actions[b"shape"], len(actions[b"data"])) == ("<f4", [3, 1], 12)
    assert answer["server_timing"]["infer_ms"] > 0


REFUSED = {
    "no such key": ({"image": np.zeros(3)}, "lacks observation/state or state or observation"),
    "another shape": ({"state": np.zeros(4)}, "shape (4,)"),
    "a batch": ({"state": np.zeros((2, 3))}, "one observation, not a batch"),
    "not finite": ({"state": np.array([0, np.nan, 0])}, "not finite"),
    "text": ({"state": "upright"}, "shape ()"),
    "no seed": ({"state": np.zeros(3), "seed": -1}, "the seed is -1"),
    "no map": ([1], "a map is expected"),
}


@pytest.mark.parametrize(("request_", "words"), REFUSED.values(), ids=REFUSED)
def test_an_openpi_client_learns_in_a_text_why_its_connection_ends_and_others_go_on(request_, words, openpi):
    with PolicyClient(openpi) as other, connect(openpi) as connection:
        connection.recv()
        connection.send(pack_openpi(request_))
        text = connection.recv()
        assert isinstance(text, str)
        assert words in text
        assert "Traceback" not in text
        with pytest.raises(ConnectionClosedError) as closed:
            connection.recv()
        assert closed.value.rcvd.code == 1011
        assert other.ask({"state": np.zeros(3)}).shape == (3, 1)


def test_a_text_is_no_request(openpi):
    with connect(openpi) as connection:
        connection.recv()
        connection.send("hello")
        assert "a text came" in connection.recv()


def test_health_is_answered_and_a_page_in_a_browser_is_not(openpi):
    assert urllib.request.urlopen(openpi.replace("ws", "http") + "/healthz").read() == b"OK\n"
    with pytest.raises(InvalidStatus, match="403"):
        connect(openpi, origin="http://example.org")


def ask(connection, kind, payload, seq) -> Frame:
    connection.send(Frame(kind, payload, seq).packed())
    return Frame.read(connection.recv())


def test_vla_eval_is_answered_by_the_number_of_its_request_and_never_unasked(vla_eval):
    with connect(vla_eval) as connection:
        hello = ask(connection, "hello", {"harness_version": "0.8.0", "protocol_version": 1, "benchmark": "x"}, 1)
        assert (hello.type, hello.seq, hello.payload["model_server"]) == ("hello", 1, "rlpipe")
        early = ask(connection, "observation", {"state": np.zeros(3)}, 2)  # the connection begins an episode
        assert (early.type, early.seq) == ("action", 2)
        connection.send(Frame("episode_start", {"task": {"name": "a", "seed": "of another kind"}}, 3).packed())
        for seq, payload, kind in (
            (4, {"state": np.zeros(3), "task_description": "swing up", "images": {}}, "action"),
            (5, {"images": {}}, "error"),
            (6, {"state": np.zeros(3)}, "action"),
        ):
            answer = ask(connection, "observation", payload, seq)
            assert (answer.type, answer.seq) == (kind, seq)
        assert answer.payload["actions"].shape == (1,)
        connection.send(Frame("episode_end", {"metrics": {}, "steps": 2, "elapsed_sec": 0.1}, 7).packed())
        with pytest.raises(TimeoutError):
            connection.recv(timeout=0.2)


def test_what_is_no_frame_of_vla_eval_ends_the_connection(vla_eval):
    for message in (pack_openpi({"state": np.zeros(3)}), Frame("shutdown", {}, 1).packed()):
        with connect(vla_eval) as connection:
            connection.send(message)
            with pytest.raises(ConnectionClosedError) as closed:
                connection.recv()
            assert closed.value.rcvd.code == 1011


def card(leaves):
    spaces = {"leaves": leaves, "observation_dim": 3, "action_dim": 1, "num_actions": None}
    spaces |= {"action_low": ["-inf"], "action_high": [1.0]}
    facts = {"chunk_size": 1, "execute": 1, "memory_width": 0, "deterministic": True, "noise": [], "entropy": 0}
    return {"spaces": spaces, **facts, "policy": "mlp", "run_id": "r", "iteration": 1}


CAMERA = card({"camera/rgb": {"shape": [2, 2, 3], "dtype": "uint8"}, "agent": {"shape": [3], "dtype": "float32"}})


def test_a_leaf_goes_by_its_name_or_by_the_key_that_the_map_gives():
    assert request_keys(CAMERA, ["images/base=camera/rgb"]) == {
        "camera/rgb": ("images/base",),
        "agent": ("agent", "observation/agent", "images/agent"),
    }
    assert request_keys(card(None), ["a=b=observation"]) == {"observation": ("a=b",)}


def brightness(observations, noise, memories):
    """Decides on the sum of the agent's numbers and of a picture."""
    return np.float32([[observations["agent"].sum() + observations["camera/rgb"].sum()]]), None


@pytest.fixture
def camera():
    """Serves a policy with a camera in either protocol."""

    @contextmanager
    def serving(protocol, renamed=()):
        policy = ActingPolicy(brightness, CAMERA)
        metadata = metadata_of(policy, {"digest": "", "estimates": []}, request_keys(CAMERA, renamed))
        with listening(PolicyServer(policy, metadata, protocol=protocol, port=0)) as url:
            yield url

    return serving


def test_pictures_are_found_by_the_names_of_either_protocol(camera):
    picture, agent = np.full((2, 2, 3), 1, np.uint8), np.float32([-20, 0, 0])  # 12 - 20 = -8, and nothing bounds it
    for protocol, request in (
        ("openpi", {"observation/camera/rgb": picture, "observation/agent": agent}),
        ("openpi", {"camera": {"rgb": picture}, "agent": [-20.0, 0.0, 0.0]}),
        ("vla-eval", {"images": {"camera/rgb": picture}, "agent": agent, "task_description": "look"}),
    ):
        with camera(protocol) as url, PolicyClient(url, protocol) as client:
            client.begin()
            assert client.ask(request).tolist() == [[-8.0]]
            assert client.metadata["bounds"] == {"low": [-np.inf], "high": [1.0]}
    with camera("openpi", ["wrist=camera/rgb"]) as url, PolicyClient(url) as client:
        assert client.ask({"wrist": picture, "agent": agent}).tolist() == [[-8.0]]


def test_a_camera_policy_answers_pictures_over_the_socket_as_in_this_process(tmp_path):
    """A convolutional policy that was trained on uint8 pictures, over two episodes of its task."""
    folder = trained(tmp_path, "tests.helpers.gym_trees:Signs-v0", {"name": "mlp"}).directory
    policy = rlpipe.load_policy(folder)
    answers = []
    with served(folder) as url, PolicyClient(url) as client, closing(Signs()) as env:
        assert client.metadata["leaves"]["camera/rgb"] == {"dtype": "uint8", "shape": [20, 20, 3]}
        for seed in (3, 4):
            observation, _ = env.reset(seed=seed)
            policy.reset(seed=seed)
            client.begin(seed)
            ended = False
            while not ended:
                observation["sign"] -= 5  # categories are counted from 0
                assert observation["camera"]["rgb"].dtype == np.uint8
                action = policy.act(observation)
                answers.append(client.ask(observation).reshape(action.shape))
                assert np.array_equal(answers[-1], action)
                observation, _, _, ended, _ = env.step(action.reshape(1, 1))
    assert (len(answers), len(np.unique(answers)) > 2) == (16, True)  # which depend on what is seen


@pytest.mark.parametrize(
    ("renamed", "words"),
    [(["x=agnt"], "'agnt', but the policy observes camera/rgb, agent; did you mean 'agent'"),
     (["agent"], "write REQUEST_KEY=LEAF"), (["a=agent", "b=agent"], "two keys")],
)  # fmt: skip
def test_a_map_to_no_leaf_is_refused(renamed, words):
    with pytest.raises(ConfigError) as raised:
        request_keys(CAMERA, renamed)
    assert words in str(raised.value)


def test_a_signal_ends_the_command_and_says_goodbye_to_its_clients(pendulum):
    words = [sys.executable, "-m", "rlpipe", "serve", str(pendulum[0]), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        line = next(line for line in process.stdout if line.startswith("serving at "))
        with connect(line.split()[2]) as connection:
            connection.recv()
            process.send_signal(signal.SIGINT)
            with pytest.raises(ConnectionClosedOK) as closed:
                connection.recv()
        assert closed.value.rcvd.code == 1001
        assert process.wait() == 130
        assert process.stderr.read().endswith("interrupted\n")


def test_a_missing_package_is_named_before_anything_of_it_is_imported(pendulum, monkeypatch):
    stock = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "websockets" else stock(name))
    for module in ("wire", "server", "external.sockets"):
        monkeypatch.setitem(sys.modules, f"rlpipe.serving.{module}", None)  # to import it is an error
    words = "needs the package websockets, which is not installed: pip install 'rlpipe[serve]'"
    answer = command("serve", str(pendulum[0]))
    assert (answer.code, f"rlpipe serve {words}" in " ".join(answer.err.split())) == (2, True)
    with pytest.raises(ConfigError, match=re.escape(f"--policy ws://127.0.0.1:1 {words}")):
        rlpipe.evaluate(pendulum[0], policy="ws://127.0.0.1:1", local=True)


def test_what_cannot_be_served_is_refused_before_anything_listens(pendulum, tmp_path):
    run = str(pendulum[0])
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = str(listening.getsockname()[1])
        for arguments, words in (
            ([run, "--protocol", "grpc"], "--protocol is 'grpc'; legal are openpi, vla-eval"),
            ([run, "--map", "state=qpos"], "--map state=qpos names the leaf 'qpos'"),
            ([run, "--port", port], f"--port {port}: Address already in use"),
            ([run, "--port", "70000"], "--port 70000"),
            ([run, "--host", "no.such.host.invalid"], "--host no.such.host.invalid"),
            ([str(tmp_path / "none")], "neither a run directory nor a checkpoint"),
        ):
            answer = command("serve", *arguments)
            assert (answer.code, answer.out) == (2, "")
            assert words in answer.err.replace("\n", " ")
