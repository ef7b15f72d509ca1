"""``rlpipe demos TASK -n 200``, ``rlpipe demos CONFIG --replay FILE.h5``, ``rlpipe demos inspect`` and ``convert``"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from typer.core import TyperGroup

from rlpipe.cli import arguments
from rlpipe.cli.exit_codes import ExitCode
from rlpipe.errors import ConfigError, command_line


class _Commands(TyperGroup):
    """Commands of which ``make`` needs no name: ``rlpipe demos PickCube-v1``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["make", *args]
        return super().parse_args(ctx, args)


commands = typer.Typer(
    cls=_Commands, help="Generate, record, inspect and convert demonstrations.", no_args_is_help=True,
    rich_markup_mode="rich",
)  # fmt: skip


@commands.command()
def make(
    task: Annotated[
        str,
        typer.Argument(help="ManiSkill task, or with --replay a configuration.", metavar="TASK|CONFIG"),
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="With --replay, changes of the configuration.", metavar="[key=value]...")
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            parser=arguments.path,
            help="Replay these demonstrations, and record the observations of CONFIG.",
            metavar="FILE.h5",
        ),
    ] = None,
    count: Annotated[
        int, typer.Option("-n", "--count", parser=arguments.integer, help="Number of successful demonstrations.")
    ] = 200,
    control_mode: Annotated[str, typer.Option(help="Control mode of the recorded actions.")] = "pd_ee_delta_pos",
    out: Annotated[Path, typer.Option(parser=arguments.path, help="Folder for TASK.h5 and TASK.json.")] = Path(
        "demonstrations"
    ),
    seed_from: Annotated[
        int, typer.Option(parser=arguments.integer, help="Seed of the first episode; each further attempt adds 1.")
    ] = 0,
    python: Annotated[
        str | None,
        typer.Option(help="Python interpreter with the planner installed.", show_default="this one", metavar="PATH"),
    ] = None,
) -> None:
    """Generate demonstrations with ManiSkill's motion planner, or record given ones with other observations.

    The planner runs in a process of its own and needs numpy below 2; --python names another environment for it. With
    --replay FILE.h5, its episodes are run again, and what CONFIG observes, such as pictures, goes to the file that its
    key demos names.
    """
    if replay is not None:
        _replay(task, overrides or [], replay)
        return
    if overrides:
        raise ConfigError(f"{overrides[0]}: only a configuration, with --replay FILE.h5, takes changes.")
    _plan(task, count, control_mode, out, seed_from, python or sys.executable)


@commands.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="File or folder of demonstrations.", parser=arguments.path)],
    config: Annotated[str | None, typer.Argument(help="Configuration that would learn from them.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes of the configuration.", metavar="[key=value]...")
    ] = None,
) -> None:
    """Show the episodes, features and ranges of demonstrations, and how they fit a task.

    All formats that demos= takes are known by what is inside: ManiSkill's, LeRobotDataset v3.0 and v2.1, robomimic's
    and Minari's.
    """
    from rlpipe.config.loading import load_config
    from rlpipe.demonstrations.formats.inspection import fit_of, inspected
    from rlpipe.demonstrations.formats.registry import open_dataset

    dataset = open_dataset(path, "PATH")
    with progress_bar("reading", len(dataset.episodes)) as show:
        inspection = inspected(dataset, lambda done: show("reading", done, len(dataset.episodes)))
    _print_summary(len(dataset.episodes), dataset.info.task or "an unnamed task", path, inspection.rows(dataset))
    if config is not None:
        plan = load_config(config, overrides or [])
        print_rows(fit_of(dataset, inspection, plan))


