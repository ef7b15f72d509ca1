"""Writes the page of tasks that the shipped configurations train: ``python docs/generate_gallery.py``.

Results come from benchmarks/results/sparse and, where nothing is stored there, from the last table of
docs/benchmarks.md. Episodes come from docs/replays, where docs/make_gallery.py puts them; the site links each picture
to a page that plays them in 3D.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlpipe.cli.configs import description
from rlpipe.config.tree import read_tree
from rlpipe.run.replays import FOLDER, ReplayFolder

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

from benchmarks.sparse_rows.page import interval  # noqa: E402 - of the checkout, which is no package
from benchmarks.sparse_rows.results import Results  # noqa: E402
from benchmarks.sparse_rows.rows import Command, Table  # noqa: E402

PAGE = DOCS / "gallery.md"

HEAD = """\
# Gallery

Every task that a shipped configuration trains, and how often the trained policy succeeds. Success is the share of
held-out episodes in which the task was done, with its 95 % interval or that of each seed; an entry without one has not
been measured.

```
rlpipe train sparse_pick_cube_few       # train one, by its name
rlpipe configs sparse_pick_cube_few     # or print it, to change it
```

The conditions behind each number are in [Benchmarks](benchmarks.md). This page is written by
`python docs/generate_gallery.py`.
"""
TITLES = {
    "PushCube-v1": ("ManiSkill", "Push a cube to a goal on the table."),
    "PickCube-v1": ("ManiSkill", "Grasp a cube and hold it at a goal in the air."),
    "StackCube-v1": ("ManiSkill", "Put one cube on another."),
    "PlaceSphere-v1": ("ManiSkill", "Put a sphere into a bin."),
    "LiftPegUpright-v1": ("ManiSkill", "Set a peg upright."),
    "PegInsertionSide-v1": ("ManiSkill", "Push a peg into a hole whose radius is 3 mm larger."),
    "MetaWorld/Reach-v3": ("Meta-World in EnvPool", "Move the hand to a goal."),
    "PandaPickCubeCartesian-v1": ("MuJoCo Playground in EnvPool", "Grasp a cube and bring it to a goal in the air."),
    "several": ("Meta-World in EnvPool", "Ten tasks in one run (MT10)."),
    "gymnasium_robotics:FetchPush-v4": ("Gymnasium-Robotics", "Push a block to a goal, learnt in hindsight."),
    "gymnasium_robotics:FetchPickAndPlace-v4": (
        "Gymnasium-Robotics",
        "Bring a block to a goal, half of which are in the air.",
    ),
    "CartPole-v1": ("Gymnasium", "Balance a pole: the quickest check that everything works."),
}
"""Simulator and aim of each task, in the order of the page."""
PICTURES = {
    "PushCube-v1": ("curve.png", "Training success of `ppo_push_cube`, three seeds"),
    "PickCube-v1": ("sparse_demonstrations.png", "Success against the number of demonstrations"),
    "several": ("tasks.png", "Success of each of the ten tasks"),
    "CartPole-v1": ("cartpole.png", "`cartpole_study`, and what breaks it"),
}


def page() -> str:
    """Returns the page."""
    parts = [HEAD]
    by_task: dict[str, list[str]] = {}
    for file in sorted((ROOT / "configs").glob("*.yaml")):
        by_task.setdefault(task_of(read_tree(file, [])), []).append(file.stem)
    for task in sorted(by_task, key=list(TITLES).index):
        simulator, aim = TITLES[task]
        name = "Ten tasks of Meta-World" if task == "several" else task.split(":")[-1]
        parts.append(f"## {name}\n\n{simulator}. {aim}\n")
        for config in by_task[task]:
            parts += filmed(config)
        if task in PICTURES:
            picture, caption = PICTURES[task]
            parts.append(f"![{caption.replace('`', '')}](images/{picture})\n")
        rows = [row(name) for name in by_task[task]]
        parts.append("| configuration | success_once | how |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def task_of(tree: Any) -> str:
    """Task of a configuration."""
    train = tree["env"]["train"]
    return "several" if train.get("tasks") else str(train["id"])


def row(name: str) -> str:
    """Line of the table for a configuration."""
    text = (ROOT / "configs" / f"{name}.yaml").read_text(encoding="utf-8")
    return f"| [`{name}`](../configs/{name}.yaml) | {result(name)} | {description(text)} |"


def filmed(name: str) -> list[str]:
    """Moving picture of a configuration and what it shows; nothing if there is none."""
    folder = ReplayFolder(DOCS / "replays" / name / FOLDER)
    sets = folder.sets()
    if not sets:
        return []
    found = folder.read(sets[0])
    outcomes = {one.episode.success_once for one in found.replays}
    what = "A success beside a failure" if outcomes == {True, False} else "Episodes"
    source = found.source.replace(name, f"`{name}`")
    return [f"![{what} of {name}](images/gallery/{name}.webp)\n", f"{what}, from {source}.\n"]


def result(name: str) -> str:
    """Success of a configuration, as measured."""
    return next(filter(None, found(name)), "")


def found(name: str) -> Iterator[str]:
    """Success of a configuration in each place that may have it."""
    yield pooled(name)
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8").partition("## Other shipped configurations")[2]
    yield from re.findall(rf"^\| `{name}` \| (?:success )?(.*?) \|", text, flags=re.MULTILINE)


def pooled(name: str) -> str:
    """Success over the episodes of all seeds whose results are stored; empty if there are none."""
    outcomes = tuple(
        result["success_once"]
        for row in Table.read().results
        if is_plain(row.sequence[-1], name)
        for result in Results().of(row).values()
    )
    if not outcomes:
        return ""
    rate, low, high = interval(outcomes)
    return f"{rate:.3f} [{low:.3f}, {high:.3f}], {of_seeds(len(outcomes))}"


def of_seeds(count: int) -> str:
    """Number of seeds in words."""
    return "one seed" if count == 1 else f"{count} seeds"


def is_plain(command: Command, name: str) -> bool:
    """True if a command trains a configuration without changing what is learnt; a warm start is what some ask for."""
    changed = [override for override in command.overrides if not override.startswith("policy.warm_start=")]
    return command.verb in ("train", "pretrain") and command.config == name and not changed


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
