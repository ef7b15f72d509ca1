"""``rlpipe replay RUN``: a page that plays evaluation episodes in 3D."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlpipe.cli import arguments


def replay(
    run: Annotated[Path, typer.Argument(parser=arguments.run, help="Run directory, or runs/floors.")],
    episode: Annotated[
        int | None,
        typer.Option(
            parser=arguments.integer,
            help="Number of the replay that is shown first, from 1.",
            show_default="a success and a failure",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--set", help="Replays to show, such as evaluation-1.", show_default="those written last"),
    ] = None,
    videos: Annotated[
        int | None,
        typer.Option(
            help="Write a video instead of a page: of so many successes, each beside a failure.",
            show_default="a page",
            min=1,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=arguments.path,
            help="Page or video to write.",
            show_default="replay.html, or videos/<set>.mp4, in the run directory",
        ),
    ] = None,
) -> None:
    """Write a page that plays evaluation episodes in 3D, in any browser and without a network, or a video of them.

    Training records the newest evaluation and the best one; rlpipe evaluate RUN --replays 4 records others.
    """
    from markupsafe import Markup

    from rlpipe import files
    from rlpipe.cli.evaluate import relative
    from rlpipe.errors import ConfigError
    from rlpipe.report.replays import section
    from rlpipe.report.replays.section import no_replays
    from rlpipe.report.web.page import check_file, page, write_page

    if videos is not None:
        if episode is not None:
            raise ConfigError("--episode chooses what a page shows first; a video has several: leave it out.")
        if out is not None:
            if out.suffix != ".mp4":
                raise ConfigError(f"--out is {out}, but a video is an mp4 file: --out {out.with_suffix('.mp4').name}")
            check_file(out)
        if files.kind_of(run) != "directory":
            raise no_replays(run)
        print(relative(_video(run, videos, name, out).resolve()))
        return
    replays = section(run, name=name, episode=episode) if files.kind_of(run) == "directory" else None
    if replays is None:
        raise no_replays(run)
    file, title = out or run / "replay.html", run.resolve().name
    write_page(file, page(f"{title}: replays", [replays], Markup("<h1>{}</h1>").format(title)))
    print(relative(file.resolve()))


def _video(run: Path, pairs: int, name: str | None, out: Path | None) -> Path:
    """Writes a video, and shows in a terminal how far it is."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from rlpipe.report.replays.video import make_video

    console = Console(stderr=True)
    columns = TextColumn("drawing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("")
        return make_video(
            run, pairs, name=name, out=out, watch=lambda done, total: progress.update(task, completed=done, total=total)
        )
