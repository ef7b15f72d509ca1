"""Sample Factory's asynchronous PPO (APPO) on the task of ``benchmarks/throughput.py``: a rollout worker for each core.

Sample Factory collects while it learns, so an iteration is counted when a batch has been learnt. Its learner shuffles
the minibatches, and neither observations nor returns are normalised, as with the other libraries.
"""

from __future__ import annotations

import functools
import math
import tempfile
import time

from benchmarks.peers import task

STILL = 1e-6
"""Learning rate that stands for 0: Sample Factory ends an update early once an epoch no longer changes the loss."""


def make(name: str, journal: str, seed: int, _full_name, _cfg, env_config, render_mode=None):  # noqa: ARG001
    """Makes an environment in the signature of Sample Factory."""
    number = 0 if env_config is None else env_config.env_id  # without one, it only asks for the spaces
    return task.make_numpy_task(name, journal, seed * task.ENVS + number)


def settings(options) -> dict[str, object]:
    """Command-line options of Sample Factory."""
    return {
        "env": options.task,
        "train_dir": tempfile.mkdtemp(),
        "experiment": "benchmark",
        "device": "cpu",
        "seed": options.seed,
        "num_workers": task.WORKERS,
        "num_envs_per_worker": task.ENVS // task.WORKERS,
        "rollout": task.STEPS // task.ENVS,
        "batch_size": task.STEPS // task.MINIBATCHES,
        "num_batches_per_epoch": task.MINIBATCHES,
        "num_epochs": task.EPOCHS,
        "shuffle_minibatches": True,
        "gamma": task.DISCOUNT,
        "gae_lambda": task.GAE_LAMBDA,
        "value_bootstrap": True,
        "learning_rate": options.learning_rate or STILL,
        "initial_stddev": math.exp(task.INITIAL_LOG_STD),
        "adaptive_stddev": False,
        "normalize_input": False,
        "normalize_returns": False,
        "use_rnn": False,
        "actor_critic_share_weights": False,
        "nonlinearity": "tanh",
        "train_for_env_steps": task.STEPS * options.iterations,
    }


def main() -> None:
    """Trains, and prints the measurements."""
    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

    options = task.arguments()
    journal = task.Journal(options.success)
    register_env(options.task, functools.partial(make, options.task, journal.path, options.seed))
    given = [f"--{name}={value}" for name, value in settings(options).items()]
    given += ["--encoder_mlp_layers", *map(str, task.HIDDEN)]
    cfg = parse_full_cfg(parse_sf_args(given)[0], given)
    marks: list[float] = []

    class Clock(AlgoObserver):
        """Notes when a batch has been learnt, and stops once the target is reached."""

        def on_training_step(self, runner, training_iteration_since_resume) -> None:  # noqa: ARG002
            marks.append(time.time())
            if journal.reached is not None:
                runner.cfg.train_for_env_steps = 0

    cfg, runner = make_runner(cfg)
    runner.register_observer(Clock())
    runner.init()
    runner.run()
    task.report(journal, marks, "sample-factory")


if __name__ == "__main__":
    main()
