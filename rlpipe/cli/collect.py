"""``rlpipe collect RUN_OR_CONFIG -n 200 --out DIR``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from rlpipe.cli import arguments
from rlpipe.cli.demos import print_rows, progress_bar
from rlpipe.cli.evaluate import interruptible
from rlpipe.cli.exit_codes import ExitCode


def collect(
    path: arguments.RunOrConfiguration,
    overrides: arguments.Overrides = None,
    count: Annotated[int, typer.Option("-n", "--count", parser=arguments.integer, help="Number of episodes.")] = 200,
    out: Annotated[
        Path, typer.Option(parser=arguments.path, help="Folder of the dataset; one that is unfinished is continued.")
    ] = Path("collected"),
    data_format: Annotated[
        str,
        typer.Option(
            "--format", help="Format: maniskill, lerobot, lerobot-v2.1, rlinf, robomimic or minari.", metavar="FORMAT"
        ),
    ] = "maniskill",
    only: Annotated[
        str | None,
        typer.Option(
            help="successes: leave out all other episodes, and go on until there are enough.",
            show_default="all episodes",
            metavar="successes",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            parser=arguments.integer,
            help="Seed of the first episode; the others follow by one. Evaluations begin at 1,000,000, and training "
            "at 2^30.",
            show_default="0, or after those of --aggregate",
            metavar="FIRST",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Collect from something else than a checkpoint: random, zero, or a policy from elsewhere, as rlpipe "
            "evaluate takes it.",
            metavar="POLICY",
        ),
    ] = None,
    expert: Annotated[
        str | None,
        typer.Option(
            help="Have an expert say what it would do in each state that the policy visits, and store that as the "
            "action (DAgger): planner, where the simulator has one, a run or a checkpoint, or a policy from elsewhere.",
            metavar="EXPERT",
        ),
    ] = None,
    beta: Annotated[
        float | None,
        typer.Option(help="Probability with which the expert acts in a step itself.", show_default="0", metavar="BETA"),
    ] = None,
    aggregate: Annotated[
        Path | None,
        typer.Option(
            parser=arguments.path, help="Dataset of earlier rounds, whose episodes come first in the new one."
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Steps a second, where the simulator does not say it.", metavar="HZ")
    ] = None,
    best: arguments.Best = False,
    local: arguments.Local = False,
    ray_address: arguments.RayAddress = None,
) -> None:
    """Collect whole episodes of a policy into a dataset, which training can learn from.

    Episodes are those of an evaluation with these seeds, and stored in the order of the seeds. The same command
    continues a dataset after an interruption; the number of workers does not change it.
    """
    import rlpipe

    ended = 0
    try:
        with progress_bar("collecting", count) as show:

            def update(done: int, episodes: int, _: float) -> None:
                nonlocal ended
                ended = min(done, episodes)
                show("collecting", ended, episodes)

            collection = rlpipe.collect(
                path, out, count=count, format=data_format, policy=policy, expert=expert, beta=beta,
                aggregate=aggregate, best=best, first_seed=seeds, only=only, rate=rate, overrides=overrides or [],
                local=local, ray_address=ray_address, progress=interruptible(update),
            )  # fmt: skip
    except KeyboardInterrupt:  # typer would end without a word
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        console.print(f"[yellow]interrupted[/]: the same command goes on with what is stored in {escape(str(out))}.")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    successes = "" if collection.succeeded is None else f", of which {collection.succeeded:,} succeeded"
    console = Console(highlight=False, soft_wrap=True)
    corrected = "" if expert is None else f", corrected by {escape(expert)},"
    console.print(
        f"[bold]{collection.episodes:,} episodes[/] of {escape(policy or str(path))}{corrected} in {escape(str(out))}"
    )
    print_rows({
        "format": data_format,
        **({data_format: "\n                ".join(collection.losses)} if collection.losses else {}),
        "steps": f"{collection.steps:,}",
        "seeds": f"{collection.seeds[0]:,} to {collection.seeds[1]:,}",
        "run": f"{collection.tried:,} episodes{successes}",
        **({} if aggregate is None else {"aggregate": f"follow those of {escape(str(aggregate))}"}),
        **({} if collection.interventions is None else {"interventions": f"{collection.interventions:.2f} of steps"}),
        "size": f"{sum(file.stat().st_size for file in out.rglob('*') if file.is_file()) / 1e3:,.0f} kB",
    })  # fmt: skip
