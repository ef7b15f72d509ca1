"""Compares the speed of rlpipe with the simulator's limit and with Stable-Baselines3.

    python benchmarks/throughput.py                # environment steps per second, and where rlpipe's time goes
    python benchmarks/throughput.py --learning     # also: seconds to a training success of 0.5, on dense PushCube

All contenders run in turn, for several rounds, on ManiSkill PushCube-v1 with the same network (separate actor and
critic, 3 x 256, tanh), batch (3,200 steps), epochs (8) and minibatches (8). For the simulator's limit, one process per
core steps the environments that ``gymnasium.make`` returns, with random NumPy actions under ``inference_mode``.
rlpipe's adapter takes a shortcut inside the simulator (``quicken_poses``); the limit and Stable-Baselines3 do not.

While throughput is measured, the learning rate is 0: every update is computed, but the policy keeps acting at random.
An arm that has learnt to touch things makes each step of the physics more expensive and would blur the comparison. The
first iterations of each round are left out. Machines are noisy: trust the ratios, which compare neighbours in time,
more than the rates.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS, EPOCHS, MINIBATCHES, ENVS = 3200, 8, 8, 16
TASK = "PushCube-v1"
PACKAGES = ("ray", "torch", "mani_skill", "stable_baselines3")
CONFIG = {
    "env": {
        "train": {
            "name": "maniskill",
            "id": TASK,
            "reward_mode": "normalized_dense",
            "total_num_envs": ENVS,
        }
    },
    "policy": {"name": "mlp", "hidden_sizes": [256, 256, 256]},
    "algorithm": {
        "name": "ppo",
        "update_epochs": EPOCHS,
        "num_minibatches": MINIBATCHES,
        "discount": 0.8,
        "gae_lambda": 0.9,
    },
    "rollout": {"horizon": STEPS // ENVS},
    "evaluation": {"episodes": 1},
    "runner": {"logger": {"experiment_name": "throughput"}},
}


def make_task():
    """Makes the task as ``gymnasium.make`` returns it."""
    from rlpipe.envs.maniskill import load_maniskill

    load_maniskill()
    import gymnasium

    return gymnasium.make(
        TASK,
        num_envs=1,
        obs_mode="state",
        control_mode="pd_joint_delta_pos",
        reward_mode="normalized_dense",
        sim_backend="physx_cpu",
        render_backend="none",
    )


# --- the simulator's limit


def step_randomly(environments: int, ready, orders, steps) -> None:
    """Main function of a process: steps with random NumPy actions in episodes of 50 steps, for the ordered times."""
    import numpy as np
    import torch

    torch.set_num_threads(1)
    envs = [make_task() for _ in range(environments)]
    generator = np.random.default_rng(os.getpid())
    with torch.inference_mode():
        for env in envs:
            env.reset(seed=0)
        ready.wait()
        while seconds := orders.get():
            began, count = time.perf_counter(), 0
            while time.perf_counter() < began + seconds:
                actions = generator.uniform(-1.0, 1.0, (environments, 8)).astype(np.float32)
                for env, action in zip(envs, actions, strict=True):
                    env.step(action)
                count += 1
                if count % 50 == 0:
                    for env in envs:
                        env.reset()
            steps.put(count * environments / (time.perf_counter() - began))


class Limit:
    """One process per core; each steps its share of the environments on request."""

    def __init__(self, processes: int) -> None:
        """Starts the processes and waits until all simulators are ready."""
        context = multiprocessing.get_context("spawn")
        ready = context.Barrier(processes + 1)
        self._steps = context.Queue()
        self._orders = [context.Queue() for _ in range(processes)]
        self._workers = [
            context.Process(target=step_randomly, args=(ENVS // processes, ready, orders, self._steps), daemon=True)
            for orders in self._orders
        ]
        for worker in self._workers:
            worker.start()
        ready.wait()

    def rate(self, seconds: float) -> float:
        """Environment steps per second of all processes together."""
        for orders in self._orders:
            orders.put(seconds)
        return sum(self._steps.get() for _ in self._workers)

    def close(self) -> None:
        """Ends the processes."""
        for orders in self._orders:
            orders.put(0.0)
        for worker in self._workers:
            worker.join()


# --- rlpipe


def run_rlpipe(folder: Path, iterations: int, *, until: float | None = None) -> dict[str, float]:
    """Trains in a process of its own, with a user's command. Returns medians over its later iterations."""
    from omegaconf import OmegaConf

    file = folder / "config.yaml"
    file.write_text(OmegaConf.to_yaml(OmegaConf.create(CONFIG)))
    began = time.time()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "rlpipe", "train", str(file)),
            f"runner.total_timesteps={iterations * STEPS}",
            f"runner.logger.log_path={folder / 'runs'}",
            f"learner.lr={0.0 if until is None else 3e-4}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    if until is not None:
        reached = _wait_for_success(process, folder / "runs", until)
        process.terminate()
        process.wait()
        return {"seconds_to_success": reached - began}
    if process.wait() != 0:
        raise RuntimeError("rlpipe train failed; run it by hand to see why")
    run = _newest_run(folder / "runs")
    assert run is not None
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    rows = [json.loads(line)["metrics"] for line in (run / "metrics.jsonl").read_text().splitlines()][2:-1]
    parts = [name for name in rows[0] if name in PARTS]
    return {
        "first_step": next(event["time"] for event in events if event["kind"] == "started") - began,
        "collection_in_training": statistics.median(STEPS / row["time/generate_rollouts"] for row in rows),
        "end_to_end": statistics.median(row["time/fps_interval"] for row in rows),
        "predict_share": statistics.median(row["time/rollout/predict"] / row["time/step"] for row in rows),
        "simulator_share": statistics.median(row["time/env/env_interact_step"] / row["time/step"] for row in rows),
        **{name: statistics.median(row[name] for row in rows) for name in parts},
    }


