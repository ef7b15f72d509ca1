"""``rlpipe doctor``: what it says of machines that lack something, and what it sees on a real cluster."""

from __future__ import annotations

import io
import json
import os
import socket
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from rich.console import Console

from rlpipe.backends.memory import Memory
from rlpipe.cli.doctor import screen
from rlpipe.config.loading import load_config
from rlpipe.config.sections import options_of
from rlpipe.doctor import servers, versions
from rlpipe.doctor.driver import (
    check_address,
    check_address_file,
    check_authentication,
    check_ray_default,
    check_run_folder,
    check_scratch,
    check_videos,
)
from rlpipe.doctor.facts import Facts, scratch_folder
from rlpipe.doctor.libraries import LIBRARIES, check_libraries, ids
from rlpipe.doctor.machine import NodeLoad, check_machine
from rlpipe.doctor.results import CheckReport, CheckResult
from rlpipe.doctor.servers import check_backends, unreachable
from rlpipe.doctor.simulators import Trial, check_trial, simulators, try_simulators
from rlpipe.doctor.versions import check_versions
from rlpipe.envs.gymnasium.options import GymnasiumConfig
from rlpipe.envs.scripted import Scripted
from rlpipe.errors import ConfigError
from rlpipe.plugins import resolve
from rlpipe.run.provenance import DECIDES_NUMBERS
from tests.helpers.commands import command
from tests.helpers.drawn import needs_drawing
from tests.helpers.runs import scripted

GB = 10**9
HEALTHY = Facts(
    python="3.11.7",
    packages={"ray": "2.60.0", "torch": "2.13.0+cpu", "numpy": "2.4.6"},
    source="52befc72",
    cpus=8.0,
    memory=32 * GB,
    available=30 * GB,
    shared_memory=16 * GB,
    open_files=65536,
    processes=None,
    gpus=(),
    gpu_trouble="",
    scratch="/tmp",
    full=0.5,
    cuda="",
    devices=0,
    rendering=False,
)
LOAD = NodeLoad(cpus=8.0, gpus=0.0, object_store=9 * GB, workers=8)
RTX = "NVIDIA RTX 4090, 550.54, 24564 MiB"


def judged(name: str, *, load: NodeLoad = LOAD, device: str = "auto", **facts: object) -> CheckResult:
    """Result of the check of that name on a healthy machine with these differences."""
    findings = check_machine(replace(HEALTHY, **facts), load, device)
    (found,) = (one for one in findings if one.name == name)
    return found


def test_a_healthy_machine_is_in_order():
    assert {found.status for found in check_machine(HEALTHY, LOAD)} == {"ok"}


def test_every_finding_that_is_not_in_order_comes_with_a_remedy():
    poor = replace(
        HEALTHY, cpus=2, available=GB, shared_memory=64_000_000, open_files=100, processes=100, full=0.99, gpus=(RTX,)
    )
    findings = check_machine(poor, replace(LOAD, gpus=1))
    findings.append(check_trial(Trial("reach (training)", "no module named reach")))
    assert [found.name for found in findings if found.status == "ok"] == ["Vulkan"]
    assert all(found.remedy for found in findings if found.status != "ok")


# --- the resources of a node


def test_the_64_mb_of_docker_are_too_small_for_the_object_store():
    found = judged("shared memory", shared_memory=64_000_000)
    assert found.status == "warn"
    assert "--shm-size=9.5gb" in found.remedy  # 9 GB / 0.95, because Ray takes 95 % of it


def test_ray_may_not_count_more_cpus_than_its_processes_may_use():
    assert judged("CPUs", cpus=2.0).status == "warn"


def test_memory_is_compared_with_what_the_workers_of_the_run_would_take():
    findings = check_machine(replace(HEALTHY, available=3 * GB), LOAD, per_worker=0.5 * GB)
    (found,) = (one for one in findings if one.name == "memory")
    assert found.status == "warn"
    assert "8 rollout workers would take 4.0 GB (0.5 GB each)" in found.message


@pytest.mark.parametrize(("limit", "status"), [(128 + 4 * 8 - 1, "fail"), (1024, "warn"), (4096, "ok")])
def test_the_limit_of_open_files_is_measured_against_rays_busiest_process(limit, status):
    assert judged("open files", open_files=limit).status == status


