"""Code outside this package: it may raise anything, and none of it speaks for a run."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass, replace

import pytest
import ray
import typer
from ray.exceptions import RayTaskError
from typer.testing import CliRunner

import rlpipe
from rlpipe.algorithms.ppo import PPO
from rlpipe.cli import _Commands
from rlpipe.distributed.post_mortem import describe_end
from rlpipe.errors import ConfigError, ForeignError, RunError, UserInterrupt, how_it_failed
from rlpipe.metrics import catalogue as m
from rlpipe.plugins import resolve
from rlpipe.policies.mlp import MLPConfig, MLPPolicy
from tests.helpers.faulty import Faulty, FaultyConfig, events, faulty
from tests.helpers.runs import scripted


class UnprintableError(Exception):
    """An exception that cannot be printed."""

    def __str__(self):
        return self.text  # type: ignore[attr-defined]


def circular():
    error, other = KeyError("a"), KeyError("b")
    error.__context__, other.__context__ = other, error
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (UnprintableError(), "raised UnprintableError"),
        (circular(), "raised KeyError: 'a'"),
        (SystemExit(), "called sys.exit()"),
        (SystemExit(0), "called sys.exit(0)"),
        (SystemExit("no display"), "called sys.exit('no display')"),
        (GeneratorExit(), "raised GeneratorExit"),
        (ValueError(" too far\n"), "raised ValueError: too far"),
        (ForeignError.of(SystemExit(3)), "called sys.exit(3)"),
    ],
)
def test_whatever_is_raised_is_described(error, words):
    assert how_it_failed(error) == words


def test_a_keyboard_interrupt_is_the_users_if_a_signal_raises_such(monkeypatch):
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        how_it_failed(KeyboardInterrupt())
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_IGN)  # as in a worker
    assert how_it_failed(KeyboardInterrupt()) == "raised KeyboardInterrupt"
    with pytest.raises(UserInterrupt):
        how_it_failed(UserInterrupt())


def test_the_users_interrupt_stays_one_whatever_a_simulator_makes_of_it():
    try:
        try:
            raise UserInterrupt
        except KeyboardInterrupt:
            raise SystemExit(0)  # noqa: B904 - as simulators do
    except SystemExit as error:
        with pytest.raises(UserInterrupt):
            how_it_failed(error)


def test_a_simulator_that_calls_sys_exit_ends_the_run_with_its_cause(tmp_path):
    config = faulty(tmp_path, "sys.exit", "rollout.simulator_retries=1", "env.train.at=12", "env.train.times=2")
    first = r"the simulator called sys\.exit\(7\) while taking step 12 of 16 \(1 that replaced it failed too\)"
    with pytest.raises(RunError, match=first) as raised:
        rlpipe.train(config, local=True)
    [file] = tmp_path.glob("*/*/run.json")
    contents = json.loads(file.read_text())
    assert contents["status"] == "failed"
    assert contents["cause"] == raised.value.fault.as_json()
    assert contents["cause"]["part"].startswith("rollout-")
    assert "processes.py" in "\n".join(contents["cause"]["log"])  # where it did so
    assert events(file.parent, "failed")[0]["data"] == contents["cause"]


class Unmakeable(Faulty):
    """A simulator that leaves when it is made."""

    @classmethod
    def make(cls, config, num_envs, next_seed):
        raise SystemExit("no licence")


def test_a_run_that_fails_before_its_first_iteration_leaves_its_cause(tmp_path):
    config = faulty(tmp_path, "", "env.train.name=tests.faults.test_foreign_code:Unmakeable")
    with pytest.raises(RunError, match=r"called sys\.exit\('no licence'\) while being made"):
        rlpipe.train(config, local=True)
    [file] = tmp_path.glob("*/*/run.json")
    contents = json.loads(file.read_text())
    assert (contents["status"], contents["cause"]["doing"]) == ("failed", "make its simulator")
    assert len(events(file.parent, "failed")) == 1


def test_a_module_that_ends_python_when_it_is_imported_is_refused(tmp_path, monkeypatch):
    (tmp_path / "parses_arguments.py").write_text("import argparse\nargparse.ArgumentParser().parse_args(['--port'])\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"importing it failed: it called sys\.exit\(2\)"):
        resolve("envs", "parses_arguments:Task", "env.train.name")


@pytest.mark.parametrize(("error", "words"), [(SystemExit(), "called sys"), (EOFError(), "raised EOF")])
def test_no_command_ends_with_the_exit_code_that_others_chose(error, words):
    app = typer.Typer(cls=_Commands)

    @app.command()
    def one() -> None:
        raise error

    app.command()(lambda: None)
    assert CliRunner().invoke(app, ["one", "--help"]).exit_code == 0
    with pytest.raises(RunError, match=rf"test_foreign_code\.py, line \d+, {words}"):
        CliRunner().invoke(app, ["one"], catch_exceptions=False)


@dataclass(frozen=True)
class DividesConfig(MLPConfig):
    """Options of the policy."""


class Divides(MLPPolicy):
    """A policy whose losses divide by zero."""

    Config = DividesConfig

    def evaluate_actions(self, observations, actions):
        return 1 / 0


class DividesInServer(MLPPolicy):
    """A policy that divides by zero where it takes weights, which an inference server does first."""

    Config = DividesConfig

    def load_weights(self, weights):
        return 1 / 0


UNDECLARED = replace(m.LOSS, name="train/undeclared")


class Undeclared(PPO):
    """PPO that observes a metric of which the metric logger knows nothing."""

    def measure(self, samples, index, terms):
        return super().measure(samples, index, terms) | {UNDECLARED: terms["loss"]}


HERE = "tests.faults.test_foreign_code"
SERVED = ("rollout.inference=server", "cluster.cpus_per_inference_server=0.5")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("actor", "error", "function", "options"),
    [
        ("learner", "ZeroDivisionError: division", "evaluate_actions", [f"policy.name={HERE}:Divides"]),
        ("metric-logger", "ValueError: train/undeclared", "_declaration", [f"algorithm.name={HERE}:Undeclared"]),
        (
            "inference-0",
            "ZeroDivisionError: division",
            "load_weights",
            [f"policy.name={HERE}:DividesInServer", *SERVED],
        ),
    ],
)
def test_what_raises_in_an_actor_ends_the_run_with_its_exception_its_log_and_its_node(
    actor, error, function, options, tmp_path, ray_cluster
):
    with pytest.raises(RunError) as raised:
        rlpipe.train(scripted(tmp_path, *options))
    fault = raised.value.fault
    assert (fault.actor, fault.node) == (actor, ray.get_runtime_context().get_node_id())
    assert fault.what.startswith(f"raised {error}")
    assert any(function in line for line in fault.log)
    (run,) = (file.parent for file in tmp_path.glob("*/*/run.json"))
    (event,) = events(run, "failed")
    assert event["data"] == json.loads((run / "run.json").read_text())["cause"] == fault.as_json()
    assert events(run, "restarted") == []


def test_a_run_whose_process_vanished_says_so_when_it_is_resumed(tmp_path):
    run = rlpipe.train(scripted(tmp_path), local=True).directory
    contents = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**contents, "status": "running"}))
    rlpipe.train(scripted(tmp_path, "runner.total_timesteps=320"), local=True, resume=run)
    assert [event["message"] for event in events(run, "note")] == [
        "Before, the run ended without a word: its process was killed, or ended by a simulator's compiled code."
    ]


def test_a_failure_names_the_actor_it_happened_in_and_shows_the_code_that_raised_first():
    shown = [
        "ray::rollout-0.call() (pid=1, ip=::1)",
        '  File "rlpipe/distributed/actors.py", line 87, in call',
        "ray::inference-0.call() (pid=2, ip=::1)",
        '  File "policy.py", line 12, in decide',
        "SystemExit: 4",
        "",
        "The above exception was the direct cause of the following exception:",
        "ray::inference-0.call() (pid=2, ip=::1)",
        "rlpipe.errors.ForeignError: called sys.exit(4)",
    ]
    cause = ForeignError("called sys.exit(4)")
    error = RayTaskError("call", "\n".join(shown), cause, proctitle="ray::rollout-0", pid=1, ip="::1")
    end = describe_end(error, None, [], "", 0.0)
    assert end.what == "called sys.exit(4) in inference-0"
    assert end.log[-1] == '  File "policy.py", line 12, in decide'


class Interrupted(Faulty):
    """A simulator whose user interrupts it in a step, or that says so."""

    Config = FaultyConfig

    def step(self, actions):
        raise UserInterrupt if self._config.fault == "user" else KeyboardInterrupt


@pytest.mark.parametrize(("fault", "status"), [("user", "interrupted"), ("none", "failed")])
def test_only_the_user_interrupts_a_run(fault, status, tmp_path, monkeypatch):
    monkeypatch.setattr(signal, "getsignal", lambda _: None)  # as if a command handled signals
    config = faulty(tmp_path, fault, "env.train.name=tests.faults.test_foreign_code:Interrupted")
    with pytest.raises(KeyboardInterrupt if fault == "user" else RunError):
        rlpipe.train(config, local=True)
    [file] = tmp_path.glob("*/*/run.json")
    assert json.loads(file.read_text())["status"] == status
