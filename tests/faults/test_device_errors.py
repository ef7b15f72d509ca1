"""A GPU that is full or gone ends a run with one message and a checkpoint, from which the CPU continues."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import rlpipe
from rlpipe.algorithms.ppo import PPO, PPOConfig
from rlpipe.config.fields import option
from rlpipe.errors import RunError
from tests.helpers.runs import lines, scripted

FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
GONE = torch.AcceleratorError("CUDA error: an illegal memory access was encountered", 700)


@dataclass(frozen=True)
class FailsConfig(PPOConfig):
    """Options of PPO, and a file that says in which loss the device fails."""

    file: str = option("")


class Fails(PPO):
    """PPO on a device that fails once, in the middle of a run."""

    Config = FailsConfig
    error = FULL

    def loss(self, policy, samples):
        file = Path(self.config.file)
        left = int(file.read_text()) - 1
        file.write_text(str(left))
        if left == 0:
            raise self.error
        return super().loss(policy, samples)


class FailsForGood(Fails):
    """The same with a device that is gone."""

    error = GONE


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("Fails", r"CUDA out of memory.*\nThe last .*learner\.micro_batch or .* with learner\.device=cpu"),
        ("FailsForGood", r"illegal memory access.*nvidia-smi .* with learner\.device=cpu"),
    ],
)
def test_a_device_that_fails_ends_the_run_with_advice_and_the_cpu_continues_it(name, advice, tmp_path):
    file = tmp_path / "left"
    file.write_text("20")  # an update has eight losses: the third one fails
    algorithm = {"name": f"tests.faults.test_device_errors:{name}", "update_epochs": 2, "num_minibatches": 4}
    config = scripted(
        tmp_path, f"algorithm.file={file}", "runner.save_interval=1", "runner.total_timesteps=320", algorithm=algorithm
    )
    with pytest.raises(RunError, match=f"(?s){advice}"):
        rlpipe.train(config, local=True)
    (run,) = tmp_path.rglob("run.json")
    count = len(lines(run.parent, "metrics.jsonl"))
    assert count == 2
    rlpipe.train(rlpipe.load_config(run.parent / "config.yaml", ["learner.device=cpu"]), resume=run.parent, local=True)
    assert [row["iteration"] for row in lines(run.parent, "metrics.jsonl")] == [*range(1, 6)]
