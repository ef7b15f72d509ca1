"""Inference on a server: who waits for whom, the same actions as in a worker, and what comes of a server that fails."""

from __future__ import annotations

import time
from concurrent.futures import wait
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import rlpipe
from rlpipe.collection import decisions
from rlpipe.collection.inference import InferenceServer
from rlpipe.collection.worker import RolloutWorker
from rlpipe.config.schema import Config
from rlpipe.distributed.placement import Node, inference_bundles
from rlpipe.doctor.servers import in_background
from rlpipe.errors import ConfigError
from rlpipe.metrics import CATALOGUE
from rlpipe.metrics.window import merged
from rlpipe.policies.base import NoWeights, Snapshot, build_policy
from rlpipe.policies.mlp import MLPPolicy
from tests.helpers.kinds import KINDS
from tests.helpers.runs import gru, lines, sac, scripted, without_timings

WAIT_FOR_ALL = "rollout.inference_wait=null"
SERVED = "rollout.inference=server"
METRICS = {name for name, metric in CATALOGUE.items() if metric.needs == "inference on a server"}


class Breaks(MLPPolicy):
    """A policy that cannot act."""

    def act(self, observations, noise):
        raise ArithmeticError("the network is broken")


def gru_on_tree(tmp_path, *overrides: str) -> Config:
    """A policy with a memory that sees a tree; fragments end within episodes, which have 8 steps."""
    return KINDS["tree, gru, shared encoder, ppo"].config(tmp_path, "rollout.horizon=5", *overrides)


def policy_of(config: Config):
    """The policy with its first weights, as a worker has it."""
    return build_policy(config, RolloutWorker(config.schedule, 0, 1).ready().spec)


def server_for(config: Config, workers: int) -> InferenceServer:
    """A server that has the first weights and expects these workers."""
    server = InferenceServer(config, RolloutWorker(config.schedule, 0, 1).ready().spec, 0, range(workers))
    server.load(Snapshot(0, NoWeights.FROM_SEED))
    return server


def rows(rank, count=2):
    """Observations and noise of one worker."""
    generator = np.random.default_rng(rank)
    return [generator.normal(size=(count, width)).astype(np.float32) for width in (4, 1)]


def ask(server, threads, *ranks, count=2, version=0, each=False):
    """Requests of several workers, in this order."""
    asked = []
    for rank in ranks:
        asked.append(threads.submit(server.act, rank, version, *rows(rank, count), each))
        while len(server._waiting) < len([one for one in asked if not one.done()]):
            time.sleep(0.001)
    return asked


@pytest.fixture
def threads():
    """Gives a thread to each call; one that is never answered holds up neither its test nor the end of all."""
    return SimpleNamespace(submit=in_background)


def read(window):
    return window.read(list(CATALOGUE.values()))


# --- who waits for whom


def test_one_pass_answers_all_workers_each_with_its_own_rows(tmp_path, threads):
    config = scripted(tmp_path, WAIT_FOR_ALL)
    server = server_for(config, 3)
    answers = [one.result(60) for one in ask(server, threads, 2, 0, 1)]
    for rank, (actions, log_probs, memories) in zip((2, 0, 1), answers, strict=True):
        with torch.no_grad():
            own = policy_of(config).act(*map(torch.from_numpy, rows(rank)))
        np.testing.assert_allclose(actions, own[0], atol=1e-6)
        np.testing.assert_allclose(log_probs, own[1], atol=1e-6)
        assert memories is None
    for rank in range(3):
        server.release(rank)
    found = read(server.window(Snapshot(0, NoWeights.FROM_SEED)))
    assert (found["rollout/inference_batch_size"], found["rollout/inference_batch_size_max"]) == (6, 6)


def test_whoever_asks_first_waits_as_long_as_configured(tmp_path, threads):
    server = server_for(scripted(tmp_path, "rollout.inference_wait=50"), 2)
    began = time.perf_counter()
    ask(server, threads, 1)[0].result(60)
    assert time.perf_counter() - began >= 0.05
    for rank in range(2):
        server.release(rank)
    found = read(server.window(Snapshot(0, NoWeights.FROM_SEED)))
    assert found["rollout/inference_batch_size"] == 2
    assert found["time/inference_wait"] == found["time/inference_wait_max"] >= 0.05


def test_without_a_limit_whoever_asks_first_waits_for_all(tmp_path, threads):
    server = server_for(scripted(tmp_path, WAIT_FOR_ALL), 2)
    first = ask(server, threads, 0)
    assert not wait(first, timeout=0.1).done
    wait(first + ask(server, threads, 1), timeout=600)
    assert first[0].done()


def test_nobody_waits_for_a_worker_that_has_left(tmp_path, threads):
    server = server_for(scripted(tmp_path, WAIT_FOR_ALL), 2)
    first = ask(server, threads, 0)
    server.release(1)
    assert first[0].result(60)