PARTS = (
    "time/generate_rollouts",
    "time/cal_adv_and_returns",
    "time/actor_training",
    "time/sync_weights",
    "time/checkpoint",
    "time/log",
    "time/other",
    "time/step",
)


def run_collection(pairs: int) -> None:
    """Collects fragments without learning, in turn with the simulator's limit; prints both rates as JSON.

    Both stay ready and take turns of a few seconds, so that the machine's drift affects them alike.
    """
    from rlpipe.config.loading import load_config
    from rlpipe.config.stages import stages
    from rlpipe.distributed.engine import RayEngine
    from rlpipe.policies.base import NoWeights, Snapshot

    limit = Limit(len(os.sched_getaffinity(0)))
    config = load_config(CONFIG)
    engine = RayEngine(config)
    engine.start_workers(stages(config), 0)

    def collect(fragments: int) -> float:
        began = time.perf_counter()
        for collection in [engine.collect(Snapshot(0, NoWeights.FROM_SEED), 0) for _ in range(fragments)]:
            engine.gather(collection)
        return STEPS * fragments / (time.perf_counter() - began)

    collect(1)
    limit.rate(2.0)
    rates = [(limit.rate(4.0), collect(2)) for _ in range(pairs)]
    print(
        json.dumps(
            {
                "collection": statistics.median(ours for _, ours in rates),
                "collection_ratio": statistics.median(ours / theirs for theirs, ours in rates),
            }
        )
    )
    engine.close()
    limit.close()


def _newest_run(runs: Path) -> Path | None:
    found = sorted(runs.glob("throughput/*"))
    return found[-1] if found else None


def _wait_for_success(process: subprocess.Popen, runs: Path, target: float) -> float:
    """Time at which the last 100 training episodes first reached the target success rate."""
    outcomes: list[bool] = []
    while process.poll() is None:
        time.sleep(0.2)
        run = _newest_run(runs)
        if run is None or not (run / "episodes.jsonl").is_file():
            continue
        lines = (run / "episodes.jsonl").read_text().splitlines(keepends=True)
        outcomes = [json.loads(line)["success_once"] for line in lines if line.endswith("\n")]
        if len(outcomes) >= 100 and statistics.mean(outcomes[-100:]) >= target:
            return time.time()
    raise RuntimeError(f"the run ended before a success of {target}")


# --- Stable-Baselines3


def make_wrapped(seed: int):
    """Returns a maker for SubprocVecEnv, with ManiSkill's own wrapper for NumPy on the CPU."""

    def make():
        import torch

        torch.set_num_threads(1)
        task = make_task()
        from mani_skill.utils.wrappers.gymnasium import CPUGymWrapper
        from stable_baselines3.common.monitor import Monitor

        env = CPUGymWrapper(task)
        env.reset(seed=seed)
        return Monitor(env, info_keywords=("success",))

    return make


def run_sb3(iterations: int, until: float | None) -> None:
    """Trains with Stable-Baselines3 in this process and prints the measurements as JSON."""
    began = float(os.environ["BENCHMARK_BEGAN"])
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import SubprocVecEnv

    environments = 8
    envs = SubprocVecEnv([make_wrapped(seed) for seed in range(environments)], start_method="spawn")
    torch.set_num_threads(os.cpu_count() or 1)

    class Clock(BaseCallback):
        """Records when iterations begin, and when the last 100 episodes reached the target."""

        def __init__(self):
            super().__init__()
            self.marks, self.outcomes, self.reached, self.first = [], [], None, None

        def _on_rollout_start(self):
            self.marks.append(time.time())

        def _on_step(self):
            self.first = self.first or time.time()
            for done, info in zip(self.locals["dones"], self.locals["infos"], strict=True):
                if done:
                    self.outcomes.append(bool(info["success"]))
            recent = self.outcomes[-100:]
            if until is not None and len(recent) == 100 and sum(recent) / 100 >= until:
                self.reached = time.time()
                return False
            return True

    clock = Clock()
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=STEPS // environments,
        batch_size=STEPS // MINIBATCHES,
        n_epochs=EPOCHS,
        gamma=0.8,
        gae_lambda=0.9,
        learning_rate=0.0 if until is None else 3e-4,
        policy_kwargs={
            "net_arch": {"pi": [256] * 3, "vf": [256] * 3},
            "activation_fn": torch.nn.Tanh,
            "log_std_init": -0.5,
        },
        device="cpu",
    )
    model.learn(STEPS * iterations, callback=clock)
    clock.marks.append(time.time())
    spans = [later - earlier for earlier, later in zip(clock.marks[1:-1], clock.marks[2:], strict=True)]
    answer = {"first_step": clock.first - began}
    if until is None:
        answer["end_to_end"] = STEPS / statistics.median(spans)
    elif clock.reached is not None:
        answer["seconds_to_success"] = clock.reached - began
    print(json.dumps(answer))
    envs.close()