@pytest.mark.parametrize(("limit", "status"), [(300 + 30 * 8 - 1, "fail"), (300 + 30 * 8, "ok"), (None, "ok")])
def test_the_limit_of_processes_counts_the_threads_of_all_workers(limit, status):
    assert judged("processes", processes=limit).status == status


def test_a_disk_where_ray_moves_no_more_objects_is_told():
    assert judged("Ray's disk", full=0.96).status == "warn"


# --- libraries of simulators


def libraries(*used: tuple[str, str], **versions: str) -> list[CheckResult]:
    """Findings on these versions, hyphens written as underscores, in a run of these simulators and tasks."""
    return check_libraries(
        replace(HEALTHY, packages={name.replace("_", "-"): one for name, one in versions.items()}), used
    )


def test_the_libraries_of_simulators_are_named_and_those_that_are_missing_with_what_installs_them():
    there, missing = libraries(envpool="1.2.5")
    assert (there.status, there.message) == ("ok", "envpool 1.2.5")
    assert missing.message.startswith("not installed: mani_skill (pip install 'rlpipe[maniskill]'); ")
    assert all(library.package in missing.message for library in LIBRARIES if library.package != "envpool")


def test_nodes_are_compared_by_the_versions_of_every_library():
    assert {library.package for library in LIBRARIES} <= set(DECIDES_NUMBERS)


@pytest.mark.parametrize(
    ("versions", "found", "remedy"),
    [
        ({"gymnasium_robotics": "1.4.2", "mujoco": "4.0.0"}, "1.4.2 does not work with mujoco 4.0.0", "mujoco<3.12"),
        ({"gym_pusht": "0.1.6", "pymunk": "7.3.1"}, "gym-pusht 0.1.6 does not work with pymunk 7.3.1", "pymunk<7"),
        ({"robosuite": "1.5.2", "numpy": "2.4.6"}, "robosuite 1.5.2 does not work with numpy 2.4.6", "numpy<2"),
    ],
)
def test_versions_that_do_not_work_together_are_a_warning_with_their_remedy(versions, found, remedy):
    trouble = libraries(**versions)[0]
    assert (trouble.status, found in trouble.message, remedy in trouble.remedy) == ("warn", True, True)


@pytest.mark.parametrize("versions", [{"gymnasium_robotics": "1.4.2", "mujoco": "3.11.0"}, {"mujoco": "4.0.0"}])
def test_versions_that_work_together_are_in_order(versions):
    assert {one.status for one in libraries(**versions)} == {"ok"}


@pytest.mark.parametrize(
    ("used", "status"),
    [
        (("gymnasium", "gymnasium_robotics:FetchPush-v4"), "fail"),
        (("gymnasium", "CartPole-v1"), "warn"),
        (("envpool", "FetchPush-v4"), "warn"),
    ],
)
def test_what_does_not_work_must_be_fixed_for_a_run_that_uses_it(used, status):
    assert libraries(used, gymnasium_robotics="1.4.2", mujoco="4.0.0")[0].status == status


def test_each_of_several_tasks_counts_as_used():
    several = ["CartPole-v1", {"id": "gymnasium_robotics:FetchPush-v4", "share": 2}]
    assert ids(GymnasiumConfig("gymnasium", tasks=several)) == ["CartPole-v1", "gymnasium_robotics:FetchPush-v4"]
    assert ids(GymnasiumConfig("gymnasium", id="CartPole-v1")) == ["CartPole-v1"]


def test_a_task_in_a_python_of_its_own_needs_no_library_here():
    assert ids(GymnasiumConfig("gymnasium", id="CartPole-v1", python="/other")) == []
    several = ["CartPole-v1", {"id": "Acrobot-v1", "python": "/other"}]
    assert ids(GymnasiumConfig("gymnasium", tasks=several)) == ["CartPole-v1"]


