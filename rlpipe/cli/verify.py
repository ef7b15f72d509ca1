"""``rlpipe verify RECORD``"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from rlpipe.cli import arguments
from rlpipe.cli.errors import print_refusal
from rlpipe.cli.evaluate import interruptible, relative
from rlpipe.cli.exit_codes import ExitCode
from rlpipe.cli.streams import print_json
from rlpipe.errors import ConfigError

if TYPE_CHECKING:
    from rlpipe.analysis.verification import Verification


def verify(
    path: Annotated[
        Path,
        typer.Argument(
            parser=arguments.path,
            help="Record of an evaluation (evaluations/<n>.json of a run), or a folder, such as a run, for all in it.",
            metavar="RECORD",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Changes of --config, such as env.train.id=CartPole-v1.", metavar="[key=value]..."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Policy of the record, because a record does not choose what is opened: for a policy from elsewhere, "
            "as for rlpipe evaluate; for a checkpoint that is not found, its file or its run. Baselines need none.",
            metavar="POLICY",
            show_default="the checkpoint that is beside the record, in its run, or where it was",
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            help="Run directory or configuration with the simulator of a baseline or of a policy from elsewhere.",
            metavar="PATH|CONFIG",
            show_default="the run in which the record lies, else what the record says, if that names no code",
        ),
    ] = None,
    episodes: Annotated[
        int,
        typer.Option(parser=arguments.integer, help="Episodes to draw and simulate again; at most all."),
    ] = 60,
    seed: Annotated[
        int | None,
        typer.Option(
            parser=arguments.integer,
            help="Seed of the draw, to repeat one.",
            show_default="one of the operating system, which is printed",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON, a list.")] = False,
    local: arguments.Local = False,
    ray_address: arguments.RayAddress = None,
) -> None:
    """Verify the record of an evaluation: simulate episodes of it again, and compare.

    The record is checked by itself (rows, estimates, digests), then episodes are drawn by a seed that it cannot know.
    Where processor, versions and code are those of the record, every bit of them must be the same; elsewhere, outcomes
    may flip, but not rather one way than the other. Writes nothing.

    A record does not choose what is opened: where its policy is from elsewhere and --policy is missing, it is checked
    by itself, and the command to type is printed.

    The exit code is 0 if every record that was simulated is verified to the bit, 4 if one only statistically, 3 if one
    is not true, and 2 if none could be simulated.
    """
    import rlpipe
    from rlpipe.backends.console import EvaluationProgress

    progress = EvaluationProgress(Console(stderr=True, highlight=False))
    show = interruptible(progress)
    console, stderr = Console(highlight=False, soft_wrap=True), Console(stderr=True, highlight=False, soft_wrap=True)
    records = _records(path, stderr if as_json else console)
    if policy is not None and len(records) > 1:
        raise ConfigError(f"--policy is {policy}, but {path} holds {len(records)} records: name the one that is of it.")
    results: list[Verification] = []
    for record in records:
        try:
            result = rlpipe.verify(
                record, policy=policy, config=config, overrides=overrides or [], episodes=episodes, seed=seed,
                local=local, ray_address=ray_address, progress=show,
            )  # fmt: skip
        except KeyboardInterrupt:  # typer would end without a word
            progress.interrupted()
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except ConfigError as error:
            if len(records) == 1:
                raise
            print_refusal(stderr, error)
            continue
        results.append(result)
        if not as_json:
            console.print(_screen(result) if len(records) == 1 else _short(result))
    refused = len(records) - len(results)
    if as_json:
        print_json([result.as_json() for result in results])
    elif len(records) > 1:
        console.print(f"[dim]{len(records):,} records: {_summary(results, refused)}[/]")
    raise typer.Exit(_code(results, refused))


def _records(path: Path, console: Console) -> list[Path]:
    """Returns the file, or all records in a folder in the order of their names; prints what has no episodes.

    Raises:
        ConfigError: there is none.
    """
    from rlpipe import files
    from rlpipe.analysis.verification import Kind, kind_of

    kind = files.kind_of(path)
    if kind == "file":
        return [path]
    if not kind:
        raise ConfigError(f"there is no record {path}: name a file that rlpipe evaluate has written, or a folder.")
    candidates = [file for file in path.rglob("*.json") if not file.name.startswith(".")]
    candidates.sort(key=lambda file: (file.parent, len(file.name), file.name))  # 10.json after 9.json
    kinds = {file: kind_of(file) for file in candidates}
    for file in (file for file, kind in kinds.items() if kind is Kind.ROWS):
        console.print(f"[bold yellow]not simulated[/] {escape(str(relative(file)))}: results without their episodes")
    records = [file for file, kind in kinds.items() if kind is Kind.RECORD]
    if not records:
        raise ConfigError(
            f"{path} holds no record of an evaluation among its {len(candidates)} JSON files: rlpipe evaluate writes "
            "them to evaluations/ of a run."
        )
    return records


def _code(results: list[Verification], refused: int) -> ExitCode:
    """Exit code of all results: the worst."""
    verdicts = {result.verdict.value for result in results}
    if "not verified" in verdicts:
        return ExitCode.NOT_VERIFIED
    if refused or not verdicts & {"verified", "verified statistically"}:
        return ExitCode.REFUSED
    return ExitCode.VERIFIED_STATISTICALLY if "verified statistically" in verdicts else ExitCode.DONE


def _summary(results: list[Verification], refused: int) -> str:
    """Number of records of each verdict."""
    counts = Counter(result.verdict.value for result in results) + Counter(refused=refused)
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


_STYLES = {"verified": "bold green", "verified statistically": "bold green", "not verified": "bold red"}


def _verdict(result: Verification) -> str:
    return f"[{_STYLES.get(result.verdict.value, 'bold yellow')}]{result.verdict.value}[/]"


def _findings(result: Verification, *, all_of_them: bool) -> list[str]:
    """Lines on what differs."""
    return [
        f"[{'red' if finding.rejects else 'dim'}]{finding.part if finding.rejects else f'other {finding.part}':<16}[/]"
        f"{escape(finding.message)}"
        for finding in result.findings
        if finding.rejects or all_of_them
    ]


def _short(result: Verification) -> str:
    """Line on one record of several, and a line for each finding that rejects it."""
    same = f", {result.identical:,} of {result.drawn:,} the same to the bit" if result.drawn else ""
    name = escape(str(relative(Path(result.record))))
    hint = [] if result.hint is None else [escape(f"{result.hint.reason}: {result.hint.command}")]
    return "\n  ".join([f"{_verdict(result)} {name}{same}", *_findings(result, all_of_them=False), *hint])


def _screen(result: Verification) -> str:
    """Lines on one record."""
    path = relative(Path(result.record))
    lines = [("record", f"{path}, {result.episodes:,} episodes")]
    if result.checkpoint is not None:
        lines.append(("checkpoint", str(relative(Path(result.checkpoint)))))
    if result.policy is not None:
        lines.append(("policy", repr(result.policy)[1:-1]))
    if result.drawn:
        lines += [
            ("drawn", f"{result.drawn:,} of {result.episodes:,} episodes, by seed {result.seed} (--seed repeats it)"),
            ("to the bit", f"{result.identical:,} of {result.drawn:,} are the same"),
        ]
        if result.p_value is not None:
            flips = result.better + result.worse
            outcomes = (
                f"{flips:,} flipped ({flips / result.drawn:.1%}), {result.better:,} of them better in the record and "
                f"{result.worse:,} worse: exact test p = {result.p_value:.2g}"
            )
            lines.append(("outcomes", outcomes))
        lines.append(("chance", f"{result.chance:.1%} that one forged row in twenty would have been drawn"))
    if result.hint is not None:
        lines += [("why", result.hint.reason), ("to simulate it", result.hint.command)]
    texts = [f"[dim]{label:<16}[/]{escape(text)}" for label, text in lines]
    return "\n".join([*texts, *_findings(result, all_of_them=True), f"[dim]{'verdict':<16}[/]{_verdict(result)}"])
