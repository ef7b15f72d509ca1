"""Stable-Baselines3's PPO on the task of ``benchmarks/throughput.py``: eight environments, each in its own process."""

from __future__ import annotations

import functools
import os
import time

from benchmarks.peers import task

ENVS = 8


def main() -> None:
    """Trains, and prints the measurements."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import SubprocVecEnv

    options = task.arguments()
    journal = task.Journal(options.success)
    makers = [
        functools.partial(task.make_numpy_task, options.task, journal.path, options.seed * ENVS + n)
        for n in range(ENVS)
    ]
    envs = SubprocVecEnv(makers, start_method="spawn")
    torch.set_num_threads(os.cpu_count() or 1)
    marks: list[float] = []

    class Clock(BaseCallback):
        """Notes when iterations begin, and stops once the target is reached."""

        def _on_rollout_start(self) -> None:
            marks.append(time.time())

        def _on_step(self) -> bool:
            return journal.reached is None

    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=task.STEPS // ENVS,
        batch_size=task.STEPS // task.MINIBATCHES,
        n_epochs=task.EPOCHS,
        gamma=task.DISCOUNT,
        gae_lambda=task.GAE_LAMBDA,
        learning_rate=options.learning_rate,
        policy_kwargs={
            "net_arch": {"pi": list(task.HIDDEN), "vf": list(task.HIDDEN)},
            "activation_fn": torch.nn.Tanh,
            "log_std_init": task.INITIAL_LOG_STD,
        },
        seed=options.seed,
        device="cpu",
    )
    model.learn(task.STEPS * options.iterations, callback=Clock())
    marks.append(time.time())
    task.report(journal, marks, "stable_baselines3")
    envs.close()


if __name__ == "__main__":
    main()