@pytest.mark.parametrize(("mujoco", "status"), [("{0}.7", "ok"), ("1.0.0", "warn")])
def test_dm_control_fits_only_the_mujoco_of_its_release(mujoco, status):
    pytest.importorskip("dm_control", reason="needs rlpipe[dm-control]: dm_control is not installed")
    (needed,) = [Requirement(line) for line in metadata.requires("dm-control") if line.startswith("mujoco")]
    least = next(iter(needed.specifier)).version
    found = libraries(dm_control="1.0", mujoco=mujoco.format(least.rpartition(".")[0]))[0]
    assert found.status == status
    assert status == "ok" or f"but with {least}" in found.message


# --- GPUs


def test_no_gpu_is_in_order():
    assert judged("GPU").message == "none; a learner here runs on the CPU"


def test_a_gpu_that_torch_was_not_built_for_names_the_build():
    found = judged("GPU", load=replace(LOAD, gpus=1), gpus=(RTX,), cuda="", devices=0)
    assert (found.status, "built for CPUs" in found.message) == ("warn", True)


def test_a_gpu_that_is_asked_for_and_cannot_be_used_must_be_fixed():
    found = judged("GPU", load=replace(LOAD, gpus=1), device="cuda", gpus=(RTX,), cuda="13.0", devices=0)
    assert (found.status, "CUDA 13.0" in found.message) == ("fail", True)


def test_a_gpu_that_ray_does_not_count_is_not_used():
    found = judged("GPU", gpus=(RTX,), cuda="12.8", devices=1)
    assert (found.status, found.remedy) == ("warn", "start Ray there with --num-gpus 1.")


def test_a_learner_on_the_cpu_needs_nothing_of_a_gpu():
    assert judged("GPU", load=replace(LOAD, gpus=1), device="cpu", gpus=(RTX,), devices=0).status == "ok"


def test_gpus_that_ray_only_pretends_to_have_are_told():
    assert "start Ray there without --num-gpus" in judged("GPU", load=replace(LOAD, gpus=2)).remedy


def test_a_broken_driver_speaks_for_itself():
    found = judged("GPU", gpu_trouble="Failed to initialize NVML: Driver/library version mismatch")
    assert "Driver/library version mismatch" in found.message


def test_two_gpus_that_work_are_counted():
    found = judged("GPU", load=replace(LOAD, gpus=2), gpus=(RTX, RTX), cuda="12.8", devices=2)
    assert (found.status, found.message) == ("ok", f"2 x {RTX}, CUDA 12.8")


def test_without_vulkan_it_is_said_what_that_means():
    assert "state observations need none" in judged("Vulkan", rendering=False).message
    assert all(found.name != "Vulkan" for found in check_machine(replace(HEALTHY, rendering=None), LOAD))


@pytest.mark.parametrize(("workers", "rendering", "status"), [(8, False, "fail"), (0, False, "ok"), (8, True, "ok")])
def test_cameras_need_vulkan_where_a_worker_goes(workers, rendering, status):
    found = check_machine(replace(HEALTHY, rendering=rendering), replace(LOAD, workers=workers), cameras=True)
    (vulkan,) = (one for one in found if one.name == "Vulkan")
    assert vulkan.status == status
    assert ("env.train.obs_mode" in vulkan.message and "mesa-vulkan-drivers" in vulkan.remedy) == (status == "fail")


# --- versions


def version_check(needed: str = "torch>=2.5", **facts: object) -> CheckResult:
    """Finding about a node that differs from the machine that asks."""
    (found,) = check_versions(HEALTHY, {"b": replace(HEALTHY, **facts)}, [Requirement(needed)])
    return found


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"python": "3.12.1"}, "Python is 3.12, but 3.11 on"),
        ({"packages": {**HEALTHY.packages, "numpy": "1.26.4"}}, "numpy is 1.26.4, but 2.4.6 on"),
        ({"packages": {"ray": "2.60.0", "numpy": "2.4.6"}}, "torch is missing"),
    ],
)
def test_a_node_that_runs_something_else_must_be_fixed(facts, told):
    found = version_check(**facts)
    assert (found.status, found.node) == ("fail", "b")
    assert told in found.message


def test_source_that_somebody_may_be_editing_stops_no_run():
    found = version_check(source="00000000")
    assert (found.status, "differs (00000000) from" in found.message) == ("warn", True)


