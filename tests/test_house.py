"""The house: which file may import which, and what importing the package costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "rlpipe"
FLOORS = {
    0: ["plugins", "ranks", "trajectory"],
    1: ["functional", "metrics", "config", "secrets", "demonstrations", "records"],
    2: ["envs", "policies", "algorithms", "backends"],
    3: [
        "episodes",
        "faults",
        "rollout",
        "replay",
        "resuming",
        "off_policy",
        "cloning",
        "comparison",
        "evaluation",
        "observations",
        "follower",
        "exporters",
        "inference",
        "learner",
        "metric_logger",
        "checkpoint",
        "diagnosis",
        "doctor",
        "planner",
        "run_directory",
        "timeline",
        "training",
    ],
    4: ["local", "distributed"],
    5: ["cli", "__main__", "__init__"],
}
FLOOR = {room: floor for floor, rooms in FLOORS.items() for room in rooms}
FILES = sorted(PACKAGE.rglob("*.py"))


def room(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(file: Path, *, run_time: bool = False) -> list[str]:
    """Modules a file imports; with ``run_time`` only those at its top level."""
    tree = ast.parse(file.read_text())
    nodes = tree.body if run_time else ast.walk(tree)
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "rlpipe" else []
            found.append(node.module)
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_file_imports_only_from_lower_floors_or_its_own_room(file):
    own = room(file)
    for module in imports(file):
        parts = module.split(".")
        if parts[0] != "rlpipe" or len(parts) == 1 or parts[1] == own:
            continue
        beside = FLOOR[parts[1]] == FLOOR[own]
        allowed = beside and (FLOOR[own] != 2 or parts[2:3] == ["base"])  # on floor 2 only another room's interface
        assert FLOOR[parts[1]] < FLOOR[own] or allowed, f"{own} imports {module}"


@pytest.mark.parametrize("kind", FLOORS[2])
def test_plug_ins_do_not_import_each_other(kind):
    for file in (PACKAGE / kind).glob("*.py"):
        for module in imports(file):
            if module.startswith(f"rlpipe.{kind}."):
                assert module.startswith(f"rlpipe.{kind}.base"), f"{file.name} imports {module}"


def test_only_the_distributed_room_imports_ray():
    rooms = {room(file) for file in FILES for module in imports(file) if module.split(".")[0] == "ray"}
    assert rooms == {"distributed"}


def test_there_are_no_import_cycles():
    modules = {
        "rlpipe." + ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): file
        for file in FILES
    }
    graph = {
        name: {module for module in imports(file, run_time=True) if module in modules and module != name}
        for name, file in modules.items()
    }
    graph["rlpipe"] = set()
    while leaves := {name for name, needed in graph.items() if not needed & graph.keys()}:
        for leaf in leaves:
            del graph[leaf]
    assert graph == {}


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("rlpipe", ["torch", "ray", "gymnasium", "mani_skill", "sapien"]),
        ("rlpipe.metric_logger", ["torch", "ray", "gymnasium", "mani_skill"]),
        ("rlpipe.rollout", ["ray", "gymnasium", "mani_skill", "sapien"]),
        ("rlpipe.envs.maniskill", ["torch", "gymnasium", "mani_skill", "sapien"]),
    ],
)
def test_importing_a_module_does_not_load_what_it_may_never_need(module, absent):
    code = f"import sys, {module}; print([name for name in {absent!r} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
