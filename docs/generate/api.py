"""Reference of the Python interface: signatures and docstrings of public names, readable without a build."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from docs.generate.markdown import code, prose, wrapped
from docs.generate.source import texts_below

ROOT = Path(__file__).parents[2]
FOLDER = "reference/api"
DEPTH = 2
WIDTH = 100
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):$")
WORDS = {"Args": "Arguments"}
FUNCTIONAL = (
    "advantages", "losses", "levels", "groups", "aggregation", "reference", "n_step", "soft_actor_critic", "hindsight",
    "cloning", "augmentation", "curricula", "diagnostics", "intervals", "perceptron", "rotations",
)  # fmt: skip
METRICS = ("declaration", "window", "reductions", "rules", "row", "dialects")
TRAJECTORY = ("spaces", "tree", "batch", "rows", "episode", "starts")
EXAMPLE = "[Extending](../../extending.md#{}) has a complete example."
PAGES = {
    "rlpipe": (
        "rlpipe",
        "The same loop as the commands `rlpipe train` and `rlpipe evaluate`, what it returns and raises, and how to "
        "act with a trained policy ([examples](../../configuration.md#from-python)). Names on the pages of this folder "
        "are kept stable between versions.",
        (
            "rlpipe:load_config, train, evaluate, load_policy",
            "rlpipe.training.recovery:TrainResult",
            "rlpipe.analysis.evaluation_report:EvaluationReport",
            "rlpipe.serving.runner:ActingPolicy",
            "rlpipe.training.interruption:Interruption",
            "rlpipe.errors:ConfigError, RunError",
        ),
    ),
    "functional": (
        "Formulas",
        "Pure functions of tensors: no configuration, no state, no Ray. Each names its source, its shapes and its "
        "units, and can be used in a training loop of your own.",
        tuple(f"rlpipe.functional.{name}" for name in FUNCTIONAL),
    ),
    "metrics": (
        "Metrics",
        "How a metric is declared, observed and merged. None of this needs torch or Ray. `rlpipe.metrics.CATALOGUE` "
        f"holds the package's own by name. {EXAMPLE.format('a-metric')}",
        tuple(f"rlpipe.metrics.{name}" for name in METRICS),
    ),
    "envs": (
        "Environments",
        f"The step contract of every simulator. {EXAMPLE.format('an-environment')}",
        ("rlpipe.envs.base",),
    ),
    "policies": (
        "Policies",
        f"Actions, log-probabilities and values. {EXAMPLE.format('a-policy')}",
        ("rlpipe.policies.base", "rlpipe.policies.encoders.base"),
    ),
    "algorithms": (
        "Algorithms",
        f"From fragments to updates. {EXAMPLE.format('an-algorithm')}",
        ("rlpipe.algorithms.base", "rlpipe.metrics.on_device:Masked"),
    ),
    "curricula": (
        "Curricula",
        "Where training episodes begin. [Curricula](../../demonstrations.md#curricula) explains those that exist.",
        ("rlpipe.curricula.base",),
    ),
    "backends": (
        "Backends",
        f"Where rows and events go. {EXAMPLE.format('a-backend')}",
        ("rlpipe.backends.base",),
    ),
    "trajectory": (
        "Data",
        "What travels from collection to learning, with shapes, dtypes and units. T steps, N environments, D numbers "
        "of an observation, A numbers of an action, B decisions after flattening, K ended episodes, k actions of a "
        "chunk, H numbers of a memory.",
        tuple(f"rlpipe.trajectory.{name}" for name in TRAJECTORY),
    ),
}
"""Title, introduction and modules of each page; a module with the names to show after a colon, or else all public."""

Definition = ast.FunctionDef | ast.ClassDef


def source(node: ast.AST) -> str:
    """Writes a piece of code, with the quotes of this house."""
    return re.sub(r"'([^'\"\\]*)'", r'"\1"', ast.unparse(node))


def markdown(docstring: str) -> str:
    """Turns a docstring into Markdown, its sections into lists."""
    lines: list[str] = []
    in_section = False
    for line in docstring.splitlines():
        if found := SECTION.match(line):
            in_section = True
            lines += ["", f"{WORDS.get(found[1], found[1])}:", ""]
        elif not in_section:
            lines.append(line)
        elif entry := re.match(r"    ([\w.*]+(?:, [\w.*]+)*): (.*)", line):
            lines.append(f"- {', '.join(code(name.strip()) for name in entry[1].split(','))}: {entry[2]}")
        else:
            lines.append(f"  {line.strip()}" if lines[-1] else f"- {line.strip()}")
    return prose(re.sub(r"\n{3,}", "\n\n", "\n".join(lines)), DEPTH).strip()


def signature(function: ast.FunctionDef) -> str:
    """Writes a signature, with an argument on each line where it is long."""
    head, result = f"def {function.name}(", f") -> {source(function.returns)}" if function.returns else ")"
    typed = (re.sub(r"^(\w+: [^=]+)=", r"\1 = ", argument) for argument in split(source(function.args)))
    arguments = [argument for argument in typed if argument not in ("self", "cls")]
    line = f"{head}{', '.join(arguments)}{result}"
    if len(line) > WIDTH:
        line = head + "".join(f"\n    {argument}," for argument in arguments) + f"\n{result}"
    decorators = [source(decorator) for decorator in function.decorator_list]
    if any(decorator.endswith("property") for decorator in decorators):
        return f"{function.name}: {source(function.returns)}" if function.returns else function.name
    return f"@classmethod\n{line}" if "classmethod" in decorators else line


def split(arguments: str) -> Iterator[str]:
    """Yields arguments that commas separate outside of brackets."""
    start = depth = 0
    for place, letter in enumerate(arguments):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            yield arguments[start:place].strip()
            start = place + 1
    if arguments[start:].strip():
        yield arguments[start:].strip()


def class_head(definition: ast.ClassDef) -> str:
    """Writes the first line of a class, and its fields."""
    decorators = "".join(f"@{source(decorator)}\n" for decorator in definition.decorator_list)
    bases = f"({', '.join(map(source, definition.bases))})" if definition.bases else ""
    fields = [
        f"    {source(statement.target)}: {source(statement.annotation)}{default(statement.value)}"
        for statement in definition.body
        if isinstance(statement, ast.AnnAssign) and not source(statement.target).startswith("_")
    ]
    return "\n".join([f"{decorators}class {definition.name}{bases}{':' if fields else ''}", *fields])


def default(value: ast.expr | None) -> str:
    """Writes the default of a field; empty where there is none."""
    if not isinstance(value, ast.Call) or source(value.func) not in ("field", "option"):
        return "" if value is None else f" = {source(value)}"
    given = {keyword.arg: source(keyword.value) for keyword in value.keywords}
    if "default_factory" in given:
        return f" = {given['default_factory']}()"
    first = source(value.args[0]) if value.args else given.get("default")
    return "" if first is None else f" = {first}"


def entry(definition: Definition, level: str, owner: str = "") -> Iterator[str]:
    """Yields the paragraphs of a function, or of a class and its documented public methods."""
    docstring = ast.get_docstring(definition)
    if docstring is None or definition.name.startswith("_"):
        return
    yield f"{level} `{owner}{definition.name}`"
    yield f"```python\n{class_head(definition) if isinstance(definition, ast.ClassDef) else signature(definition)}\n```"
    yield markdown(docstring)
    if isinstance(definition, ast.ClassDef):
        yield listed(texts_below(definition.body))
        for method in definition.body:
            if isinstance(method, ast.FunctionDef):
                yield from entry(method, f"{level}#", f"{definition.name}.")


def module(name: str) -> Iterator[str]:
    """Yields the paragraphs of a module, or of some of its names."""
    name, _, chosen = name.partition(":")
    found = importlib.util.find_spec(name)
    assert found is not None
    assert found.origin is not None
    path = Path(found.origin)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    place = path.relative_to(ROOT).as_posix()
    yield f"## `{name}`"
    yield f"Source: [{place}](../../../{place})"
    if not chosen:
        yield markdown(inspect.cleandoc(ast.get_docstring(tree) or ""))
        yield listed(texts_below(tree.body))
    for statement in tree.body:
        if isinstance(statement, Definition) and (not chosen or statement.name in re.findall(r"\w+", chosen)):
            yield from entry(statement, "###")


def listed(texts: Mapping[str, str]) -> str:
    """Writes names and the texts below them in the source as a list."""
    public = {name: " ".join(text.split()) for name, text in texts.items() if not name.startswith("_")}
    return "\n".join(f"- `{name}`: {prose(text, DEPTH)}" for name, text in public.items())


def page(title: str, introduction: str, modules: Iterable[str]) -> str:
    """Writes a page."""
    paragraphs = [paragraph for name in modules for paragraph in module(name) if paragraph]
    return "\n\n".join([f"# {title}", wrapped(introduction).rstrip(), *paragraphs]) + "\n"


def pages() -> dict[str, str]:
    """Writes all pages, by their path below docs/."""
    return {f"{FOLDER}/{name}.md": page(*contents) for name, contents in PAGES.items()}