@pytest.mark.parametrize("facts", [{"python": "3.11.2"}, {"packages": {**HEALTHY.packages, "torch": "2.13.0+cu130"}}])
def test_another_patch_of_python_or_build_of_torch_is_no_difference(facts):
    assert version_check(**facts).status == "ok"


def test_a_package_outside_the_range_that_rlpipe_declares_must_be_fixed():
    found = version_check("torch>=3")
    assert (found.status, found.remedy) == ("fail", "pip install 'torch>=3'")


# --- what concerns the machine that asks


@pytest.fixture
def listener():
    """Port of this machine where something accepts connections."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


@pytest.fixture
def silent_port():
    """Port of this machine where nothing does."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return server.getsockname()[1]


def test_an_address_where_nothing_answers_is_told_at_once(silent_port):
    found = check_address(f"127.0.0.1:{silent_port}")
    assert (found.status, "refused" in found.message) == ("fail", True)  # no deadline has passed


def test_the_address_auto_is_never_tried():
    assert check_address("auto").status == "fail"


@pytest.mark.parametrize(
    ("address", "whose"), [("http://head:8265", "of the job server"), ("ray://head:10001", "for Ray Client")]
)
def test_an_address_that_is_not_for_joining_is_told_with_the_one_that_is(address, whose):
    found = check_address(address)
    assert (whose in found.message, found.remedy) == (True, "--ray-address head:6379, or unset RAY_ADDRESS.")


def test_an_address_where_something_answers_is_joined(listener):
    assert check_address(f"127.0.0.1:{listener}") is None


def test_the_address_that_a_dead_ray_left_behind_is_told(tmp_path, listener, silent_port):
    file = tmp_path / "ray_current_cluster"
    assert check_address_file(file) is None
    file.write_text(f"127.0.0.1:{listener}")
    assert check_address_file(file) is None
    file.write_text(f"127.0.0.1:{silent_port}")
    assert check_address_file(file).remedy.startswith(f"rm {file}")


@pytest.mark.parametrize(
    ("environ", "address", "status"),
    [
        ({}, None, "ok"),
        ({}, "head:6379", "ok"),
        ({"RAY_AUTH_MODE": "token"}, "head:6379", "fail"),
        ({"RAY_AUTH_MODE": "token"}, None, "ok"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}, "head:6379", "ok"),
        ({"RAY_AUTH_TOKEN_PATH": "/nowhere/token"}, None, "fail"),
    ],
)
def test_a_token_that_ray_will_ask_for_must_be_there(tmp_path, environ, address, status):
    assert check_authentication(environ, tmp_path, address).status == status


def test_a_token_file_that_turns_authentication_on_for_others_is_told(tmp_path):
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("f" * 64)
    assert check_authentication({}, tmp_path, None).status == "warn"
    assert check_authentication({"RAY_AUTH_MODE": "token"}, tmp_path, "head:6379").status == "ok"


def test_a_run_folder_that_cannot_be_written_must_be_fixed(tmp_path):
    (tmp_path / "file").touch()
    assert check_run_folder(scripted(tmp_path / "new" / "folder")).status == "ok"
    assert check_run_folder(scripted(tmp_path / "file" / "runs")).status == "fail"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


@dataclass(frozen=True)
class ServiceOptions:
    url: str = ""


class Service(Memory):
    """A backend with a server."""

    Config = ServiceOptions

    @classmethod
    def server(cls, options: ServiceOptions) -> str:
        return options.url


def without_proxies(monkeypatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def tracked(tmp_path, url: str) -> list[CheckResult]:
    name = "tests.doctor.test_doctor:Service"
    logger = {"log_path": str(tmp_path), "logger_backends": [name], "options": {name: {"url": url}}}
    return check_backends(scripted(tmp_path, runner={"logger": logger}))()


def test_a_tracker_that_does_not_answer_stops_no_run(tmp_path, monkeypatch, listener, silent_port):
    without_proxies(monkeypatch)
    (up,), (down,) = (tracked(tmp_path, f"http://127.0.0.1:{port}") for port in (listener, silent_port))
    assert (up.status, down.status) == ("ok", "warn")
    assert "rlpipe sync RUN" in down.remedy


def test_a_name_that_nobody_resolves_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(30))
    monkeypatch.setattr(servers, "REACH_SECONDS", 0.1)
    assert unreachable("tracker.invalid", 80) == "no answer within 0.1 s"


