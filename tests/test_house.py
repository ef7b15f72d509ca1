"""The house: which file may import which, and what importing the package costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "rlpipe"
FLOORS = (
    ("errors", "foreign", "trajectory", "learner_group", "functional"),
    ("files", "secrets", "plugins", "metrics"),
    ("config",),
    ("envs", "policies", "backends", "curricula"),
    ("collection", "run", "algorithms", "demonstrations"),
    ("learning", "analysis", "doctor"),
    ("training", "distributed"),
    ("cli", "__init__"),
)
"""Rooms by floor, the lowest first. A file imports from lower floors and from its own room."""
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS, 1) for room in rooms}
PLUGINS = ("envs", "policies", "policies.encoders", "backends", "algorithms", "curricula")
FILES = sorted(PACKAGE.rglob("*.py"))


def room(file: Path) -> str:
    found = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "cli" if found == "__main__" else found  # ``python -m rlpipe`` is the command line


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


def violations(file: Path) -> list[str]:
    """Imports of a file that lead to its own floor or above."""
    own = room(file)
    rooms = [module.split(".")[1] for module in imports(file) if module.startswith("rlpipe.")]
    return [
        f"{file.relative_to(PACKAGE)} imports {other}" for other in rooms if other != own and FLOOR[other] >= FLOOR[own]
    ]


def test_a_file_imports_only_from_lower_floors_and_its_own_room():
    assert [violation for file in FILES for violation in violations(file)] == []


def test_every_room_has_a_floor_and_there_are_at_most_eight():
    assert {room(file) for file in FILES} == set(FLOOR)
    assert len(FLOORS) <= 8


def test_the_page_on_the_architecture_has_every_room_on_its_floor_and_one_sentence_on_every_folder():
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| `(\w+)(/|\.py)` \| (.+) \|$", page, flags=re.MULTILINE)
    assert sorted((name, int(floor)) for floor, name, _, _ in rows) == sorted(FLOOR.items())
    for _, name, ending, text in rows:
        assert (PACKAGE / f"{name}{ending}").exists()
        assert ending == ".py" or (text.endswith(".") and ". " not in text), f"{name}/ needs one sentence"


def test_fewer_than_ten_files_lie_at_the_root_of_the_package():
    assert len(list(PACKAGE.glob("*.py"))) < 10


@pytest.mark.parametrize("kind", PLUGINS)
def test_plug_ins_do_not_import_each_other(kind):
    for file in PACKAGE.joinpath(*kind.split(".")).glob("*.py"):
        for module in imports(file):
            shared = (f"rlpipe.{kind}.base", f"rlpipe.{kind}.encoders.base")
            if module.startswith(f"rlpipe.{kind}."):
                assert module.startswith(shared), f"{file.name} imports {module}"


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


def test_no_test_imports_another_file_of_tests():
    """Shared code lies in ``tests/helpers``."""
    files = [*Path(__file__).parent.rglob("*.py")]
    assert [f"{file} imports {name}" for file in files for name in imports(file) if ".test_" in name] == []


OURS = ["torch", "ray", "omegaconf", "pydantic", "simpleeval", "yaml", "rich", "typer"]
"""Packages that a simulator in a Python of its own does without."""


LIGHT = [
    ("rlpipe", ["torch", "ray", "gymnasium", "mani_skill", "sapien"]),
    ("rlpipe.envs.base_process_program", OURS),
    *((f"rlpipe.envs.{name}", OURS) for name in ("envpool", "gymnasium", "libero", "maniskill", "scripted")),
    ("rlpipe.envs.maniskill", ["torch", "gymnasium", "mani_skill", "sapien"]),
    ("rlpipe.run.metric_logger", ["torch", "ray", "gymnasium", "mani_skill"]),
    ("rlpipe.distributed.placement", ["ray", "torch"]),
    ("rlpipe.distributed.actors", ["torch", "gymnasium"]),  # an actor chooses its GPUs before torch looks
]
WITH_TORCH = [
    ("rlpipe.collection.worker", ["ray", "gymnasium", "mani_skill", "sapien"]),
    ("rlpipe.distributed.worker_pool", ["ray"]),
    ("rlpipe.policies.vla", ["transformers", "peft", "ray"]),
]


@pytest.mark.parametrize("modules", [LIGHT, WITH_TORCH])
def test_importing_a_module_does_not_load_what_it_may_never_need(modules):
    """Imported one after the other, those that need least first; none loads what is absent beside it."""
    lines = (
        f"import {module}; print({module!r}, [name for name in {absent!r} if name in sys.modules])"
        for module, absent in modules
    )
    code = "\n".join(["import sys", *lines])
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == [f"{module} []" for module, _ in modules]


def test_commands_take_their_exit_codes_from_one_list():
    """A number of its own would be missing in the documentation of the codes."""
    for file in (PACKAGE / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("typer.Exit", "sys.exit"):
                numbers = [argument for argument in node.args if isinstance(argument, ast.Constant)]
                assert not numbers, f"{file.name}:{node.lineno}"
