"""The documentation agrees with the code: every metric, every configuration key with its default, every example."""

from __future__ import annotations

import dataclasses
import functools
import json
import pkgutil
import re
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from omegaconf import OmegaConf

import rlpipe
from docs.generate import configuration, pages, stored
from rlpipe.config.schema import Config, StageConfig
from rlpipe.errors import ConfigError
from rlpipe.metrics import CATALOGUE
from rlpipe.plugins import resolve, shipped
from rlpipe.policies.base import PolicyConfig
from rlpipe.run import checkpoint
from rlpipe.run.directory import read_jsonl
from tests.helpers.commands import command
from tests.helpers.runs import scripted

DOCS = Path(__file__).parent.parent / "docs"
REQUIRED = "required"


REFERENCE = stored()


def test_the_reference_is_up_to_date(monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)  # a default that is read where the reference is written
    expected = pages()
    assert REFERENCE.keys() == expected.keys(), "run: python -m docs.generate"
    assert [path for path, text in expected.items() if REFERENCE[path] != text] == [], "run: python -m docs.generate"


def test_every_metric_has_one_entry_in_the_reference():
    text = "\n".join(page for path, page in REFERENCE.items() if path.startswith("reference/metrics/"))
    assert sorted(re.findall(r"^(?:## `|- \*\*`)([^`]+)`", text, flags=re.MULTILINE)) == sorted(CATALOGUE)


def test_what_a_metric_says_of_itself_is_a_sentence():
    texts = [text for metric in CATALOGUE.values() for text in (metric.meaning, metric.language) if text]
    assert [text for text in texts if not text[0].isupper() or not text.endswith(".") or "  " in text] == []


PAGES = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("*/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_an_empty_line_ends_each_table(page):  # Markdown would make a row of what follows, and lose a heading
    assert re.findall(r"^\|.*\n(?!\||\n|> ).+", page.read_text(encoding="utf-8"), flags=re.MULTILINE) == []


def test_a_misspelt_key_is_answered_as_the_page_says():
    with pytest.raises(ConfigError) as caught:
        rlpipe.load_config(DOCS.parent / "configs/ppo_cartpole.yaml", ["runner.totl_timesteps=5"])
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert str(caught.value) in " ".join(text.split())


def slug(heading: str) -> str:
    """Anchor of a heading, as forges and the site make it."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w -]", "", plain).strip().replace(" ", "-")


@functools.cache
def anchors(page: Path) -> set[str]:
    """Anchors of the headings of a page, outside of its blocks of code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)}


def leads_somewhere(target: Path, anchor: str) -> bool:
    return target.exists() and (not anchor or target.suffix != ".md" or anchor in anchors(target))


def test_every_link_leads_somewhere():
    broken = []
    for page in [*PAGES, *(DOCS / path for path in REFERENCE)]:
        text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for path, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
            if not leads_somewhere(page.parent / path if path else page, anchor):
                broken.append(f"{page.name}: {path}#{anchor}")
    assert broken == []


def test_every_page_that_the_code_names_exists():
    named = {
        (name, anchor)
        for folder in ("rlpipe", "configs", "tests", "benchmarks", "launch")
        for file in (DOCS.parent / folder).rglob("*")
        if file.suffix in (".py", ".yaml", ".sh", ".toml") and "node_modules" not in file.parts
        for name, anchor in re.findall(r"\bdocs/([\w/]+\.md)(?:#([\w-]+))?", file.read_text(encoding="utf-8"))
    }
    assert named
    assert [link for link in sorted(named) if not leads_somewhere(DOCS / link[0], link[1])] == []


# --- reference/configuration: one table row for each key, | `key` | default | ...


def test_what_a_key_says_of_itself_is_a_sentence():
    for key in (key for parts in configuration.parts().values() for part in parts for key in part.keys):
        assert re.match(r"[A-Z`]", key.meaning) or key.name.startswith("runner.logger.options"), key
        assert key.meaning.endswith("."), key