def test_behind_a_proxy_it_is_the_proxy_that_must_answer(tmp_path, monkeypatch, listener):
    without_proxies(monkeypatch)
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{listener}")
    (found,) = tracked(tmp_path, "https://tracker.invalid")
    assert (found.status, found.message) == ("ok", "tracker.invalid answers through the proxy 127.0.0.1")


def test_a_tracker_without_a_server_is_not_asked_anything(tmp_path):
    assert tracked(tmp_path, "") == []


def test_rays_extra_is_asked_for_only_where_something_needs_it(tmp_path):
    prometheus = replace(scripted(tmp_path).runner.logger, logger_backends=["prometheus"])
    config = scripted(tmp_path)
    config = replace(config, runner=replace(config.runner, logger=prometheus))
    asked = [
        check_ray_default("aiohttp", joined=joined, config=given)
        for joined, given in [(False, None), (True, None), (False, config)]
    ]
    assert [found.status for found in asked] == ["ok", "warn", "fail"]


# --- the simulator


def test_the_simulator_takes_ten_steps_and_is_timed(tmp_path):
    (trial,) = try_simulators(simulators(scripted(tmp_path)))
    assert (trial.task, trial.failure) == ("scripted (training)", "")
    assert trial.speed > 0
    assert check_trial(trial).status == "ok"


def test_the_simulators_of_all_stages_and_of_evaluation_are_tried_each_once():
    config = load_config("configs/ppo_push_cube.yaml")
    modes = {name: options.reward_mode for name, options in simulators(config).items()}
    assert list(modes.values()) == ["normalized_dense", "sparse"]  # evaluation is like the second stage
    assert list(modes) == [stage.name for stage in config.stages]


def test_a_simulator_that_cannot_be_made_says_what_is_wrong(tmp_path):
    env = {"train": {"name": "gymnasium", "id": "CartPole-v1", "total_num_envs": 4, "kwargs": {"wheels": 5}}}
    (trial,) = try_simulators(simulators(scripted(tmp_path, env=env)))
    found = check_trial(trial)
    assert (found.status, "wheels" in found.message) == ("fail", True)


def test_a_reward_that_is_not_a_number_must_be_fixed(tmp_path):
    script = [[{"length": 3, "reward": float("nan")}]]
    env = {"train": {"name": "scripted", "total_num_envs": 4, "script": script}}
    (trial,) = try_simulators(simulators(scripted(tmp_path, env=env)))
    assert "not finite" in trial.failure


# --- what is shown


def shown(*findings: CheckResult, nodes: int = 1) -> str:
    console = Console(width=120, file=io.StringIO())
    with console.capture() as captured:
        console.print(screen(CheckReport(list(findings), [f"node-{n}" for n in range(nodes)], 3.0)))
    return captured.get()


def test_nodes_that_say_the_same_share_a_line():
    same = [CheckResult("memory", "warn", "1.0 GB free.", "buy more.", f"node-{n}") for n in range(5)]
    text = shown(*same, CheckResult("memory", "ok", "30 GB free", node="node-5"), nodes=6)
    assert text.count("1.0 GB free.") == text.count("buy more.") == 1
    assert "node-0, node-1, node-2 and 2 more" in text


def test_of_many_nodes_in_order_only_the_first_are_listed():
    text = shown(*(CheckResult("memory", "ok", f"{n} GB free", node=f"node-{n}") for n in range(10, 30)), nodes=20)
    assert "and 17 more" in text


def test_the_last_line_says_whether_all_is_ready():
    fine, weak, broken = (CheckResult("x", status, "y", "z") for status in ("ok", "warn", "fail"))
    assert "Ready  1 check in 3 s" in shown(fine)
    assert "Ready, but 1 could be better" in shown(fine, weak)
    assert "Not ready: 2 things must be fixed, 1 could be better" in shown(
        broken, fine, replace(broken, name="v"), weak
    )


def test_a_fault_that_many_nodes_have_is_one_thing_to_fix():
    assert "1 thing must be fixed" in shown(
        *(CheckResult("x", "fail", "y", "z", f"node-{n}") for n in range(3)), nodes=3
    )


