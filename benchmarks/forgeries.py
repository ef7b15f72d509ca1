"""How often ``rlpipe verify`` finds out a record that is not true, and how often it wrongs one that is.

A policy learns to balance a pole that is pushed by a continuous force, for a minute. Then:

- ``forged``: in each of 100 records of 400 episodes, 20 outcomes are flipped and every digest is made anew; 60 episodes
  are drawn. The chance to draw one of them is 1 - C(380, 60) / C(400, 60) = 0.963.
- ``kernel``: 20 true records are verified by a process whose torch has other kernels (ATEN_CPU_CAPABILITY=default), all
  400 episodes of each.
- ``chaotic``: likewise, of a task in which the last bits of the actions decide about some outcomes.
- ``drop``: likewise 20 records in which as many rows are those of a better policy as raise its success by 0.10.

    python benchmarks/forgeries.py [--records 100] [--tries 20] [--out results.json]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.spaces import Box

sys.path.insert(0, str(Path(__file__).parent.parent))
import rlpipe
from benchmarks.machine import describe, sentence, write
from rlpipe.analysis.evaluation_report import root_of
from rlpipe.analysis.verification import Verification

EPISODES = 400
FORGED = EPISODES // 20
DRAWN = 60
DROP = 0.10
CHAOTIC_STEPS = 46
"""Last steps of an episode in which the logistic map doubles a difference of two actions about every second step."""
STEPS = 60
"""Steps for which the pole must stay up."""


class PushedPole(gymnasium.Env[Any, Any]):
    """CartPole with any force between its two, and success for a pole that has stayed up for ``STEPS`` steps.

    If it is chaotic, the actions also feed a logistic map, which must end above 0.3.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, chaotic: bool = False) -> None:
        """Makes the task."""
        self._chaotic = chaotic
        self._pole = CartPoleEnv()
        self._strongest = self._pole.force_mag
        self.observation_space = self._pole.observation_space
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begins an episode."""
        self._steps, self._chaos = 0, 0.5
        return self._pole.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """Pushes the cart."""
        self._steps += 1
        self._pole.force_mag = self._strongest * float(np.clip(action[0], -1.0, 1.0))
        observation, reward, terminated, truncated, _ = self._pole.step(1)
        if self._chaotic and self._steps > STEPS - CHAOTIC_STEPS:
            self._chaos = min(max(3.9 * self._chaos * (1 - self._chaos) + 0.01 * float(action[0]), 0.0), 1.0)
        success = self._steps >= STEPS and not terminated and (not self._chaotic or self._chaos > 0.3)
        return observation, reward, terminated, truncated, {"success": success}


gymnasium.register("PushedPole-v0", "benchmarks.forgeries:PushedPole", max_episode_steps=STEPS)


def trained(folder: Path) -> list[Path]:
    """Trains a policy; returns its checkpoints, the oldest first."""
    config = rlpipe.load_config(
        {
            "env": {
                "train": {
                    "name": "gymnasium", "id": "benchmarks.forgeries:PushedPole-v0", "success_key": "success",
                    "total_num_envs": 16,
                },
            },
            "policy": {"name": "mlp", "hidden_sizes": [64, 64], "activation": "silu"},  # tanh is alike in all kernels
            "algorithm": {"name": "ppo", "update_epochs": 10, "num_minibatches": 4, "discount": 0.98},
            "learner": {"lr": 1e-3, "num_threads": 1},
            "rollout": {"horizon": 64},
            "evaluation": {"episodes": EPISODES, "deterministic": False},
            "runner": {
                "total_timesteps": 24 * 1024, "report": False, "save_interval": 1, "keep_checkpoints": 99,
                "logger": {"log_path": str(folder), "experiment_name": "forgeries", "logger_backends": []},
            },
        }
    )  # fmt: skip
    return sorted(rlpipe.train(config, local=True).directory.glob("checkpoints/*.npz"))


def record_of(checkpoint: Path, first_seed: int = 1_000_000, *overrides: str) -> Path:
    """Evaluates a checkpoint; returns the record."""
    report = rlpipe.evaluate(checkpoint, overrides=[f"evaluation.first_seed={first_seed}", *overrides], local=True)
    assert report.record is not None
    return Path(report.record)


def success(record: Mapping[str, Any]) -> float:
    """Success rate of the rows of a record."""
    return float(np.mean([row["success_once"] for row in record["episodes"]]))


def forged(record: Mapping[str, Any], rows: list[dict[str, Any]], file: Path) -> Path:
    """Writes a record with other rows, as one does who makes every digest anew."""
    contents = {**record, "episodes": rows, "episodes_root": root_of(rows)}
    del contents["estimates"]  # a record of an earlier version has none
    file.write_text(json.dumps(contents))
    return file


def flipped(record: Mapping[str, Any], chance: random.Random) -> list[dict[str, Any]]:
    """Rows of a record, in ``FORGED`` of which success is the other way round."""
    rows = [dict(row) for row in record["episodes"]]
    for row in chance.sample(rows, FORGED):
        row["success_once"] = row["success_at_end"] = not row["success_once"]
    return rows


def better(record: Mapping[str, Any], other: Mapping[str, Any], chance: random.Random) -> list[dict[str, Any]]:
    """Rows of a record, some of which are those of a better policy in the same episodes: ``DROP`` more succeed."""
    share = min(1.0, DROP / (success(other) - success(record)))
    pairs = zip(record["episodes"], other["episodes"], strict=True)
    return [theirs if chance.random() < share else ours for ours, theirs in pairs]


def verify_all(files: list[str], episodes: int) -> list[dict[str, Any]]:
    """Verifies records in this process."""
    results: list[Verification] = [rlpipe.verify(file, episodes=episodes, local=True) for file in files]
    return [result.as_json() for result in results]


def elsewhere(files: list[Path], episodes: int) -> list[dict[str, Any]]:
    """Verifies records in a process whose torch has other kernels."""
    command = [sys.executable, __file__, "--verify", str(episodes), *map(str, files)]
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(ended.stderr[-2000:])
    results: list[dict[str, Any]] = json.loads(ended.stdout.splitlines()[-1])
    return results


def rejections(result: Mapping[str, Any]) -> list[str]:
    """Parts that were named as not true."""
    return [finding["part"] for finding in result["findings"] if finding["rejects"]]


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Verdicts, what was named, and how many episodes flipped."""
    drawn = sum(result["drawn"] for result in results)
    return {
        "verdicts": dict(Counter(str(result["verdict"]) for result in results)),
        "named": dict(Counter(part for result in results for part in rejections(result))),
        "same_to_the_bit": sum(result["identical"] for result in results) / drawn,
        "flips": sum(result["better"] + result["worse"] for result in results) / drawn,
    }


