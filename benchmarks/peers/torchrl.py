"""PPO built from TorchRL on the task of ``benchmarks/throughput.py``: a collector process for each core.

TorchRL is a library of components. The loop is that of its own PPO example: collect, compute advantages, learn from
shuffled minibatches, send the new weights to the collectors.
"""

from __future__ import annotations

import functools
import os
import time

from benchmarks.peers import task


def make_env(name: str, journal: str, seed: int):
    """Makes one environment."""
    from torchrl.envs import GymWrapper

    return GymWrapper(task.make_numpy_task(name, journal, seed))


def make_envs(name: str, journal: str, seed: int):
    """Makes the environments of one collector process, which take their steps in turn."""
    from torchrl.envs import SerialEnv

    count = task.ENVS // task.WORKERS
    return SerialEnv(count, [functools.partial(make_env, name, journal, seed * count + n) for n in range(count)])


def make_networks(observed: int, actions: int, spec):
    """Makes actor and critic, which share nothing.

    Args:
        observed: numbers in an observation
        actions: numbers in an action
        spec: spec of the action
    """
    import torch
    from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
    from torchrl.modules import MLP, IndependentNormal, ProbabilisticActor, ValueOperator

    hidden = list(task.HIDDEN)
    network = torch.nn.Sequential(
        MLP(in_features=observed, out_features=actions, num_cells=hidden, activation_class=torch.nn.Tanh),
        AddStateIndependentNormalScale(actions, init_value=task.INITIAL_LOG_STD),
    )
    actor = ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=spec,
        distribution_class=IndependentNormal,
        return_log_prob=True,
    )
    critic = ValueOperator(
        MLP(in_features=observed, out_features=1, num_cells=hidden, activation_class=torch.nn.Tanh),
        in_keys=["observation"],
    )
    return actor, critic


def main() -> None:
    """Trains, and prints the measurements."""
    import torch
    from torchrl.collectors import MultiSyncCollector
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    options = task.arguments()
    journal = task.Journal(options.success)
    torch.manual_seed(options.seed)
    example = make_env(options.task, journal.path, 0)
    actor, critic = make_networks(
        example.observation_spec["observation"].shape[-1], example.action_spec.shape[-1], example.action_spec
    )
    example.close()
    collector = MultiSyncCollector(
        [
            functools.partial(make_envs, options.task, journal.path, options.seed * task.WORKERS + rank)
            for rank in range(task.WORKERS)
        ],
        actor,
        frames_per_batch=task.STEPS,
        total_frames=task.STEPS * options.iterations,
        cat_results=0,
        device="cpu",
    )
    torch.set_num_threads(os.cpu_count() or 1)
    advantages = GAE(gamma=task.DISCOUNT, lmbda=task.GAE_LAMBDA, value_network=critic)
    objective = ClipPPOLoss(
        actor, critic, clip_epsilon=0.2, entropy_coeff=0.0, critic_coeff=0.5, normalize_advantage=True
    )
    optimizer = torch.optim.Adam(objective.parameters(), lr=options.learning_rate, eps=1e-5)
    marks = [time.time()]
    for batch in collector:
        for _ in range(task.EPOCHS):
            with torch.no_grad():
                samples = advantages(batch).reshape(-1)
            for chosen in torch.randperm(task.STEPS).split(task.STEPS // task.MINIBATCHES):
                losses = objective(samples[chosen])
                loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(objective.parameters(), 0.5)
                optimizer.step()
        collector.update_policy_weights_()
        marks.append(time.time())
        if journal.reached is not None:
            break
    task.report(journal, marks, "torchrl")
    collector.shutdown()


if __name__ == "__main__":
    main()