def environment_of(monkeypatch, **variables):
    for name in ("RAY_TMPDIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize(
    ("bytes_of_path", "problem"), [(39, ""), (40, "has 40 bytes, while Ray's sockets leave room for 39")]
)
def test_a_folder_of_temporary_files_too_long_for_a_socket_is_replaced_by_a_short_one(
    monkeypatch, bytes_of_path, problem
):
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        folder = Path(short, "a" * (bytes_of_path - len(short) - 1))
        folder.mkdir()
        environment_of(monkeypatch, TMPDIR=folder)
        found = scratch_folder()
    assert (found.path, found.usable) == ("/tmp" if problem else str(folder), True)
    assert problem in found.problem


@pytest.mark.parametrize("named", ["missing", "file", "é"])
def test_a_folder_of_temporary_files_that_cannot_be_written_is_replaced(monkeypatch, tmp_path, named):
    (tmp_path / "file").touch()
    (tmp_path / "é").mkdir()
    monkeypatch.chdir(tmp_path)
    environment_of(monkeypatch, TMPDIR=named)
    found = scratch_folder()
    assert found.path == "/tmp"
    result = check_scratch(found)
    assert (result.status, result.remedy.split(",")[0]) == ("warn", "export RAY_TMPDIR=/tmp")
    assert f"TMPDIR is {named}, which" in result.message
    environment_of(monkeypatch, RAY_TMPDIR="/tmp", TMPDIR=named)
    assert check_scratch(scratch_folder()) is None


def test_a_folder_that_rays_own_variable_names_is_never_replaced(monkeypatch):
    environment_of(monkeypatch, RAY_TMPDIR="/nowhere")
    found = scratch_folder()
    assert not found.usable
    assert check_scratch(found).sentence.startswith(
        "temporary files: RAY_TMPDIR is /nowhere, which cannot be written: no such file or directory. Remedy: export "
    )


def test_the_status_of_a_report_is_its_worst():
    findings = [CheckResult("x", status, "y") for status in ("ok", "fail", "warn")]
    assert CheckReport(findings, [], 0.0).as_json()["status"] == "fail"


# --- on Ray


class Crashing(Scripted):
    """A simulator whose driver kills the process."""

    @classmethod
    def make(cls, config, num_envs, next_seed):
        os._exit(11)


class Hanging(Scripted):
    """One that waits for an answer on a terminal that nobody reads."""

    @classmethod
    def make(cls, config, num_envs, next_seed):
        time.sleep(600)


def with_simulator(tmp_path, name: str, **options: object):
    return scripted(
        tmp_path, env={"train": {"name": f"tests.doctor.test_doctor:{name}", "total_num_envs": 2, **options}}
    )


def of(report: CheckReport, name: str) -> list[CheckResult]:
    return [found for found in report.findings if found.name.startswith(name)]


@pytest.mark.soak
@pytest.mark.usefixtures("ray_cluster")
def test_every_node_that_may_get_a_worker_tries_the_simulator(tmp_path):
    from rlpipe.distributed.node_checks import examine

    report = examine(scripted(tmp_path), patience=600)
    assert report.status != "fail", [found.sentence for found in report.findings]
    assert [found.node for found in of(report, "simulator")] == report.nodes
    assert of(report, "Ray")[0].message == "1 node with 2 CPUs and 0 GPUs"


@pytest.mark.usefixtures("ray_cluster")
def test_who_looks_for_gpus_sees_those_of_the_node_though_it_reserves_none():
    import ray

    from rlpipe.distributed.node_checks import nodes_to_check, run_task

    (node,), _ = nodes_to_check(None)
    asked = run_task(node, lambda name: os.environ[name], "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO")
    assert ray.get(asked, timeout=600) == "0"


@pytest.mark.soak
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(("name", "patience", "silent"), [("Crashing", 600, False), ("Hanging", 1, True)])
def test_a_simulator_that_crashes_or_hangs_is_a_finding(tmp_path, name, patience, silent):
    from rlpipe.distributed.node_checks import examine

    report = examine(with_simulator(tmp_path, name), patience=patience)
    (found,) = of(report, "simulator")
    assert (found.status, found.node) == ("fail", report.nodes[0])
    assert (found.message == "no answer in time.") == silent