def call_sb3(iterations: int, until: float | None = None) -> dict[str, float]:
    """Runs ``run_sb3`` in a process of its own."""
    return call(["--sb3", str(iterations), *([] if until is None else ["--until", str(until)])])


def call(arguments: list[str]) -> dict[str, float]:
    """Runs this script in a process of its own. Returns the JSON that it prints."""
    answer = subprocess.run(
        [sys.executable, __file__, *arguments],
        env={**os.environ, "BENCHMARK_BEGAN": str(time.time())},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return json.loads(answer.stdout.splitlines()[-1])


# --- the report


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def main() -> None:
    """Runs the rounds and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=9, help="of rlpipe in each round")
    parser.add_argument("--learning", action="store_true", help="also measure seconds to a training success of 0.5")
    parser.add_argument("--collect", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--sb3", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.collect:
        run_collection(options.collect)
        return
    if options.sb3:
        run_sb3(options.sb3, options.until)
        return
    from importlib import metadata

    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=110)
    cores = len(os.sched_getaffinity(0))
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    console.print(f"{_processor()}, {cores} cores; {versions}")
    limit = Limit(cores)
    limit.rate(4.0)
    rounds = []
    for index in range(options.rounds):
        rates = [limit.rate(8.0)]
        with tempfile.TemporaryDirectory() as folder:
            ours = run_rlpipe(Path(folder), options.iterations)
        rates.append(limit.rate(8.0))  # before and after, so that a drift of the machine cancels
        sb3 = call_sb3(4)
        rates.append(limit.rate(8.0))
        ours |= call(["--collect", "6"])
        before, between, after = rates
        for entry, beside in ((ours, (before, between)), (sb3, (between, after))):
            entry["limit"] = statistics.mean(beside)
        rounds.append((ours, sb3))
        console.print(
            f"round {index + 1}: limit {ours['limit']:,.0f}, rlpipe {ours['end_to_end']:,.0f} "
            f"({ours['end_to_end'] / ours['limit']:.2f}; collection alone {ours['collection_ratio']:.2f}), "
            f"Stable-Baselines3 {sb3['end_to_end']:,.0f} ({sb3['end_to_end'] / sb3['limit']:.2f}) steps/s"
        )
    limit.close()

    def median(pick) -> float:
        return statistics.median(pick(*entry) for entry in rounds)

    table = Table("", "steps/s", "of the limit", "of Stable-Baselines3", "first step after")
    table.add_row("simulator's limit", f"{median(lambda ours, _: ours['limit']):,.0f}", "1.00", "", "")
    for name, key, index in (
        ("rlpipe, collection alone", "collection", 0),
        ("rlpipe, collection between updates", "collection_in_training", 0),
        ("rlpipe, end to end", "end_to_end", 0),
        ("Stable-Baselines3, end to end", "end_to_end", 1),
    ):
        if key == "collection":
            share = median(lambda ours, _: ours["collection_ratio"])
        else:
            share = statistics.median(entry[index][key] / entry[index]["limit"] for entry in rounds)
        table.add_row(
            name,
            f"{statistics.median(entry[index][key] for entry in rounds):,.0f}",
            f"{share:.2f}",
            f"{statistics.median(entry[index][key] / entry[1]['end_to_end'] for entry in rounds):.2f}",
            f"{statistics.median(entry[index]['first_step'] for entry in rounds):.1f} s",
        )
    console.print(table)
    split = Table("where rlpipe's iteration goes", "seconds", "share")
    step = median(lambda ours, _: ours["time/step"])
    for name in PARTS:
        if all(name in ours for ours, _ in rounds):
            seconds = median(lambda ours, _, name=name: ours[name])
            split.add_row(name, f"{seconds:.3f}", f"{seconds / step:.1%}")
    for label, key in (("slowest worker in the simulator", "simulator_share"), ("... in the policy", "predict_share")):
        share = median(lambda ours, _, key=key: ours[key])
        split.add_row(label, f"{share * step:.3f}", f"{share:.1%}")
    console.print(split)
    if options.learning:
        with tempfile.TemporaryDirectory() as folder:
            ours = run_rlpipe(Path(folder), 400, until=0.5)["seconds_to_success"]
        theirs = call_sb3(400, until=0.5).get("seconds_to_success", float("nan"))
        console.print(
            f"seconds from the command to a training success of 0.5 over 100 episodes: rlpipe {ours:.0f}, "
            f"Stable-Baselines3 {theirs:.0f}, ratio {ours / theirs:.2f}"
        )


if __name__ == "__main__":
    main()
