"""Credentials stay in the environment: no run writes one down, and no configuration holds one."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlpipe
from rlpipe.backends.base import Backend
from rlpipe.config.loading import load_config
from rlpipe.config.tree import to_yaml
from rlpipe.errors import ConfigError
from rlpipe.run.directory import RunDirectory
from rlpipe.run.follower import mark_file, read_mark
from rlpipe.secrets import check_no_secrets, is_credential, redacted
from tests.helpers.backends import STORES, catch_up
from tests.helpers.commands import command
from tests.helpers.runs import scripted

ROOT = Path(__file__).parent.parent
SERVICES = (
    "WANDB_API_KEY", "SWANLAB_API_KEY", "HF_TOKEN", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN",
    "RAY_AUTH_TOKEN", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN",
)  # fmt: skip
SENTINELS = {name: hashlib.sha1(name.encode()).hexdigest() for name in SERVICES}
"""A value for each that stands nowhere else; W&B takes only 40 characters."""


# --- what a run writes


@pytest.mark.soak
@pytest.mark.ray
def test_a_run_with_every_backend_writes_no_credential_down(tmp_path):
    """On Ray, where more is written: its own files, too. One process then shows the run in every backend."""
    config = scripted(tmp_path / "runs", "runner.logger.logger_backends=[console]", "evaluation.episodes=1")
    (tmp_path / "c.yaml").write_text(to_yaml(config), encoding="utf-8")
    (tmp_path / "home").mkdir()
    with tempfile.TemporaryDirectory(prefix="rp-") as ray_folder:  # a socket's path must be short
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            "PYTHONPATH": str(ROOT),
            "HOME": str(tmp_path / "home"),
            "RAY_TMPDIR": ray_folder,
            **SENTINELS,
        }

        program = [sys.executable, "-c", f"import {__name__} as t; t.train_and_show_in_every_backend()"]
        answer = subprocess.run(
            program, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert answer.returncode == 0, answer.stderr
        said = answer.stdout + answer.stderr
        (run,) = (tmp_path / "runs" / "scripted").iterdir()
        assert {name: read_mark(mark_file(run, name)).iteration for name in STORES} == dict.fromkeys(STORES, 4)
        assert list(Path(ray_folder).rglob("*.log")) != []
        assert found_in(tmp_path, Path(ray_folder)) == []
        assert [name for name, value in SENTINELS.items() if value in said] == []


def train_and_show_in_every_backend() -> None:
    """In one process, which loads what both need only once."""
    trained = command("train", "c.yaml")
    print(trained.out, trained.err, sep="\n")
    assert trained.code == 0, trained.err
    (run,) = Path("runs/scripted").resolve().iterdir()
    assert all(catch_up(RunDirectory(run), name) for name in STORES)


def found_in(*folders: Path) -> list[str]:
    """Which credential stands in which file."""
    return [
        f"{name} in {file}"
        for folder in folders
        for file in folder.rglob("*")
        if file.is_file()
        for contents in [file.read_bytes()]
        for name, value in SENTINELS.items()
        if value.encode() in contents
    ]


def test_nothing_is_passed_on_through_the_environment_that_rays_dashboard_shows():
    using = {file.name for file in (ROOT / "rlpipe").rglob("*.py") if "runtime_env" in file.read_text()}
    # Of `rlpipe submit`, which forwards what an allow-list or the user names (test_submit), a switch of Ray's own, a
    # switch of ours, and the name of a port.
    assert using == {"job_server.py", "node_checks.py", "launcher.py", "own_ray.py"}
    launcher = (ROOT / "rlpipe" / "distributed" / "launcher.py").read_text()
    assert launcher.count("env_vars") == launcher.count('"env_vars": {worker_entry.FRESH: "1"}') == 1


# --- what a configuration may hold


@pytest.mark.parametrize(
    "name",
    [
        *("api_key", "apiKey", "api-key", "wandb.api_key", "token", "auth_token", "accessToken", "api_token"),
        *("password", "db_password", "PGPASSWORD", "client_secret", "secret", "credentials", "AWS_SECRET_ACCESS_KEY"),
        *SERVICES,
    ],
)
def test_such_a_name_is_that_of_a_credential(name):
    assert is_credential(name)


@pytest.mark.parametrize(
    "name",
    [
        *("action_tokens", "total_tokens", "action_token", "eos_token", "tokenizer", "token_dim", "num_tokens"),
        *("obs_key", "monkey", "secretary", "PWD", "password_file", "api_key_env", "RAY_AUTH_TOKEN_PATH", ""),
    ],
)
def test_such_a_name_is_not(name):
    assert not is_credential(name)


def refusal(tree, environ=None) -> str:
    with pytest.raises(ConfigError) as error:
        check_no_secrets(tree, environ or {})
    return str(error.value)


@pytest.mark.parametrize("value", ["hunter2-hunter2", 12345678])
def test_a_key_that_looks_like_a_credential_may_not_have_a_value(value):
    said = refusal({"runner": {"logger": {"options": {"wandb": {"password": value}}}}})
    assert said.startswith("runner.logger.options.wandb.password looks like a credential")
    assert str(value) not in said


@pytest.mark.parametrize("value", ["", None, True, [], {}])
def test_a_key_that_looks_like_a_credential_may_be_empty(value):
    check_no_secrets({"wandb": {"api_key": value}}, {})


def test_a_price_is_no_credential():
    check_no_secrets({"cost_of_a_token": {"token": 0.01}}, {})


def test_a_value_from_the_environment_is_found_wherever_it_stands():
    tree = {"a": {"b": ["x", {"url": "https://host/?key=0123456789abcdef"}]}}
    said = refusal(tree, {"WANDB_API_KEY": "0123456789abcdef\n"})
    assert said.startswith("a.b[1].url holds the value of the environment variable WANDB_API_KEY.")
    assert "0123456789abcdef" not in said
    check_no_secrets(tree, {"WANDB_PROJECT": "0123456789abcdef"})


def test_a_short_value_counts_only_as_a_whole():
    assert "MY_PASSWORD" in refusal({"a": "hunter2"}, {"MY_PASSWORD": "hunter2"})
    check_no_secrets({"a": "hunter22", "device": "auto"}, {"MY_PASSWORD": "hunter2", "MY_TOKEN": "auto"})


@pytest.mark.parametrize("url", ["http://me:hunter2@host:5000/x", "postgresql://me:hunter2@host/db", "https://:p@h"])
def test_an_address_may_not_hold_a_password(url):
    said = refusal({"tracking_uri": url})
    assert said.startswith("tracking_uri is an address with a password in it")
    assert "hunter2" not in said


@pytest.mark.parametrize("url", ["http://host:5000", "ssh://git@host/x", "file:///runs/a@b:c", "sqlite:////runs/a.db"])
def test_an_address_without_a_password_is_welcome(url):
    check_no_secrets({"tracking_uri": url}, {})


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_configurations_of_this_repository_hold_none(file):
    for package, sign in (("mani_skill", "name: maniskill"), ("gymnasium_robotics", "gymnasium_robotics:")):
        if importlib.util.find_spec(package) is None and sign in file.read_text():
            pytest.skip(f"{package} is not installed")
    check_no_secrets(dataclasses.asdict(load_config(file)), SENTINELS)


# Values as services make them, and texts that hold some of them.
values = st.text("0123456789abcdefXYZ-_./+=\\", min_size=8, max_size=40)
environments = st.dictionaries(st.sampled_from(SERVICES), values, min_size=1)


@st.composite
def texts(draw) -> tuple[str, dict[str, str]]:
    environ = draw(environments)
    return "".join(draw(st.lists(st.text(max_size=9) | st.sampled_from(sorted(environ.values()))))), environ


@given(texts())
def test_a_redacted_text_holds_no_credential_and_is_not_redacted_again(drawn):
    text, environ = drawn
    said = redacted(text, environ)
    assert not any(value in said for value in environ.values())
    assert redacted(said, environ) == said


@given(st.text(), environments)
def test_a_text_without_a_credential_stays_as_it_is(text, environ):
    text = text.replace("@", "")
    if not any(value in text for value in environ.values()):
        assert redacted(text, environ) == text


@given(texts(), st.recursive(st.just("..."), lambda tree: st.lists(tree) | st.dictionaries(st.text("ab"), tree)))
def test_a_configuration_is_refused_just_when_its_text_would_be_redacted(drawn, around):
    text, environ = drawn
    tree = {"a": around, "b": [{"c": text}]}
    if redacted(text, environ) == text:
        check_no_secrets(tree, environ)
    else:
        said = refusal(tree, environ)
        assert said.startswith("b[0].c ")
        assert not any(value in said for value in environ.values())


def test_a_password_in_an_address_is_redacted_also_where_only_the_address_is_in_the_environment():
    environ = {"MLFLOW_TRACKING_URI": "http://me:correct-horse@host"}
    assert (
        redacted("GET http://me:correct-horse@host/api as correct-horse", environ) == "GET http://***@host/api as ***"
    )
    assert "MLFLOW_TRACKING_URI" in refusal({"a": "correct-horse"}, environ)


class Quotes(Backend):
    """Fails like a service whose error repeats what it was sent."""

    def __init__(self, run):
        raise RuntimeError(f"unauthorised: {os.environ['WANDB_API_KEY']}")

    def write(self, row):
        """Never reached."""

    def close(self, status):
        """Never reached."""


def test_an_error_that_quotes_a_credential_is_printed_without_it(tmp_path, monkeypatch):
    run = rlpipe.train(scripted(tmp_path), local=True).directory
    for name, value in SENTINELS.items():
        monkeypatch.setenv(name, value)
    answer = command("sync", str(run), "--to", "tests.test_secrets:Quotes")
    assert answer.code == 1
    assert "unauthorised: ***" in answer.err
    assert SENTINELS["WANDB_API_KEY"] not in answer.out + answer.err