def measured(folder: Path, records: int, tries: int) -> dict[str, Any]:
    """Runs all three."""
    checkpoints = trained(folder)
    rates = {path: success(json.loads(record_of(path).read_text())) for path in checkpoints[::4]}
    worse = min(rates, key=lambda path: abs(rates[path] - 0.6))
    best = max(rates, key=lambda path: rates[path])
    chance, began = random.Random(0), time.perf_counter()
    record = json.loads(record_of(worse).read_text())
    place = folder / "records"
    place.mkdir()
    files = [forged(record, flipped(record, chance), place / f"{number}.json") for number in range(records)]
    results = {"forged": summary(verify_all([str(file) for file in files], DRAWN))}
    seconds = (time.perf_counter() - began) / records
    true, dropped, chaotic = [], [], []
    for number in range(tries):
        seeds = 2_000_000 + EPISODES * number
        true.append(record_of(worse, seeds))
        chaotic.append(record_of(worse, seeds, "env.eval.kwargs={chaotic: true}"))
        ours, theirs = (json.loads(file.read_text()) for file in (true[-1], record_of(best, seeds)))
        dropped.append(forged(ours, better(ours, theirs, chance), place / f"drop-{number}.json"))
    results |= {"kernel": summary(elsewhere(true, EPISODES)), "chaotic": summary(elsewhere(chaotic, EPISODES))}
    results |= {"drop": summary(elsewhere(dropped, EPISODES))}
    claimed = [success(json.loads(file.read_text())) for file in dropped]
    actual = [success(json.loads(file.read_text())) for file in true]
    return {
        **results,
        "success": {
            "policy": rates[worse],
            "better": rates[best],
            "mean_drop": float(np.mean(claimed) - np.mean(actual)),
        },
        "seconds_for_60": seconds,
        "chance": 1 - math.comb(EPISODES - FORGED, DRAWN) / math.comb(EPISODES, DRAWN),
    }


def main() -> None:
    """Measures, and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--verify", type=int, help=argparse.SUPPRESS)
    parser.add_argument("files", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.verify:
        print(json.dumps(verify_all(arguments.files, arguments.verify)))
        return
    machine = describe("torch", "numpy", "gymnasium")
    print(sentence(machine))
    with tempfile.TemporaryDirectory() as temporary:
        results = measured(Path(temporary), arguments.records, arguments.tries)
    for name, result in results.items():
        print(f"{name}: {result}")
    write(arguments.out, {"machine": machine, **results})


if __name__ == "__main__":
    main()