@pytest.mark.usefixtures("ray_cluster")
def test_workers_that_no_node_can_hold_are_told(tmp_path):
    from rlpipe.distributed.node_checks import nodes_to_check

    _, (_, found) = nodes_to_check(scripted(tmp_path, "cluster.cpus_per_worker=3"))
    assert (found.name, found.status, "3 CPUs" in found.message) == ("placement", "fail", True)


@pytest.mark.soak
@pytest.mark.usefixtures("ray_cluster")
def test_the_short_form_lets_a_healthy_run_begin_and_stops_one_that_cannot(tmp_path, monkeypatch):
    import ray

    from rlpipe.distributed.node_checks import preflight

    assert {found.status for found in preflight(scripted(tmp_path), {})} <= {"warn"}
    with pytest.raises(ConfigError, match=r"cannot carry this run:\n  open files on .* with 1000000000 workers"):
        preflight(scripted(tmp_path), {node["NodeID"]: 10**9 for node in ray.nodes()})
    monkeypatch.setattr(versions, "requirements", lambda: [Requirement("torch>=99")])
    with pytest.raises(ConfigError, match=r"cannot carry this run:\n  versions on .* Remedy: pip install 'torch>=99'"):
        preflight(scripted(tmp_path), {})


def test_a_run_goes_on_without_the_answer_of_a_slow_node_and_not_with_an_error_for_one():
    from rlpipe.distributed.node_checks import tolerated

    slow, broken = (CheckResult("node", "fail", told) for told in ("no answer in time.", "No module named 'rlpipe'"))
    assert (tolerated(slow).status, tolerated(broken).status) == ("warn", "fail")


def test_nodes_that_share_a_host_have_names_of_their_own():
    from rlpipe.distributed.nodes import by_unique_name

    nodes = [
        {"NodeManagerHostname": host, "NodeManagerAddress": address, "NodeID": node_id}
        for host, address, node_id in [("a", "10.0.0.1", "11"), ("b", "10.0.0.2", "22"), ("b", "10.0.0.3", "33")]
    ]
    assert list(by_unique_name(nodes)) == ["a", "b (10.0.0.2)", "b (10.0.0.3)"]
    assert list(by_unique_name([{**node, "NodeManagerAddress": "127.0.0.1"} for node in nodes])) == [
        "a",
        "b (22)",
        "b (33)",
    ]


def test_the_command_exits_with_1_and_says_why_as_json(tmp_path, monkeypatch, silent_port):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # whatever other tests have begun in this process
    answer = command("doctor", "--json", "--ray-address", f"127.0.0.1:{silent_port}")
    assert answer.code == 1, answer.err
    report = json.loads(answer.out)
    assert (report["status"], report["findings"][0]["name"]) == ("fail", "Ray")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "options", "server"),
    [
        ("wandb", {"mode": "online"}, "https://api.wandb.ai"),
        ("wandb", {"mode": "offline"}, ""),
        ("mlflow", {"tracking_uri": "http://mlflow:5000"}, "http://mlflow:5000"),
        ("mlflow", {"tracking_uri": "sqlite:///mlflow.db"}, ""),
        ("swanlab", {"mode": "local"}, ""),
        ("swanlab", {"mode": "cloud"}, "https://api.swanlab.cn"),
        ("trackio", {}, ""),
    ],
)
def test_a_backend_says_which_server_it_sends_to(monkeypatch, name, options, server):
    for variable in ("WANDB_BASE_URL", "SWANLAB_API_HOST", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)
    backend = resolve("backends", name, "logger_backends")
    assert backend.server(options_of(name, backend.Config, options)) == server


def test_videos_that_cannot_be_drawn_matter_only_to_a_run_that_wants_them(tmp_path, monkeypatch):
    needs_drawing()
    assert check_videos(None).message.startswith("can be drawn without a display")
    monkeypatch.setenv("MUJOCO_GL", "bogus")
    assert check_videos(scripted(tmp_path)).status == "ok"
    found = check_videos(scripted(tmp_path, "evaluation.videos=1"))
    assert (found.status, "bogus" in found.message, found.remedy.startswith("unset MUJOCO_GL")) == ("fail", True, True)
