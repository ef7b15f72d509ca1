"""RLlib's PPO on the task of ``benchmarks/throughput.py``: an environment runner for each core, and a local learner."""

from __future__ import annotations

import functools
import os
import time

from benchmarks.peers import task


def make(name: str, journal: str, seed: int, env_context):
    """Makes an environment in the signature of RLlib."""
    number = env_context.worker_index * task.ENVS + env_context.vector_index
    return task.make_numpy_task(name, journal, seed * task.ENVS**2 + number)


def main() -> None:
    """Trains, and prints the measurements."""
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    options = task.arguments()
    journal = task.Journal(options.success)
    ray.init(num_cpus=task.WORKERS, include_dashboard=False, log_to_driver=False)
    register_env(options.task, functools.partial(make, options.task, journal.path, options.seed))
    config = (
        PPOConfig()
        .environment(options.task)
        .env_runners(
            num_env_runners=task.WORKERS,
            num_envs_per_env_runner=task.ENVS // task.WORKERS,
            rollout_fragment_length=task.STEPS // task.ENVS,
            batch_mode="truncate_episodes",
        )
        .learners(num_learners=0, num_cpus_per_learner=os.cpu_count())
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(task.HIDDEN),
                fcnet_activation="tanh",
                head_fcnet_hiddens=[],
                vf_share_layers=False,
                free_log_std=True,
            )
        )
        .training(
            lr=options.learning_rate,
            gamma=task.DISCOUNT,
            lambda_=task.GAE_LAMBDA,
            train_batch_size_per_learner=task.STEPS,
            minibatch_size=task.STEPS // task.MINIBATCHES,
            num_epochs=task.EPOCHS,
            use_kl_loss=False,
            clip_param=0.2,
            grad_clip=0.5,
        )
        .evaluation(evaluation_interval=None)
        .debugging(seed=options.seed, log_level="ERROR")
    )
    algorithm = config.build_algo()
    marks = [time.time()]
    for _ in range(options.iterations):
        algorithm.train()
        marks.append(time.time())
        if journal.reached is not None:
            break
    task.report(journal, marks, "ray")
    algorithm.stop()


if __name__ == "__main__":
    main()