def test_a_full_batch_waits_for_nobody_and_no_request_is_cut(tmp_path, threads):
    server = server_for(scripted(tmp_path, WAIT_FOR_ALL, "rollout.max_inference_batch=5"), 4)
    asked = ask(server, threads, 0, 1, 2)  # 2 + 2 rows, and 2 more, which are too many for one pass
    assert [len(one.result(60)[0]) for one in asked[:2]] == [2, 2]
    assert not wait(asked[2:], timeout=0.1).done
    server.release(0), server.release(1), server.release(3)
    assert len(asked[2].result(60)[0]) == 2


def test_the_order_in_which_workers_ask_changes_no_bit(tmp_path, threads):
    server = server_for(scripted(tmp_path, WAIT_FOR_ALL), 3)
    first, second = ([one.result(60) for one in ask(server, threads, *ranks)] for ranks in ((0, 1, 2), (2, 1, 0)))
    for one, other in zip(first, reversed(second), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one[:2], other[:2], strict=True))


def test_evaluation_waits_for_nobody_and_computes_each_row_by_itself(tmp_path, threads):
    config = scripted(tmp_path, WAIT_FOR_ALL)
    server = server_for(config, 2)
    actions, log_probs, _ = ask(server, threads, 0, count=3, each=True)[0].result(60)
    observations, noise = map(torch.from_numpy, rows(0, 3))
    with torch.no_grad():
        alone = [policy_of(config).act(observations[n : n + 1], noise[n : n + 1]) for n in range(3)]
    assert np.array_equal(actions, torch.cat([own for own, _ in alone]))
    assert np.array_equal(log_probs, torch.cat([own for _, own in alone]))
    server.release(0), server.release(1)
    assert "rollout/inference_batch_size" not in read(server.window(Snapshot(0, NoWeights.FROM_SEED)))


# --- what goes wrong reaches whoever waits


def test_a_request_for_other_weights_is_never_answered(tmp_path, threads):
    server = server_for(scripted(tmp_path), 1)
    with pytest.raises(RuntimeError, match=r"worker 0 acts with version 3 of the policy, but .* holds version 0"):
        ask(server, threads, 0, version=3)[0].result(60)


def test_everybody_hears_of_a_policy_that_raises_and_the_server_goes_on(tmp_path, threads):
    server = server_for(scripted(tmp_path, WAIT_FOR_ALL, policy={"name": "tests.collection.test_inference:Breaks"}), 2)
    for _ in range(2):
        for one in ask(server, threads, 0, 1):
            with pytest.raises(ArithmeticError, match="the network is broken"):
                one.result(60)


# --- the same as in a worker


@pytest.mark.parametrize(
    "configured", [scripted, sac, gru, gru_on_tree], ids=["mlp", "squashed_gaussian", "gru", "gru on a tree"]
)
def test_workers_that_ask_a_server_do_what_workers_with_the_policy_do(tmp_path, threads, monkeypatch, configured):
    # Workers are processes, each with global generators of its own; two threads would seed those of one another.
    monkeypatch.setattr(decisions, "seed_global_generators", lambda *_: None)
    config = configured(tmp_path, WAIT_FOR_ALL)
    plan, server = config.schedule, server_for(config, 2)
    here = [RolloutWorker(plan, rank, 2).collect(Snapshot(0, NoWeights.FROM_SEED), 0) for rank in range(2)]
    asking = [RolloutWorker(plan, rank, 2, 0, server) for rank in range(2)]
    there = [
        one.result(60)
        for one in [threads.submit(worker.collect, Snapshot(0, NoWeights.FROM_SEED), 0) for worker in asking]
    ]
    for (own, _), (other, _) in zip(here, there, strict=True):
        np.testing.assert_allclose(own.actions, other.actions, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(own.log_probs, other.log_probs, rtol=1e-6, atol=1e-6)
        assert np.array_equal(own.rewards, other.rewards)
    read_here = read(merged([window for _, window in here]))
    read_there = read(merged([*(window for _, window in there), server.window(Snapshot(0, NoWeights.FROM_SEED))]))
    assert METRICS & read_here.keys() == set()
    assert read_there.keys() >= METRICS | read_here.keys()
    assert read_there["rollout/inference_batch_size"] == 4  # of two workers with two environments each
    assert read_there["time/rollout/predict"] <= read_there["time/env/recv_wait"]


@pytest.mark.parametrize("configured", [scripted, gru, gru_on_tree], ids=["mlp", "gru", "gru on a tree"])
def test_one_worker_that_asks_a_server_gets_the_same_bits_as_with_the_policy(tmp_path, configured):
    config = configured(tmp_path)
    own, asking = (RolloutWorker(config.schedule, 0, 1, 0, server) for server in (None, server_for(config, 1)))
    for _ in range(2):
        here, there = (worker.collect(Snapshot(0, NoWeights.FROM_SEED), 0)[0] for worker in (own, asking))
        assert np.array_equal(here.actions, there.actions)
        assert np.array_equal(here.log_probs, there.log_probs)
    if configured is not scripted:
        assert np.array_equal(here.memories, there.memories)
        assert here.memories.any(axis=1).all()  # in the midst of an episode


@pytest.mark.parametrize(
    ("configured", "deterministic"), [(scripted, True), (scripted, False), (gru, False), (gru_on_tree, False)]
)
def test_an_evaluation_through_a_server_is_that_of_a_worker_to_the_last_bit(tmp_path, configured, deterministic):
    config = configured(tmp_path, f"evaluation.deterministic={deterministic}")
    own, asking = (RolloutWorker(config.schedule, 0, 1, 0, server) for server in (None, server_for(config, 1)))
    assert (
        own.evaluate(Snapshot(0, NoWeights.FROM_SEED)).eval_episodes
        == asking.evaluate(Snapshot(0, NoWeights.FROM_SEED)).eval_episodes
    )


def test_a_worker_that_asks_a_server_has_no_weights(tmp_path):
    config = scripted(tmp_path)
    worker = RolloutWorker(config.schedule, 0, 1, 0, server_for(config, 1))
    assert {tensor.device.type for tensor in worker._policy._policy.state_dict().values()} == {"meta"}


# --- configuration and placement


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rollout.inference=serve", "rollout.inference is 'serve'; did you mean 'server'?"),
        ("rollout.num_inference_servers=0", "rollout.num_inference_servers is 0; it must be at least 1"),
        ("rollout.max_inference_batch=0", "rollout.max_inference_batch is 0; it must be at least 1"),
        ("rollout.inference_wait=-1", "rollout.inference_wait is -1.0; it must be at least 0"),
        ("cluster.cpus_per_inference_server=0", "cluster.cpus_per_inference_server is 0.0; it must be greater than 0"),
        (
            "cluster.gpus_per_inference_server=one",
            "cluster.gpus_per_inference_server is 'one'; it must be a number, at least 0, or auto",
        ),
    ],
)
def test_wrong_values_are_refused(tmp_path, override, said):
    with pytest.raises(ConfigError) as refused:
        scripted(tmp_path, override)
    assert said in str(refused.value)


