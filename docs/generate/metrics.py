"""Reference of the metrics: a page for each namespace, from the catalogue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from docs.generate.markdown import code, table, wrapped
from rlpipe.metrics import CATALOGUE
from rlpipe.metrics.declaration import Metric, Name
from rlpipe.metrics.descriptions import SYSTEM_TITLES, describe_relation, observed_metric
from rlpipe.metrics.dialects import DIALECTS, Use, left_out, written
from rlpipe.metrics.rules import LEVELS, Holds, Rule

FOLDER = "reference/metrics"
SECTIONS = {
    "train/": "The update, counted over every minibatch and epoch of the iteration.",
    "train/actor/": "The policy's side of the update.",
    "train/critic/": "The value function's side of the update.",
    "rollout/": "The batch that was learnt from, each decision once.",
    "env/": "Training episodes that ended in this iteration. All of these can be recomputed from `episodes.jsonl`.",
    "eval/": "Evaluation episodes, in the rows of evaluated iterations. All of these can be recomputed from "
    "`eval_episodes.jsonl`.",
    "time/": "Where the time goes. `generate_rollouts + cal_adv_and_returns + actor_training + sync_weights + eval + "
    "checkpoint + log + other = step`: these are disjoint; one that did not occur is absent. The other times lie "
    "within them and must not be added up.",
}

STATISTICS = {
    "mean": "the mean of all",
    "std": "the deviation of all",
    "var": "the variance of all",
    "sample_var": "the variance of all, by n - 1",
    "min": "the smallest of all",
    "max": "the largest of all",
    "skew": "the skewness of all",
}
NAMED = re.compile(
    r"(?<![\w/`])((?:train|rollout|env|eval|time)/(?:[\w/{}]*\w}?/?)?"
    r"|(?:algorithm|learner|rollout|evaluation|runner|policy|env\.train)\.[a-z_]+(?:\.[a-z_]+)*(?:=\w+)?"
    r"|(?:eval_)?(?:episodes|events|metrics)\.jsonl)"
)


def marked(text: str) -> str:
    """Formats the names of metrics, keys and files in prose as code."""
    return NAMED.sub(r"`\1`", text)


def joined(parts: Sequence[str]) -> str:
    """Joins parts to ``a, b and c``."""
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]


def namespace_of(metric: Metric) -> str:
    """Returns the longest namespace of ``SECTIONS`` with which the name of a metric begins."""
    return max((prefix for prefix in SECTIONS if metric.name.startswith(prefix)), key=len)


def merging(metric: Metric) -> str:
    """Names the way in which the observations of all workers become one number, in the words of docs/metrics.md."""
    if metric.compute is not None:
        return f"from {joined([code(one.name) for one in metric.inputs])}"
    observed = observed_metric(metric)
    kind = observed.reduction.__name__ if observed.reduction else ""
    plain = {
        "Sum": "a sum", "Mean": "a mean", "Last": "set once", "Histogram": "a histogram",
        "GroupedMean": "a mean by environment", "Recent": "the last 100",
    }  # fmt: skip
    phrase = plain.get(kind) or STATISTICS[metric.reads]
    return phrase + (", over the run" if observed.lifetime and kind == "Sum" else "")


def algorithms(metric: Metric) -> str:
    """Names the algorithms that have a metric; empty if all do."""
    return joined([name.upper() for name in metric.algorithms]) if metric.algorithms else ""


def demand(rule: Rule) -> str:
    """Formats the demand of a rule, with formulas as code, and the name of the rule."""
    check = str(rule.check)
    demanded = code(check) if isinstance(rule.check, Holds) else marked(check)
    rest = str(rule).removeprefix(check)
    if rule.when and not rule.when.startswith("tag:"):
        rest = re.sub(r"^, when (.*?)( \(\d+ reports in a row\))?$", r", when `\1`\2", rest)
    return f"{demanded}{rest} [{rule.name}]"


def health(metric: Metric) -> Iterator[str]:
    """Yields the healthy range and the alerts as sentences."""
    healthy = [demand(rule) for rule in metric.rules if rule.level == "ok"]
    if healthy:
        yield f"**Healthy** {'; '.join(healthy)}."
    graver = sorted(metric.rules, key=lambda rule: -LEVELS.index(rule.level))
    alerts = [f"*{rule.level}* unless {demand(rule)}" for rule in graver if rule.level != "ok"]
    if alerts:
        yield f"**Alert** {'; '.join(alerts)}."


def elsewhere(metric: Metric) -> Iterator[str]:
    """Yields one sentence per name in another system."""
    for name in metric.names:
        yield f"{SYSTEM_TITLES[name.system]} {code(name.key)}: {related(name, metric)}"


def related(name: Name, metric: Metric) -> str:
    """Describes how a number elsewhere relates to ours, with its note."""
    return describe_relation(name, metric) + (f" ({marked(name.note)})" if name.note else "")


def full(metric: Metric) -> str:
    """Formats a core metric."""
    parts = [f"## `{metric.name}`\n", wrapped(marked(metric.meaning)), f"    {metric.formula}\n"]
    facts = {"Unit": metric.unit, "Merged": merging(metric), "Algorithms": algorithms(metric)}
    parts.append(wrapped(" · ".join(f"**{name}** {fact}" for name, fact in facts.items() if fact)))
    parts += [wrapped(sentence) for sentence in health(metric)]
    if metric.signs:
        rows = [[marked(sign.seen), marked(sign.cause), marked(sign.remedy)] for sign in metric.signs.values()]
        parts.append(table(("seen", "because", "try"), rows))
    if metric.language:
        parts.append(wrapped(f"**In tokens** {marked(metric.language)}"))
    if metric.names:
        parts.append("**Elsewhere**\n\n" + "".join(wrapped(line, "- ") for line in elsewhere(metric)))
    return "\n".join(parts)


def compact(metric: Metric) -> str:
    """Formats any other metric in a few lines, with the same parts."""
    facts = "; ".join(filter(None, (metric.unit, merging(metric), algorithms(metric))))
    below = [" ".join(health(metric))]
    signs = metric.signs.values()
    below += [f"*{marked(sign.seen)}*: {marked(sign.cause)}. Try: {marked(sign.remedy)}." for sign in signs]
    below += [f"**In tokens** {marked(metric.language)}" if metric.language else ""]
    below += [f"**Elsewhere** {'; '.join(elsewhere(metric))}." if metric.names else ""]
    lines = [wrapped(line, "    - ") for line in below if line]
    head = f"**`{metric.name}`** ({facts}). {marked(metric.meaning)} {code(metric.formula)}"
    return wrapped(head, "- ") + "".join(lines)


def shown(metrics: Iterable[Metric]) -> str:
    """Formats metrics compactly, in their order."""
    return "".join(map(compact, metrics))


def namespace(prefix: str, sentence: str) -> str:
    """Writes the page of a namespace: core metrics in full, the rest compactly."""
    metrics = [metric for metric in CATALOGUE.values() if namespace_of(metric) == prefix]
    listed = [metric for metric in metrics if not (metric.hidden or metric.is_histogram)]
    everywhere = [metric for metric in listed if not metric.needs]
    parts = [
        f"# `{prefix}`\n",
        "[How to read an entry](../../metrics.md#how-to-read-an-entry) · "
        "[letters of the formulas](../../metrics.md#letters) · [all pages](../index.md)\n",
        wrapped(marked(sentence)),
    ]
    parts += [full(metric) for metric in everywhere if metric.tier == "core"]
    if rest := [metric for metric in everywhere if metric.tier != "core"]:
        parts.append(f"## More\n\n{shown(rest)}")
    if needs := list(dict.fromkeys(metric.needs for metric in listed if metric.needs)):
        parts.append("## Only some runs have these\n")
        for need in needs:
            users = [metric for metric in listed if metric.needs == need]
            parts.append(f"### {need[0].upper()}{need[1:]}\n\n{shown(users)}")
    if histograms := [metric for metric in metrics if metric.is_histogram]:
        parts.append(f"## Distributions\n\n{shown(histograms)}")
    if hidden := [metric for metric in metrics if metric.hidden]:
        parts.append("## Ingredients\n\nObserved as ingredients of other metrics, without a key in a row.\n")
        parts.append(shown(hidden))
    return "\n".join(parts)


def dialect(system: str) -> str:
    """Formats the keys of a system that are written, and those that are left out."""

    def rows(chosen: Iterable[Use]) -> list[list[str]]:
        return [[code(use.name.key), code(use.metric.name), related(use.name, use.metric)] for use in chosen]

    head = ("key", "metric here", "how they relate")
    parts = [f"## {SYSTEM_TITLES[system]}: `{system}`\n", table(head, rows(written(system).values()))]
    if absent := left_out(system).values():
        parts += [f"Left out, with the nearest metric:\n\n{table(head, rows(absent))}"]
    return "\n".join(parts)


def dialects() -> str:
    """Writes the page of the names in other systems."""
    introduction = "Keys that `runner.logger.dialects` adds to a row. [How they are chosen](../../dialects.md).\n"
    return "\n".join(["# Names in other systems\n", introduction, *map(dialect, DIALECTS)])


def pages() -> dict[str, str]:
    """Writes all pages, by their path below docs/."""
    namespaces = {
        f"{FOLDER}/{prefix.strip('/').replace('/', '_')}.md": namespace(prefix, sentence)
        for prefix, sentence in SECTIONS.items()
    }
    return {**namespaces, f"{FOLDER}/dialects.md": dialects()}
