"""Diagnosis of a failed job from its log: the environment that it ran in."""

from __future__ import annotations

import pytest

from rlpipe.distributed.job_failures import advice_on

RUNNING = "2026-11-21 21:44:16,010 INFO job_manager.py:568 -- Running entrypoint: python -m rlpipe train small.yaml\n"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("/usr/bin/python: No module named rlpipe", "with /usr/bin/python, which has no package rlpipe."),
        ("/opt/ray/bin/python3.11: No module named typer", "with /opt/ray/bin/python3.11, which has no package typer."),
        ("ModuleNotFoundError: No module named 'omegaconf'", "with a Python that has no package omegaconf."),
        ("ModuleNotFoundError: No module named 'yaml'", "with a Python that has no package yaml."),  # of PyYAML
        ("/bin/sh: 1: python: not found", "found no python for the job."),
        ("bash: line 1: python: command not found", "found no python for the job."),
    ],
)
def test_a_job_in_the_wrong_environment_is_told_how_to_start_ray(line, found):
    advice = advice_on(f"{RUNNING}{line}\n")
    assert found in advice
    assert "source .venv/bin/activate && ray start --head" in advice


@pytest.mark.parametrize(
    "log",
    [
        "",
        "error: algorithm.name is 'pppo'; did you mean 'ppo'?\n",
        "ModuleNotFoundError: No module named 'my_lab'\n",  # the user's own, which is missing in the package
        "failed: SimulatorError: the simulator raised ArithmeticError while taking step 7\n",
    ],
)
def test_another_failure_gets_no_such_advice(log):
    assert advice_on(f"{RUNNING}{log}") == ""