@commands.command()
def convert(
    path: Annotated[Path, typer.Argument(help="File or folder of demonstrations.", parser=arguments.path)],
    to: Annotated[
        str,
        typer.Option(help="Format: maniskill, lerobot, lerobot-v2.1, rlinf, robomimic or minari.", metavar="FORMAT"),
    ],
    out: Annotated[Path, typer.Option(parser=arguments.path, help="Folder to write; new or empty.", metavar="DIR")],
    config: Annotated[str | None, typer.Argument(help="Configuration whose cameras draw the states.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes of the configuration.", metavar="[key=value]...")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Steps a second, where the dataset does not say it.", metavar="HZ")
    ] = None,
) -> None:
    """Write demonstrations in another format, and name what it cannot hold.

    With CONFIG, the pictures that it observes are drawn from the recorded states and seeds, and added. A conversion
    that is interrupted goes on where it was.
    """
    from dataclasses import replace

    from rlpipe.config.loading import load_config
    from rlpipe.demonstrations.formats.registry import format_called, open_dataset
    from rlpipe.demonstrations.formats.writing import DatasetWriter
    from rlpipe.demonstrations.pictures import DrawnDataset

    form = format_called(to, "--to")
    drawn = None if config is None else DrawnDataset(str(path), load_config(config, overrides or []).env.train)
    dataset = drawn or open_dataset(path, "PATH")
    info = dataset.info if rate is None else replace(dataset.info, rate=rate)
    form.check(info)  # before a simulator starts
    total = len(dataset.episodes)
    with progress_bar("converting", total) as show, drawn or nullcontext(), DatasetWriter(out, form, info) as writer:
        for number in range(len(writer.episodes), total):
            writer.add(dataset.read(number))
            show("converting", number + 1, total)
        features = dataset.features
    lost = [*form.losses(info, features)]
    after = form.open_dataset(out, "--out").episodes
    if missing := sum(first.seed != then.seed for first, then in zip(dataset.episodes, after, strict=True)):
        lost.append(f"cannot hold {missing} of the seeds")
    _print_summary(total, info.task or "an unnamed task", out, {
        "format": to,
        "steps": f"{sum(entry.length for entry in dataset.episodes):,}",
        **({"pictures": ", ".join(f"{name} {list(spec.shape)}" for name, spec in features.cameras.items())}
           if features.cameras else {}),
        **({f"{to}": "\n                ".join(lost)} if lost else {"kept": "everything"}),
        "use": command_line("demos", "inspect", str(out)),
    })  # fmt: skip


def _plan(task: str, count: int, control_mode: str, out: Path, first_seed: int, python: str) -> None:
    """Makes demonstrations with the motion planner."""
    from rlpipe.demonstrations.planner import FIRST_EVALUATION_SEED, make_demonstrations
    from rlpipe.demonstrations.planner_process import PlannerError

    with progress_bar("starting", count) as show:
        try:
            recording = make_demonstrations(
                task, count, control_mode, out, python=python, first_seed=first_seed, progress=show
            )
        except PlannerError as error:
            Console(stderr=True, highlight=False).print(f"[bold red]failed:[/] {escape(str(error))}", soft_wrap=True)
            raise typer.Exit(ExitCode.FAILED) from error
    _print_summary(recording.trajectories, task, recording.file, {
        "steps": f"{recording.steps:,} until success, {recording.longest} in the longest",
        "control mode": control_mode,
        "seeds": f"{recording.seeds[0]} to {recording.seeds[-1]}; evaluation begins at {FIRST_EVALUATION_SEED:,}",
        "size": f"{recording.file.stat().st_size / 1e3:,.0f} kB",
        "use": command_line("train", "CONFIG", f"demos={recording.file}"),
    })  # fmt: skip


def _replay(name: str, overrides: list[str], replay: Path) -> None:
    """Replays demonstrations under a configuration."""
    from rlpipe.config import shipped
    from rlpipe.config.loading import load_config
    from rlpipe.demonstrations.replay import replay_demonstrations

    config, source = load_config(name, overrides), shipped.located(replay)
    if config.demos is None or Path(config.demos).resolve() == source.resolve():
        raise ConfigError(
            f"demos is {config.demos}: name the file to write, such as demos=demonstrations/{source.name}"
        )
    with progress_bar("replaying", None) as show:
        recording = replay_demonstrations(
            str(source), config, Path(config.demos), lambda done, total: show("replaying", done, total)
        )
    leaves = recording.spec.leaves or {}
    shapes = (f"{leaf} {spec.dtype} {list(spec.shape)}" for leaf, spec in leaves.items())
    task = config.env.train
    _print_summary(recording.trajectories, getattr(task, "id", task.name), recording.file, {
        "replayed": f"{recording.trajectories + recording.failed}, of which {recording.failed} no longer succeeded and "
        "were left out",
        "steps": f"{recording.steps:,}",
        "observations": ", ".join(shapes) or f"one vector of {recording.spec.observation_dim}",
        "size": f"{recording.file.stat().st_size / 1e6:,.1f} MB",
        "use": command_line("pretrain", name, *overrides),
        **({"notes": "\n                ".join(recording.notes)} if recording.notes else {}),
    })  # fmt: skip


@contextmanager
def progress_bar(description: str, total: int | None) -> Iterator[Callable[[str, int, int], None]]:
    """Shows a bar on stderr. Yields what updates its description, the number done, and the total."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as progress:
        bar = progress.add_task(description, total=total)
        yield lambda doing, done, of: progress.update(bar, description=doing, completed=done, total=of)


def _print_summary(count: int, task: str, file: Path, rows: Mapping[str, str]) -> None:
    """Prints how many demonstrations a file holds, and a labelled row for each thing to know of them."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]{count} demonstrations[/] of {escape(task)} in {escape(str(file))}")
    print_rows(rows)


def print_rows(rows: Mapping[str, str]) -> None:
    """Prints a labelled row for each thing to know."""
    console = Console(highlight=False, soft_wrap=True)
    for label, text in rows.items():
        console.print(f"  [dim]{label:<14}[/]{escape(text)}")