def keys(schema: type[Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Full key and default of each field, with nested groups taken apart."""
    for field in dataclasses.fields(schema):
        value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if dataclasses.is_dataclass(value):
            yield from keys(type(value), f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", value


def documented(page: str) -> dict[str, set[str]]:
    """Defaults as written, by key; a plug-in that has another default than others of its kind repeats the key."""
    found: dict[str, set[str]] = {}
    text = REFERENCE[f"reference/configuration/{page}.md"]
    for key, default in re.findall(r"^\| `([^`]+)` \| `?([^|`]*)`? \|", text, flags=re.MULTILINE):
        found.setdefault(key, set()).add(default)
    return found


PLUGGED = {
    "envs": ("env", "env.train."),
    "policies": ("policy", "policy."),
    "policies.encoders": ("policy", "policy.encoders.LEAF."),
    "algorithms": ("algorithm", "algorithm."),
    "curricula": ("curriculum", "curriculum."),
    "backends": ("backends", "runner.logger.options.{}."),
}


def written(value: Any) -> Any:
    return getattr(value, "name", value) if isinstance(value, Enum) else value


@pytest.mark.parametrize("kind", PLUGGED)
def test_every_key_of_a_plug_in_is_documented_with_its_default(kind, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    page, prefix = PLUGGED[kind]
    rows = documented(page)
    for name in shipped(kind):
        for key, value in keys(resolve(kind, name, "name").Config, prefix.format(name)):
            read = [OmegaConf.create(f"value: {default}").value for default in rows[key]]
            assert (REQUIRED if value is dataclasses.MISSING else written(value)) in read, key


def test_every_other_key_is_documented_with_its_default():
    other = {"env", "policy", "algorithm", "curriculum", "stages"}
    for key, value in [*keys(Config, ""), *keys(StageConfig, "stages[i].")]:
        section = key.split(".")[0].removesuffix("[i]")
        if section not in other or key.startswith("stages["):
            (default,) = documented("demos" if section in ("num_demos", "demo_leaves") else section)[key]
            assert OmegaConf.create(f"value: {default}").value == (REQUIRED if value is dataclasses.MISSING else value)


# --- algorithms/: options with their defaults, formulas, metrics and files


def algorithm_page(name: str) -> str:
    return (DOCS / "algorithms" / f"{PAGE_OF.get(name, name)}.md").read_text(encoding="utf-8")


PAGE_OF = {"behaviour_cloning": "cloning"}
"""Pages that are not named as their algorithm is."""


@pytest.mark.parametrize("name", shipped("algorithms"))
def test_the_page_of_an_algorithm_has_options_with_their_defaults(name):
    options = algorithm_page(name).split("\n## Options\n")[1].split("\n## ")[0]
    prefix = "algorithm." if "| `algorithm.` | default |" in options else ""
    config = dict(keys(resolve("algorithms", name, "name").Config, "algorithm."))
    config |= {**dict(keys(PolicyConfig, "policy.")), "demos": None, "num_demos": None}
    rows = re.findall(r"^\| (`\w.*?`) \| (.*?) \|", options.partition("--- |\n")[2], flags=re.MULTILINE)
    assert len(rows) > 5
    for names, defaults in rows:
        values = OmegaConf.create(f"[{defaults.replace('`', '')}]")
        assert [config[prefix + key] for key in re.findall(r"`([\w.]+)`", names)] == list(values)


@pytest.mark.parametrize("name", shipped("algorithms"))
def test_the_page_of_an_algorithm_names_formulas_metrics_and_files_that_exist(name):
    page = algorithm_page(name)
    formulas = page.split("\n## Formulas\n")[1].split("\n## ")[0]
    functions = re.findall(r"\| `(?:rlpipe\.functional\.)?(\w+\.\w+)` \|$", formulas, flags=re.MULTILINE)
    assert functions
    assert all(callable(pkgutil.resolve_name(f"rlpipe.functional.{function}")) for function in functions)
    metrics = re.findall(r"`((?:train|rollout|env|eval)/[\w/]+)`", page)
    assert len(metrics) > 2
    assert set(metrics) <= CATALOGUE.keys()
    assert all((DOCS.parent / file).is_file() for file in re.findall(r"`(rlpipe/[\w/]+\.py)`", page))


# --- extending.md and run_directory.md: what they show, works


def examples(page: str) -> dict[str, str]:
    """Python blocks of a page by the file that their first line names."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    return {block.splitlines()[0].removeprefix("# "): block for block in blocks}


@pytest.fixture
def my_lab(tmp_path, monkeypatch):
    """The examples of extending.md as an importable package."""
    for name, block in examples("extending.md").items():
        if name.startswith("my_lab/"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(block, encoding="utf-8")
    for name in [name for name in sys.modules if name.split(".")[0] == "my_lab"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.extras
def test_the_plug_ins_of_the_guide_train(my_lab, tmp_path):
    config = rlpipe.load_config(
        {
            "env": {"train": {"name": "my_lab.reach:Reach", "total_num_envs": 4}},
            "policy": {"name": "my_lab.linear:LinearPolicy"},
            "algorithm": {"name": "my_lab.a2c:A2C"},
            "learner": {"num_threads": 1},
            "rollout": {"horizon": 40},
            "evaluation": {"episodes": 5},
            "runner": {
                "total_timesteps": 480,
                "logger": {"log_path": str(tmp_path), "logger_backends": ["my_lab.csv_backend:Csv"]},
            },
        }
    )
    result = rlpipe.train(config, local=True)
    assert result.metrics["eval/num_trajectories"] == 5
    assert {"eval/success_once", "train/critic/explained_variance", "train/actor/action_std"} <= result.metrics.keys()
    assert "3,eval/num_trajectories,5.0\n" in (result.directory / "metrics.csv").read_text()


@pytest.mark.extras
def test_the_first_example_of_the_guide_trains(my_lab, tmp_path):
    result = rlpipe.train(scripted(tmp_path, algorithm={"name": "my_lab.sign_ppo:SignPPO"}), local=True)
    assert result.metrics["train/actor/advantages_norm_max"] == 1.0
    assert result.metrics["train/actor/advantages_norm_min"] == -1.0


def test_the_numbers_of_the_guide_are_summarised_in_training_and_evaluations(my_lab, tmp_path):
    env = {"train": {"name": "gymnasium", "id": "my_lab.measured:MeasuredCartPole-v0", "total_num_envs": 4}}
    run = rlpipe.train(scripted(tmp_path, "runner.total_timesteps=512", "rollout.horizon=64", env=env), local=True)
    for space, file in (("env", "episodes.jsonl"), ("eval", "eval_episodes.jsonl")):
        last = [row["metrics"] for row in read_jsonl(run.directory / file) if row["iteration"] == 2]
        for key in ("distance/least", "distance/mean", "distance/most", "distance/last", "fall/last"):
            name, _, summary = key.partition("/")
            values = [row[key] for row in last if key in row]  # the pole of an episode that was cut off has not fallen
            assert run.metrics[f"{space}/metrics/{name}/{summary}"] == pytest.approx(sum(values) / len(values))
        assert all(row["distance/least"] < row["distance/mean"] < row["distance/most"] for row in last)
        assert all(row["fall/least"] == row["fall/most"] for row in last if "fall/most" in row)
    assert not any("nonfinite" in row for row in read_jsonl(run.directory / "metrics.jsonl"))


@pytest.mark.extras
def test_the_encoder_of_the_guide_learns_from_a_camera(my_lab, tmp_path):
    env = {"train": {"name": "gymnasium", "id": "tests.helpers.gym_trees:Sides-v0"}}
    encoders = {"camera/rgb": {"name": "my_lab.columns:Columns"}}
    policy = {"name": "mlp", "hidden_sizes": [16], "encoders": encoders, "actor_observations": ["camera/rgb"]}
    options = ("env.train.total_num_envs=8", "runner.total_timesteps=8192", "rollout.horizon=64", "learner.lr=0.01")
    result = rlpipe.train(scripted(tmp_path, *options, "algorithm.discount=0.5", env=env, policy=policy), local=True)
    assert result.metrics["env/return"] > 7.2  # of 8; chance is 4


@pytest.mark.extras
def test_the_registered_environment_of_the_guide_is_found(my_lab, tmp_path):
    env = {"train": {"name": "gymnasium", "id": "my_lab.tasks:ShortCart-v0", "total_num_envs": 4}}
    result = rlpipe.train(scripted(tmp_path, env=env), local=True)
    assert result.metrics["env/episode_len_max"] == 10


@pytest.mark.extras
def test_the_test_of_the_guide_passes(tmp_path):
    names: dict[str, Any] = {}
    exec(examples("extending.md")["tests/test_my_lab.py"], names)
    names["test_two_of_three_episodes_succeed"](tmp_path)


@pytest.mark.extras
def test_the_command_for_a_gymnasium_task_of_ones_own_trains_that_of_the_tutorial(tmp_path, monkeypatch):
    written = r"rlpipe (train ppo_cartpole env\.train\.id=my_task:\S+ \S+)"
    pages = (DOCS.parent / "README.md", DOCS / "getting_started.md")
    (typed,) = {re.search(written, page.read_text(encoding="utf-8"))[1] for page in pages}
    tutorial = (DOCS / "tutorials/environment.md").read_text()
    task = re.search(r"%%writefile corridor\.py\n(.*?)```", tutorial, re.DOTALL)[1]
    (tmp_path / "my_task.py").write_text(task.replace("Corridor-v0", "MyTask-v0"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    short = ("runner.total_timesteps=256", "evaluation.episodes=2", "runner.report=false")
    answer = command(*typed.split(), "--local", *short)
    del sys.modules["my_task"], gymnasium.registry["MyTask-v0"]
    assert answer.code == 0, answer.err
    assert "success_once" in answer.out


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Directory of a run of four iterations."""
    return rlpipe.train(scripted(tmp_path_factory.mktemp("run")), local=True).directory


def test_the_snippets_about_the_run_directory_work(run):
    names: dict[str, Any] = {"run": run}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / "run_directory.md").read_text("utf-8"), flags=re.DOTALL):
        exec(block, names)
    row = list(read_jsonl(run / "metrics.jsonl"))[2]["metrics"]
    assert names["metrics"] == {
        name: value for name, value in row.items() if name.startswith(("env/", "rollout/score_"))
    }
    assert names["meta"]["iteration"] == 4
    assert "actor.0.weight" in names["weights"]


def test_the_tables_of_the_run_directory_name_every_field(run):
    page = (DOCS / "run_directory.md").read_text("utf-8")
    named = set(re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in page.splitlines() if line[:1] == "|")))
    contents = json.loads((run / "run.json").read_text())
    written = {*contents, *contents["protocol"], *checkpoint.newest(run).meta}
    for name in ("metrics.jsonl", "episodes.jsonl", "eval_episodes.jsonl", "events.jsonl", "timeline.jsonl"):
        written |= next(read_jsonl(run / name)).keys()
    written |= next(read_jsonl(run / "timeline.jsonl"))["spans"][0].keys()
    prints = next(read_jsonl(run / "fingerprints.jsonl"))
    written |= {*prints, *prints["fragments"][0], *prints["updates"][0]}
    assert written <= named
