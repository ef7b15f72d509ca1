"""The process from which the workers of a run's own Ray are forked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rlpipe.distributed import process_template, worker_entry
from rlpipe.distributed.process_template import ProcessTemplate, template_for
from tests.helpers import REPOSITORY
from tests.helpers.runs import scripted

REPORT = """
import json, os, sys
loaded = [name for name in ("torch", "ray") if name in sys.modules]
report = {"loaded": loaded, "arguments": sys.argv[1:], "group": os.getpgid(0) == os.getpid(), "folder": os.getcwd()}
report |= {"sign": os.environ.get("SIGN"), "parent": os.getppid(), "pid": os.getpid()}
print(json.dumps(report), flush=True)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "program.py"
    file.write_text(REPORT)
    return file


@pytest.fixture(scope="module")
def template():
    """The template of a run, with torch."""
    made = ProcessTemplate({"OMP_NUM_THREADS": "1"})
    yield made
    made.end()


@pytest.fixture
def quick_template(monkeypatch):
    """A template without torch, which a test may spoil."""
    monkeypatch.setattr(process_template, "_WORKER_MODULE", "json")
    made = ProcessTemplate({"OMP_NUM_THREADS": "1"})
    yield made
    made.end()


def report(program: Path, socket: str, **variables: str) -> dict:
    """Runs the entry as Ray's node would, and returns what the program says in its place."""
    output = program.with_name(f"output-{time.monotonic_ns()}")
    environment = {**os.environ, worker_entry.SOCKET: socket, worker_entry.PROGRAM: str(program), **variables}
    with output.open("w") as file:
        command = [sys.executable, worker_entry.__file__, "--one", "two"]
        subprocess.run(command, check=True, stdout=file, cwd=program.parent, env=environment, timeout=600)
    ends = time.monotonic() + 600
    while not output.read_text().endswith("\n"):
        assert time.monotonic() < ends
        time.sleep(0.05)
    return json.loads(output.read_text())


def test_a_worker_is_forked_with_torch_and_without_ray_and_has_what_its_node_gave_it(template, program):
    found = report(program, template.socket, SIGN="green")
    assert found["loaded"] == ["torch"]
    assert found["arguments"] == ["--one", "two"]
    assert found["sign"] == "green"
    assert found["folder"] == str(program.parent)
    assert found["group"]  # Ray ends the group of a worker, which must not be that of the template


def test_two_workers_are_two_processes(template, program):
    first, second = (report(program, template.socket) for _ in range(2))
    assert first["pid"] != second["pid"]
    assert first["parent"] == second["parent"]


def test_a_process_that_must_load_for_itself_does(template, program):
    assert report(program, template.socket, **{worker_entry.FRESH: "1"})["loaded"] == []


def test_without_a_template_a_worker_loads_for_itself(program):
    assert report(program, "nobody")["loaded"] == []


@pytest.mark.parametrize(
    "loaded",
    [
        pytest.param("no_such_simulator:Simulator.load", id="a simulator that it could not load"),
        pytest.param("tests.helpers.threads:start", id="a thread"),  # its locks would stay locked in a child for ever
    ],
)
def test_a_template_with_something_that_must_not_be_forked_forks_nothing(loaded, quick_template, program):
    assert report(program, quick_template.socket)["parent"] == quick_template._process.pid
    quick_template.load(loaded)
    assert report(program, quick_template.socket)["parent"] == os.getpid()


@pytest.mark.soak
def test_a_template_loads_the_simulator_of_a_run(program, tmp_path, monkeypatch):
    monkeypatch.setattr("rlpipe.distributed.process_template.joins_cluster", lambda _: False)
    config = scripted(tmp_path, env={"train": {"name": "maniskill", "id": "PushCube-v1"}})
    made = template_for(config, None)
    assert made is not None
    program.write_text(REPORT.replace('"ray"', '"mani_skill.envs"'))
    assert report(program, made.socket)["loaded"] == ["torch", "mani_skill.envs"]
    made.end()


def test_a_run_that_joins_a_cluster_has_no_template(tmp_path):
    assert template_for(scripted(tmp_path), "10.0.0.1:6379") is None


@pytest.mark.soak
def test_the_template_and_its_workers_end_with_the_driver(program):
    """At once: a worker that has not yet found its node would look for it for a minute."""
    driver = "from rlpipe.distributed.process_template import ProcessTemplate as T; import sys\n"
    driver += "made = T({'OMP_NUM_THREADS': '1'}); print(made._process.pid, made.socket, flush=True); sys.stdin.read()"
    program.write_text(REPORT + "\nimport time; time.sleep(1000)")
    with subprocess.Popen(
        [sys.executable, "-c", driver], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as process:
        template, socket = process.stdout.readline().split()
        worker = report(program, socket)["pid"]
        process.kill()
    ends = time.monotonic() + 600
    while psutil.pid_exists(int(template)) or psutil.pid_exists(worker):
        assert time.monotonic() < ends
        time.sleep(0.1)
