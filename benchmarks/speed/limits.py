"""Speed limits set by the simulator: one process per core takes random actions, without a policy or a learner."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import queue
import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.peers import task as shared

CORES = len(os.sched_getaffinity(0))
Stepper = Iterator[None]
"""Takes one step of all environments of a process each time it is advanced."""


def stock(task: str, environments: int) -> Stepper:
    """Steps the environments that ``gymnasium.make`` returns, and resets them at the task's own horizon."""
    import gymnasium
    import torch

    envs = [shared.make_task(task) for _ in range(environments)]
    horizon = gymnasium.spec(task).max_episode_steps
    generator = np.random.default_rng(os.getpid())
    shape = (environments, *envs[0].unwrapped.single_action_space.shape)
    with torch.inference_mode():
        for env in envs:
            env.reset(seed=0)
        for count in itertools.count(1):
            actions = generator.uniform(-1.0, 1.0, shape).astype(np.float32)
            for env, action in zip(envs, actions, strict=True):
                env.step(action)
            if count % horizon == 0:
                for env in envs:
                    env.reset()
            yield


def batched(task: str, environments: int) -> Stepper:
    """Steps the simulator of a rollout worker, with the settings of the runs."""
    import torch

    from benchmarks.speed.ours import configuration
    from rlpipe.config.loading import load_config
    from rlpipe.envs.maniskill import ManiSkill

    torch.set_num_threads(1)
    config = load_config(configuration(task)).env.train
    seeds = itertools.count()
    simulator = ManiSkill.make(config, environments, lambda _slot: next(seeds))
    generator = np.random.default_rng(os.getpid())
    simulator.reset()
    while True:
        simulator.step(generator.uniform(-1.0, 1.0, (environments, simulator.spec.action_dim)).astype(np.float32))
        yield


def next_order(orders) -> float:
    """Seconds to step for; 0 ends the process, as does the death of its parent."""
    parent = multiprocessing.parent_process()
    while parent is not None and parent.is_alive():
        try:
            return orders.get(timeout=5.0)
        except queue.Empty:
            continue
    return 0.0


def step_on_request(make: Callable[[str, int], Stepper], task: str, environments: int, orders, rates) -> None:
    """Main function of a process: steps for the ordered times, and answers with environment steps per second.

    Each time is extended to whole episodes, because some tasks spend as long on a reset as on dozens of steps.
    """
    import gymnasium

    stepper = make(task, environments)
    next(stepper)
    horizon = gymnasium.spec(task).max_episode_steps
    rates.put(0.0)  # ready
    while seconds := next_order(orders):
        began, count = time.perf_counter(), 0
        while time.perf_counter() < began + seconds or count % horizon:
            next(stepper)
            count += 1
        rates.put(count * environments / (time.perf_counter() - began))


class Limit:
    """One process per core; each steps its share of the environments on request."""

    def __init__(self, make: Callable[[str, int], Stepper], task: str) -> None:
        """Starts the processes and waits until all simulators are ready."""
        context = multiprocessing.get_context("spawn")
        self._rates = context.Queue()
        self._orders = [context.Queue() for _ in range(CORES)]
        self._processes = [
            context.Process(
                target=step_on_request,
                args=(make, task, max(1, shared.ENVS // CORES), orders, self._rates),
                daemon=True,
            )
            for orders in self._orders
        ]
        for process in self._processes:
            process.start()
        for _ in self._processes:
            self._next_rate()

    def rate(self, seconds: float) -> float:
        """Environment steps per second of all processes together."""
        for orders in self._orders:
            orders.put(seconds)
        return sum(self._next_rate() for _ in self._processes)

    def _next_rate(self) -> float:
        """Rate of the next process that answers; 0 from one that is ready.

        Raises:
            RuntimeError: a process ended instead.
        """
        while True:
            try:
                rate: float = self._rates.get(timeout=5.0)
            except queue.Empty:
                codes = [process.exitcode for process in self._processes]
                if any(code is not None for code in codes):
                    raise RuntimeError(f"a process of the limit ended; exit codes: {codes}") from None
            else:
                return rate

    def close(self) -> None:
        """Ends the processes."""
        for orders in self._orders:
            orders.put(0.0)
        for process in self._processes:
            process.join()
