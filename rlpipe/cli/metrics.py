"""Commands ``rlpipe metrics list`` and ``rlpipe metrics explain NAME``."""

from __future__ import annotations

import difflib
import sys
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlpipe.cli.streams import print_json, table_of_list
from rlpipe.errors import ConfigError
from rlpipe.metrics.catalogue import CATALOGUE
from rlpipe.metrics.declaration import Metric, Name
from rlpipe.metrics.descriptions import SYSTEM_TITLES, describe_reduction, describe_relation, observed_metric
from rlpipe.metrics.dialects import SYSTEMS, Use, find, left_out, uses, written
from rlpipe.metrics.rules import LEVELS
from rlpipe.plugins import nearest

TIERS = ("core", "standard", "extension", "language_only")
LEVEL_STYLES = {"ok": "green", "info": "dim", "warn": "yellow", "critical": "bold red"}
RELATION_STYLES = {"exact": "green", "transform": "green", "approx": "yellow", "differs": "red", "invalid": "red"}


commands = typer.Typer(help="List the metrics, or explain one.", no_args_is_help=True)


@commands.command(name="list")
def list_metrics(
    namespace: Annotated[str | None, typer.Option(help="Only names in this namespace, such as train/actor.")] = None,
    tier: Annotated[str | None, typer.Option(help=f"Only {', '.join(TIERS)}.")] = None,
    algorithm: Annotated[str | None, typer.Option(help="Only metrics of this algorithm, such as ppo.")] = None,
    dialect: Annotated[str | None, typer.Option(help=f"Only metrics of this system: {', '.join(SYSTEMS)}.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the metrics, in the order of a row."""
    algorithms = sorted({name for metric in CATALOGUE.values() for name in metric.algorithms})
    namespaces = sorted({prefix for name in CATALOGUE for prefix in _namespaces(name)})
    for option, value, legal in (
        ("--namespace", namespace and namespace.rstrip("/"), namespaces),
        ("--tier", tier, TIERS),
        ("--algorithm", algorithm, algorithms),
        ("--dialect", dialect, SYSTEMS),
    ):
        if value is not None and value not in legal:
            raise ConfigError(f"{option} is {value!r}; known are {', '.join(legal)}{nearest(value, legal)}")
    matching = {
        name: metric
        for name, metric in CATALOGUE.items()
        if not metric.hidden
        and (namespace is None or namespace.rstrip("/") in _namespaces(name))
        and (tier is None or metric.tier == tier)
        and (algorithm is None or not metric.algorithms or algorithm in metric.algorithms)
    }
    console = _console(wide=True)
    if dialect is None:
        if as_json:
            print_json([_as_json(metric) for metric in matching.values()])
        else:
            _show(console, _table_of_metrics(list(matching.values()), boxed=console.is_terminal))
        return
    present = [use for use in written(dialect).values() if use.metric.name in matching]
    absent = [use for use in left_out(dialect).values() if use.metric.name in matching]
    if as_json:
        print_json([_use_as_json(use, written=True) for use in present] + [_use_as_json(use) for use in absent])
        return
    title = SYSTEM_TITLES[dialect]
    _show(console, _table_of_names(f"{title}: its keys and our metrics", present, boxed=console.is_terminal))
    if absent:
        print()
        caption = f"{title}: keys that are left out, because none of our metrics is that number"
        _show(console, _table_of_names(caption, absent, boxed=console.is_terminal))


@commands.command()
def explain(
    name: Annotated[str, typer.Argument(help="Name in any system: env/return, objective/kl, losses/entropy.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain a metric by its name in any system: meaning, formula, health, and its names elsewhere."""
    hits = find(name)
    if not hits:
        raise ConfigError(_unknown(name))
    ours = hits[0].name.system == "rlpipe"
    main = [use for use in hits if use.metric.name == hits[0].metric.name or not (ours or use.name.secondary)]
    aside = [use for use in hits if use not in main]
    by_metric: dict[str, list[Use]] = {}
    for use in main:
        by_metric.setdefault(use.metric.name, []).append(use)
    if as_json:
        print_json(
            {
                "asked": name,
                "metrics": [
                    {**_as_json(group[0].metric), "asked_as": [_name_as_json(use.name) for use in group]}
                    for group in by_metric.values()
                ],
                "see_also": [_use_as_json(use) for use in aside],
            }
        )
        return
    console = _console()
    for group in by_metric.values():
        names = [] if ours else [use.name for use in group]
        _show(console, explanation(group[0].metric, names, boxed=console.is_terminal))
    for use in aside:
        sentence = Text.assemble(("see also ", "dim"), (use.metric.name, "bold cyan"), ": ", (use.name.key, "bold"))
        sentence.append(f" of {SYSTEM_TITLES[use.name.system]} is ").append(_relation(use.name, use.metric)).append(".")
        _show(console, Padding(sentence, (0, 3)))


def explanation(metric: Metric, names: list[Name], *, boxed: bool) -> RenderableType:
    """Returns everything that is known of a metric, and how the names that the user asked for relate to it."""
    tags = " · ".join(filter(None, (metric.tier.replace("_", " "), metric.unit, ", ".join(metric.algorithms))))
    body = Group(Text(metric.meaning, style="bold"), "", Text(metric.formula, style="cyan"))
    head: RenderableType = Panel(
        body,
        title=f"[bold cyan]{metric.name}[/]",
        title_align="left",
        subtitle=f"[dim]{tags}[/]",
        subtitle_align="right",
        box=box.ROUNDED,
        border_style="cyan",
        padding=(1, 2),
    )
    if not boxed:
        head = Group(Text(f"{metric.name}  ({tags})"), Padding(body, (1, 3)))
    others = [_relation_sentence(metric, name) for name in names if name.system != "rlpipe"]
    parts = [head, *(["", *others] if others and boxed else others)]
    facts = [("unit", metric.unit), ("merged", describe_reduction(metric))]
    facts += [("healthy", f"{rule}  [{rule.name}]") for rule in metric.rules if rule.level == "ok"]
    if metric.needs:
        facts.append(("needs", f"{metric.needs[0].upper()}{metric.needs[1:]}; absent otherwise."))
    if metric.hidden:
        facts.append(("plot", "None: it is an ingredient of other metrics."))
    if metric.is_histogram:
        facts.append(("shown", "As a distribution: in TensorBoard's histogram tab; as percentiles in metrics.jsonl."))
    if metric.language:
        facts.append(("tokens", metric.language))
    parts.append(_rows("", facts))
    graver = sorted(metric.rules, key=lambda rule: -LEVELS.index(rule.level))
    alerts = [(rule.level, f"{rule}  [{rule.name}]") for rule in graver if rule.level != "ok"]
    if alerts:
        parts.append(_rows("An alert is raised unless it is", alerts))
    if metric.signs:
        parts.append(_signs(metric))
    if metric.names:
        parts.append(_names(metric))
    return Group(*parts, "")


def _relation_sentence(metric: Metric, name: Name) -> RenderableType:
    """Returns a sentence on how the name that the user asked for relates to the explained metric."""
    sentence = Text.assemble((name.key, "bold"), f" of {SYSTEM_TITLES[name.system]} is ", _relation(name, metric))
    if name.relation == "exact":
        sentence.append(f" as {metric.name}")
    elif name.relation != "transform":
        sentence.append(f"; nearest is {metric.name}")
    return Padding(sentence.append("."), (0, 3))


def _relation(name: Name, metric: Metric) -> Text:
    described = Text.assemble((describe_relation(name, metric), RELATION_STYLES[name.relation]))
    return described.append(f" ({name.note})", style="default") if name.note else described


def _section(title: str, body: RenderableType) -> RenderableType:
    return Group(*([Padding(Text(title, style="bold"), (1, 0, 0, 3))] if title else [""]), Padding(body, (0, 3)))


def _rows(title: str, rows: list[tuple[str, str]]) -> RenderableType:
    grid = _grid(9)
    for number, (label, text) in enumerate(rows):
        fact, bracket, rest = text.partition("  [")
        repeated = label == "healthy" and rows[number - 1][0] == label
        style = LEVEL_STYLES.get(label, "green" if label == "healthy" else "dim")
        grid.add_row(Text("" if repeated else label, style=style), Text.assemble(fact, (bracket + rest, "dim")))
    return _section(title, grid)


def _grid(*widths: int) -> Table:
    grid = Table.grid(padding=(0, 2))
    for width in widths:
        grid.add_column(width=width)
    grid.add_column(ratio=1)
    return grid


def _signs(metric: Metric) -> RenderableType:
    grid = _grid(9)
    for number, sign in enumerate(metric.signs.values()):
        if number:
            grid.add_row()
        grid.add_row(Text("seen", style="dim"), Text(sign.seen, style="yellow"))
        grid.add_row(Text("because", style="dim"), Text(sign.cause))
        grid.add_row(Text("try", style="dim"), Text(sign.remedy))
    return _section("Warning signs", grid)


def _names(metric: Metric) -> RenderableType:
    grid = _grid(
        max(len(SYSTEM_TITLES[name.system]) for name in metric.names), max(len(name.key) for name in metric.names)
    )
    for name in metric.names:
        grid.add_row(Text(SYSTEM_TITLES[name.system], style="dim"), Text(name.key), _relation(name, metric))
    return _section("Elsewhere", grid)


def _table_of_metrics(metrics: list[Metric], *, boxed: bool) -> Table:
    table = table_of_list(boxed=boxed)
    table.add_column("metric", no_wrap=True, style="cyan")
    table.add_column("unit", max_width=18)
    table.add_column("meaning", ratio=1)
    before = ""
    for metric in metrics:
        group = metric.name.rpartition("/")[0] if metric.name.startswith("train/") else metric.name.split("/")[0]
        if boxed and before not in ("", group):
            table.add_section()
        before = group
        meaning = Text(metric.meaning)
        if metric.needs:
            meaning.append(f" Needs {metric.needs}.", style="dim")
        table.add_row(metric.name, metric.unit, meaning)
    return table


def _table_of_names(title: str, entries: list[Use], *, boxed: bool) -> Table:
    table = table_of_list(Text(title, style="bold"), boxed=boxed)
    for column in ["key there, metric here"] if boxed else ["key there", "metric here"]:
        table.add_column(column, no_wrap=True)
    table.add_column("how they relate", ratio=1)
    for use in entries:
        key, metric = Text(use.name.key, style="bold" if boxed else ""), Text(use.metric.name, style="cyan")
        table.add_row(
            *([Text("\n  ").join([key, metric])] if boxed else [key, metric]), _relation(use.name, use.metric)
        )
    return table


def _namespaces(name: str) -> list[str]:
    """Returns all namespaces of a name: ``train`` and ``train/actor`` for ``train/actor/lr``."""
    parts = name.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]


def _unknown(name: str) -> str:
    """Returns the error for a name that no system has, with the nearest names of all systems."""
    names = list(dict.fromkeys([*CATALOGUE, *(use.name.key for system in SYSTEMS for use in uses(system))]))
    last = name.rpartition("/")[2]
    by_last: dict[str, list[str]] = {}
    for candidate in names:
        by_last.setdefault(candidate.rpartition("/")[2], []).append(candidate)
    alike = [*by_last.get(last, []), *difflib.get_close_matches(name, names, n=4, cutoff=0.6)]
    alike += [
        candidate for end in difflib.get_close_matches(last, by_last, n=2, cutoff=0.75) for candidate in by_last[end]
    ]
    near = ", ".join(list(dict.fromkeys(alike))[:5])
    return f"no system has a metric called {name!r}; {f'nearest are {near}' if near else 'see rlpipe metrics list'}."


def _as_json(metric: Metric) -> dict[str, Any]:
    kind = observed_metric(metric).reduction
    return {
        "name": metric.name,
        "tier": metric.tier,
        "unit": metric.unit,
        "meaning": metric.meaning,
        "formula": metric.formula,
        "reduction": kind.__name__ if kind and metric.compute is None else None,
        "reads": metric.reads or None,
        "inputs": [source.name for source in metric.inputs],
        "merged": describe_reduction(metric),
        "algorithms": list(metric.algorithms),
        "needs": metric.needs or None,
        "tokens": metric.language or None,
        "healthy": None if metric.healthy is None else {"low": metric.healthy.low, "high": metric.healthy.high},
        "rules": [{"name": rule.name, "level": rule.level, "demanded": str(rule)} for rule in metric.rules],
        "signs": [{"seen": sign.seen, "cause": sign.cause, "remedy": sign.remedy} for sign in metric.signs.values()],
        "names": [_name_as_json(name) for name in metric.names],
    }


def _name_as_json(name: Name) -> dict[str, Any]:
    return {
        "system": name.system,
        "key": name.key,
        "relation": name.relation,
        "convert": name.convert,
        "note": name.note,
    }


def _use_as_json(use: Use, *, written: bool = False) -> dict[str, Any]:
    return {**_name_as_json(use.name), "metric": use.metric.name, "written": written}


def _show(console: Console, content: RenderableType) -> None:
    """Prints to a terminal as it is, to a program without spaces at the ends of lines."""
    with console.capture() as captured:
        console.print(content)
    lines = captured.get().splitlines()
    print("\n".join(lines if console.is_terminal else (line.rstrip() for line in lines)))


def _console(*, wide: bool = False) -> Console:
    """Returns a console of at most 100 columns, so that lines stay readable; a list for a program is not cut."""
    piped = not sys.stdout.isatty()
    width = (200 if wide else 100) if piped else min(100, Console().width)
    return Console(highlight=False, width=width)
