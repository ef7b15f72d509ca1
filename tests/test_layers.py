"""The layers: which file may import which, and what importing the package costs."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "rlpipe"
LAYERS = (
    ("errors", "foreign", "trajectory", "learner_group", "functional"),
    ("files", "secrets", "plugins", "metrics"),
    ("config",),
    ("envs", "policies", "backends", "curricula"),
    ("collection", "run", "algorithms", "demonstrations"),
    ("learning", "analysis", "doctor"),
    ("training", "distributed", "report", "serving"),
    ("cli", "__init__"),
)
"""Packages by layer, the lowest first. A file imports from lower layers and from its own package."""
LAYER = {package: layer for layer, packages in enumerate(LAYERS, 1) for package in packages}
PLUGINS = ("envs", "policies", "policies.encoders", "backends", "algorithms", "curricula")
FILES = sorted(PACKAGE.rglob("*.py"))


def package_of(file: Path) -> str:
    found = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "cli" if found == "__main__" else found  # ``python -m rlpipe`` is the command line


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@functools.cache
def imports(file: Path, *, run_time: bool = False) -> list[str]:
    """Modules a file imports; with ``run_time`` only those at its top level."""
    tree = parsed(file)
    nodes = tree.body if run_time else ast.walk(tree)
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "rlpipe" else []
            found.append(node.module)
    return found


def imported_names(file: Path) -> list[tuple[str, list[str]]]:
    """Modules from which a file imports names, with these."""
    nodes = (node for node in ast.walk(parsed(file)) if isinstance(node, ast.ImportFrom))
    return [(node.module, [alias.name for alias in node.names]) for node in nodes if node.module]


def violations(file: Path) -> list[str]:
    """Imports of a file that lead to its own layer or above."""
    own = package_of(file)
    packages = [module.split(".")[1] for module in imports(file) if module.startswith("rlpipe.")]
    return [
        f"{file.relative_to(PACKAGE)} imports {other}"
        for other in packages
        if other != own and LAYER[other] >= LAYER[own]
    ]


def test_a_file_imports_only_from_lower_layers_and_its_own_package():
    assert [violation for file in FILES for violation in violations(file)] == []


def test_every_package_has_a_layer_and_there_are_at_most_eight():
    assert {package_of(file) for file in FILES} == set(LAYER)
    assert len(LAYERS) <= 8


def test_the_page_on_the_architecture_has_every_package_in_its_layer_and_one_sentence_on_every_folder():
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| `(\w+)(/|\.py)` \| (.+) \|$", page, flags=re.MULTILINE)
    assert sorted((name, int(layer)) for layer, name, _, _ in rows) == sorted(LAYER.items())
    for _, name, ending, text in rows:
        assert (PACKAGE / f"{name}{ending}").exists()
        assert ending == ".py" or (text.endswith(".") and ". " not in text), f"{name}/ needs one sentence"


def test_fewer_than_ten_files_lie_at_the_root_of_the_package():
    assert len(list(PACKAGE.glob("*.py"))) < 10


def part(kind: str, module: str) -> str:
    """Name of the plug-in of a kind that a module belongs to; ``base`` and ``shared`` are for all of them."""
    return module.removeprefix(f"rlpipe.{kind}.").partition(".")[0]


@pytest.mark.parametrize("kind", PLUGINS)
def test_what_plug_ins_share_depends_on_none_and_a_plug_in_on_the_public_classes_of_others(kind):
    """So ``rlpd`` may derive from ``sac``, whose file is read alone."""
    folder, kinds = PACKAGE.joinpath(*kind.split(".")), {other.rpartition(".")[2] for other in PLUGINS}
    for file in folder.rglob("*.py"):
        own = part(kind, f"rlpipe.{kind}." + ".".join(file.relative_to(folder).with_suffix("").parts))
        for module, names in imported_names(file):
            other = part(kind, module) if module.startswith(f"rlpipe.{kind}.") else own
            if other not in (own, "base", "shared") and not {own, other} & kinds:
                assert own not in ("base", "shared"), f"{file} imports {module}"
                assert module == f"rlpipe.{kind}.{other}", f"{file} looks into {module}"
                assert not [name for name in names if name.startswith("_")], f"{file} takes {names} of {module}"


def test_no_file_is_told_apart_by_the_beginning_of_its_name():
    assert [file.name for file in FILES if file.name.startswith("base_")] == []


def test_only_the_distributed_package_imports_ray():
    packages = {package_of(file) for file in FILES for module in imports(file) if module.split(".")[0] == "ray"}
    assert packages == {"distributed"}


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
    ("rlpipe.envs.shared.child_process.program", OURS),
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
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("typer.Exit", "sys.exit"):
                numbers = [argument for argument in node.args if isinstance(argument, ast.Constant)]
                assert not numbers, f"{file.name}:{node.lineno}"
