"""Sections of facts: distributions, how the run was set up, and what the page does not show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from rlpipe.config.tree import leaves
from rlpipe.errors import command_line
from rlpipe.report import formats
from rlpipe.report.run_content import RunContent
from rlpipe.report.web.page import Section, render


def distributions_section(content: RunContent) -> Section | None:
    """Histograms of the newest row that has any."""
    course = content.course
    histograms = [_histogram(content, name, view) for name, view in course.histograms.items() if len(view["counts"])]
    if not histograms:
        return None
    note = (
        f"All observations of iteration {course.histograms_at:,}; heights are counts in bins of equal width. "
        "Percentiles are right to 0.5 %."
    )
    html = render("report/distributions.html", note=note, histograms=histograms)
    return Section("distributions", "Distributions", html)


def _histogram(content: RunContent, name: str, view: Mapping[str, Any]) -> dict[str, Any]:
    counts, edges, percentiles = view["counts"], view["edges"], view["percentiles"]
    most, metric = max([*counts, 1]), content.metric(name)
    bars = [
        {"x": number, "y": round(100 - 100 * count / most, 2), "width": 0.92, "height": round(100 * count / most, 2)}
        for number, count in enumerate(counts)
        if count
    ]
    quantiles = [f"{label} {formats.digits(percentiles[key])}" for key, label in (
        ("p5", "5 %"), ("p50", "median"), ("p95", "95 %")) if key in percentiles]  # fmt: skip
    summary = f"{sum(counts):,} observations; {', '.join(quantiles)}."
    return {
        "name": name, "unit": "" if metric is None or metric.unit == "count" else metric.unit, "bars": bars,
        "width": len(counts), "low": formats.digits(edges[0]), "high": formats.digits(edges[-1]), "summary": summary,
    }  # fmt: skip


def setup_section(content: RunContent) -> Section | None:
    """Protocol, versions, machines and configuration."""
    record = content.record
    if not record:
        return None
    versions, cluster = record.get("versions", {}), record.get("cluster", {})
    nodes = cluster.get("nodes", [])
    machines = ", ".join(
        f"{node.get('host')} ({node.get('cpus', '?')} CPUs{_gpus(node)})" for node in nodes[:8]
    ) + (f" and {len(nodes) - 8} more" if len(nodes) > 8 else "")  # fmt: skip
    facts = [
        ("Run directory", str(content.path)),
        ("Started", formats.moment(record["created"])),
        ("Seeds", ", ".join(f"{key} {value}" for key, value in record.get("seeds", {}).items())),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("Git commit", record.get("git_commit") or "none: an installed package"),
        ("Machines", f"{cluster.get('mode', '')}, {cluster.get('workers', '?')} rollout workers, {machines}"),
    ]
    if record.get("resumed_after"):
        facts.append(("Continued after", "iterations " + ", ".join(map(str, record["resumed_after"]))))
    details = [("Protocol of the evaluation and the training", [*leaves(record.get("protocol", {}))])]
    if content.settings is not None:
        details.append((f"All {len(content.settings):,} configuration keys", [*content.settings.items()]))
    html = render("report/setup.html", facts=facts, changed=content.changed or {}, details=details)
    return Section("setup", "Setup", html)


def _gpus(node: Mapping[str, Any]) -> str:
    count = node.get("gpus")
    return f", {count:g} GPUs" if count else ""


def about_section(contents: Sequence[RunContent], left_out: Sequence[str]) -> Section:
    """Says what is not on the page, and how its numbers can be had again."""
    paths = [content.path for content in contents]
    commands = [command_line("report", *paths)]
    if all(content.is_ours for content in contents):
        single = [
            command_line(*command.split(), paths[0]) for command in ("diagnose", "timeline", "export --format csv")
        ]
        commands += single if len(paths) == 1 else [command_line("compare", *paths)]
        sources = (
            "Curves are the rows of metrics.jsonl, episodes those of episodes.jsonl and eval_episodes.jsonl, events "
            "those of events.jsonl. Curves hold six significant digits; all other numbers are rounded once, from the "
            "full number, to the digits shown. Shares have Wilson's 95 % interval, other means a bootstrap's (BCa)."
        )
    else:
        commands += [command_line("diagnose", path) for path in paths]
        sources = (
            "Numbers are those of the log under the names of rlpipe's metrics (rlpipe metrics list --dialect), with "
            "six significant digits in curves."
        )
    return Section("about", "About this page", render(
        "report/about.html", left_out=left_out, commands=commands, sources=sources,
        when=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), version=metadata.version("rlpipe")))  # fmt: skip
