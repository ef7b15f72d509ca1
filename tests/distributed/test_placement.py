"""Which node each part goes to: what fits where, and what is said when nothing does."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpipe.distributed.placement import (
    Bundle,
    Node,
    learner_bundle,
    node_table,
    room,
    run_bundles,
    shortage,
    without,
    worker_bundle,
)
from rlpipe.distributed.placement_group import RunPlacement
from rlpipe.distributed.roles import Role
from rlpipe.errors import ConfigError
from tests.helpers import REPOSITORY
from tests.helpers.cluster import LEAN, PATIENT
from tests.helpers.runs import scripted, without_timings

SMALL = Node("small", {"CPU": 2.0}, {"role": "sim"})
LARGE = Node("large", {"CPU": 8.0}, {})
GPU = Node("gpu", {"CPU": 4.0, "GPU": 2.0}, {"role": "learn"})
HEAD = Node("head", {}, {})


def worker(cpus=1.0, **labels):
    return Bundle(Role.ROLLOUT_WORKER, "keys", {"CPU": cpus}, labels)


# --- what fits where


def test_a_bundle_must_fit_on_one_node_whatever_all_have_together():
    assert shortage([worker(3.0)], [SMALL, SMALL]) == "no node that may hold a rollout worker has 3 CPUs (keys)"
    assert shortage([worker(3.0)], [SMALL, LARGE]) is None


def test_each_node_holds_as_many_as_it_can_whole():
    assert room(worker(3.0), [SMALL, LARGE, GPU]) == 3  # none, two and one
    assert room(worker(0.5), [SMALL]) == 4


def test_more_than_there_is_room_for_is_said_with_how_many_fit():
    said = shortage([worker(3.0)] * 4, [LARGE, GPU])
    assert said == "4 rollout workers with 3 CPUs each are wanted (keys), and there is room for 3"


def test_a_head_without_cpus_holds_nothing():
    assert room(worker(), [HEAD]) == 0
    assert shortage([worker()], [HEAD]) == "no node that may hold a rollout worker has 1 CPU (keys)"


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("sim", ["small"]),
        ("!sim", ["large", "gpu"]),
        ("in(sim, learn)", ["small", "gpu"]),
        ("!in(sim, learn)", ["large"]),
    ],
)
def test_labels_select_nodes_as_rays_selectors_do(selector, names):
    assert [node.name for node in (SMALL, LARGE, GPU) if worker(role=selector).suits(node)] == names


def test_a_label_that_nobody_has_is_named():
    said = shortage([worker(role="render")], [SMALL, LARGE])
    assert said == "no node has the labels that a rollout worker needs, role=render (keys)"


def learner(**needs):
    return Bundle(Role.LEARNER, "keys", {name.upper(): float(amount) for name, amount in needs.items()})


def test_what_one_part_takes_is_gone_for_the_others():
    left = without(learner(cpu=2, gpu=1), [SMALL, GPU], sparing=worker())
    assert [node.resources for node in left] == [{"CPU": 2.0}, {"CPU": 2.0, "GPU": 1.0}]


def test_a_learner_takes_the_node_where_it_costs_the_workers_least():
    left = without(learner(cpu=2), [SMALL, LARGE], sparing=worker(role="sim"))
    assert [node.resources["CPU"] for node in left] == [2.0, 6.0]


def test_what_fits_part_by_part_but_not_together_is_told():
    said = shortage([worker(2.0)] * 6 + [learner(cpu=4, gpu=1)], [LARGE, GPU])  # 8 and 4 CPUs
    assert said == "6 rollout workers with 2 CPUs each are wanted (keys), and beside the learner there is room for 4"
    assert shortage([worker(2.0)] * 4 + [learner(cpu=4, gpu=1)], [LARGE, GPU]) is None


def test_parts_that_compete_for_one_gpu_are_told_without_waiting():
    server = replace(learner(cpu=1, gpu=1), role=Role.INFERENCE_SERVER)
    one = Node("gpu", {"CPU": 4.0, "GPU": 1.0}, {})
    said = shortage([worker(), worker(), learner(gpu=1), server], [one])
    assert said is not None
    assert said.endswith("are wanted (keys), and beside the learner there is room for 0")
    assert shortage([worker(), worker(), learner(gpu=1), server], [GPU]) is None


def test_parts_that_want_nodes_of_their_own_get_one_a_node():
    alone = replace(worker(), alone=True)
    assert room(alone, [SMALL, LARGE]) == 2
    said = shortage([alone] * 3, [SMALL, LARGE])
    assert said is not None
    assert "3 rollout workers with 1 CPU each on nodes of their own are wanted (cluster.strategy, keys)" in said
    assert shortage([alone, alone, replace(learner(gpu=1), alone=True)], [SMALL, LARGE, GPU]) is None
    assert shortage([alone, alone, replace(learner(gpu=1), alone=True)], [LARGE, GPU]) is not None


@given(st.lists(st.integers(0, 16), max_size=6), st.integers(1, 4))
def test_what_there_is_room_for_has_no_shortage(cpus, each):
    found = [Node(str(index), {"CPU": float(count)}, {}) for index, count in enumerate(cpus)]
    fit = room(worker(float(each)), found)
    assert shortage([worker(float(each))] * fit, found) is None
    assert shortage([worker(float(each))] * (fit + 1), found) is not None


def test_the_table_of_nodes_shows_what_each_has_and_the_labels_a_user_gave():
    node = Node("gpu", {"CPU": 4.0, "GPU": 2.0, "memory": 1e9}, {"role": "learn", "ray.io/node-id": "0a"})
    assert node_table([node, HEAD]) == "  gpu: 4 CPUs and 2 GPUs, labels role=learn\n  head: 0 CPUs and 0 GPUs"


# --- what the configuration asks for


def test_a_learner_takes_a_gpu_where_a_node_has_one_unless_it_is_to_learn_on_the_cpu(tmp_path):
    assert learner_bundle(scripted(tmp_path), [SMALL, GPU]).resources == {"GPU": 1.0}
    assert learner_bundle(scripted(tmp_path), [SMALL]).resources == {}
    assert learner_bundle(scripted(tmp_path, "learner.device=cpu"), [GPU]).resources == {}
    labelled = scripted(tmp_path, "cluster.learner_nodes={role: sim}")
    assert learner_bundle(labelled, [SMALL, GPU]).resources == {}  # the GPU is elsewhere


def test_a_learner_that_must_have_a_gpu_asks_for_one_that_is_not_there(tmp_path):
    config = scripted(tmp_path, "learner.device=cuda")
    said = shortage(run_bundles(config, [SMALL]), [SMALL])
    assert said is not None
    assert said.startswith("no node that may hold a learner has 1 GPU (learner.device, ")


def test_labels_of_a_learner_that_needs_nothing_else_are_looked_for_too(tmp_path):
    config = scripted(tmp_path, "cluster.learner_nodes={role: render}")
    said = shortage(run_bundles(config, [SMALL]), [SMALL])
    assert said is not None
    assert said.startswith("no node has the labels that a learner needs, role=render")


def test_as_many_workers_as_there_is_room_for_beside_the_learner_share_the_environments(tmp_path):
    assert [bundle.role for bundle in run_bundles(scripted(tmp_path), [LARGE])] == [Role.ROLLOUT_WORKER] * 4 + [
        Role.LEARNER
    ]
    config = scripted(tmp_path, "cluster.cpus_per_learner=5")
    assert len(run_bundles(config, [LARGE])) == 2 + 1  # three CPUs are left, and three do not divide four environments


def test_workers_need_what_the_configuration_says(tmp_path):
    config = scripted(tmp_path, "cluster.cpus_per_worker=2", "cluster.worker_nodes={role: sim}")
    assert (worker_bundle(config).resources, worker_bundle(config).labels) == ({"CPU": 2.0}, {"role": "sim"})


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "cluster.gpus_per_learner=some",
            "cluster.gpus_per_learner is 'some'; it must be a number, at least 0, or auto",
        ),
        ("cluster.strategy=spred", "cluster.strategy is 'spred'; did you mean 'spread'?"),
        ("cluster.placement_timeout=0", "cluster.placement_timeout is 0.0; it must be greater than 0"),
    ],
)
def test_wrong_values_are_refused(tmp_path, override, said):
    with pytest.raises(ConfigError) as refused:
        scripted(tmp_path, override)
    assert said in str(refused.value)


def test_a_ray_of_the_runs_own_is_not_waited_for(ray_cluster):
    with pytest.raises(ConfigError, match=r"the cluster cannot hold this run: no node .* has 99 CPUs"):
        RunPlacement([worker(99.0)], "spread", math.inf, grows=False)


# --- on a simulated cluster


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Outcomes of the runs of ``tests/helpers/placements.py``."""
    patient = {**PATIENT, **LEAN, "RAY_health_check_failure_threshold": "60"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.placements", str(tmp_path_factory.mktemp("cluster"))], cwd=REPOSITORY,
        env={**os.environ, **patient, "PYTHONPATH": str(REPOSITORY)},
        text=True, capture_output=True, timeout=1500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.ray
@pytest.mark.soak
@pytest.mark.timeout(1800)
class TestOnACluster:
    def test_workers_spread_over_the_nodes_for_them_and_the_learner_gets_the_gpu(self, found):
        *workers, learner = found["spread"]["actors"]
        assert sorted(node for node, _ in workers) == ["left", "right"]
        assert learner[0] == "gpu"
        assert found["spread"]["landed"] == {"left": 1, "right": 1}

    def test_the_learner_sees_one_gpu_and_workers_and_logger_none(self, found):
        *workers, learner = found["spread"]["actors"]
        assert [gpus for _, gpus in workers] == ["", ""]
        assert learner[1] in ("0", "1")
        assert found["spread"]["logger"] == ""

    def test_packed_workers_share_a_node_and_a_learner_that_needs_nothing_is_where_the_run_was_started(self, found):
        first, second, learner = found["pack"]["actors"]
        assert first == second
        assert learner == ["head", ""]

    def test_a_run_over_three_nodes_has_the_numbers_of_one_process(self, found):
        distributed, local = map(Path, found["trained"])
        assert len(without_timings(distributed)) == 2
        assert without_timings(distributed) == without_timings(local)

    @pytest.mark.parametrize(
        ("wish", "why"),
        [
            ("too large", "no node that may hold a rollout worker has 3 CPUs ("),  # all together have five
            ("head", "no node that may hold a rollout worker has 1 CPU ("),
            ("nobody", "no node has the labels that a rollout worker needs, role=render ("),
        ],
    )
    def test_what_no_node_can_hold_is_refused_with_what_each_node_has(self, found, wish, why):
        refusal = found[wish]
        assert refusal["error"].startswith(f"the cluster cannot hold this run: {why}")
        for node in ("2 CPUs and 0 GPUs, labels name=left, role=sim", "1 CPU and 2 GPUs, labels name=gpu, role=learn"):
            assert node in refusal["error"]
        assert "cluster.placement_timeout" in refusal["error"]
        assert not refusal["written"]

    def test_nodes_that_others_use_are_waited_for_and_then_named(self, found):
        assert found["reserved"]
        assert found["busy"]["error"].startswith("the nodes of the cluster have no free room now (")
        assert "2 x rollout worker with 1 CPU on role=sim" in found["busy"]["error"]
        assert not found["busy"]["written"]

    def test_a_gpu_that_torch_cannot_use_is_reported_by_the_learner_before_anything_is_written(self, found):
        assert found["no CUDA"]["error"].startswith("learner.device is 'cuda', but torch ")
        assert not found["no CUDA"]["written"]

    def test_while_nodes_are_awaited_an_autoscaler_can_read_what_for(self, found):
        assert found["groups while waiting"] == ["PENDING"]
        assert found["groups after refusals"] == []

    def test_a_node_that_comes_late_is_found(self, found):
        assert {node for node, _ in found["late"]["actors"][:-1]} == {"late"}