def test_one_process_has_no_use_for_a_server_and_says_so(tmp_path):
    with pytest.raises(ConfigError, match=r"with --local one acts at a time: set rollout.inference=local"):
        rlpipe.train(scripted(tmp_path, SERVED), local=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "gpus", "wanted"),
    [
        ([], 0, [{"CPU": 1.0}]),
        ([], 1, [{"CPU": 1.0, "GPU": 1.0}]),
        (["rollout.num_inference_servers=2"], 1, [{"CPU": 1.0}] * 2),  # one GPU is not enough for both
        (["cluster.gpus_per_inference_server=0.5", "cluster.cpus_per_inference_server=4"], 0, [{"CPU": 4, "GPU": 0.5}]),
        (["cluster.gpus_per_inference_server=1"], 0, [{"CPU": 1.0, "GPU": 1.0}]),
        (["cluster.gpus_per_inference_server=0"], 1, [{"CPU": 1.0}]),
        (["cluster.inference_nodes={role: gpu}"], 1, [{"CPU": 1.0}]),  # the GPU is elsewhere
    ],
)
def test_a_server_takes_a_gpu_where_there_is_one_for_each(tmp_path, overrides, gpus, wanted):
    found = [Node("node", {"CPU": 8.0, "GPU": gpus}, {}), Node("other", {"CPU": 8.0}, {"role": "gpu"})]
    bundles = inference_bundles(scripted(tmp_path, SERVED, *overrides), found)
    assert [bundle.resources for bundle in bundles] == wanted


def test_workers_that_act_by_themselves_need_no_server(tmp_path):
    assert inference_bundles(scripted(tmp_path), [Node("node", {"CPU": 8.0}, {})]) == []


# --- on Ray

SMALL = ("cluster.cpus_per_worker=0.5", "cluster.cpus_per_inference_server=0.5")


@pytest.mark.usefixtures("ray_cluster")
class TestOnRay:
    """Servers in processes of their own."""

    @pytest.mark.parametrize(
        ("configured", "servers"),
        [
            pytest.param(gru, 1, id="gru, one server"),
            pytest.param(sac, 2, id="sac, two servers that share the workers", marks=pytest.mark.soak),
        ],
    )
    def test_a_run_with_a_server_gives_the_same_metrics_as_one_process(self, tmp_path, configured, servers):
        short = ("runner.total_timesteps=128", "evaluation.episodes=4")
        options = ("rollout.num_workers=2", *short, *SMALL, WAIT_FOR_ALL)
        local = rlpipe.train(configured(tmp_path, *options), local=True).directory
        options += (SERVED, f"rollout.num_inference_servers={servers}")
        served = rlpipe.train(configured(tmp_path, *options)).directory
        batch = 4 // servers  # of two workers with two environments each
        for here, there in zip(without_timings(local), without_timings(served), strict=True):
            assert there.pop("rollout/inference_batch_size") == there.pop("rollout/inference_batch_size_max") == batch
            assert there == pytest.approx(here, rel=1e-6, abs=1e-6)
        assert lines(served, "metrics.jsonl")[-1]["metrics"].keys() >= METRICS

    def test_more_servers_than_workers_are_refused(self, tmp_path):
        config = scripted(tmp_path, SERVED, "rollout.num_inference_servers=2", "rollout.num_workers=1", *SMALL)
        with pytest.raises(ConfigError, match=r"num_inference_servers is 2, but there are 1 rollout workers"):
            rlpipe.train(config)
