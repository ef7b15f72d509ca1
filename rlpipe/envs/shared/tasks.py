"""Several tasks in one run: the slots of a simulator are divided among tasks that share their spaces.

Each task has a simulator of its own, whose environments step together. A policy that learns all of them sees which one
it is in, as a leaf of its observations (Yu et al. 2019, arXiv:1910.10897, section 4).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.config.fields import check_fields
from rlpipe.config.sections import typed
from rlpipe.config.simulators import varied_facts
from rlpipe.config.variations import Variations
from rlpipe.envs.base import KEY, Allotment, Beginning, Simulator, SimulatorConfig, Step, TaskFacts
from rlpipe.envs.shared.goals import GoalTask
from rlpipe.envs.shared.make import make_simulator
from rlpipe.envs.shared.slots import NextSeed
from rlpipe.errors import ConfigError
from rlpipe.metrics import catalogue as m
from rlpipe.trajectory import Bool, Float32, LeafSpec, Observations, Scene, SpaceSpec, Tree
from rlpipe.trajectory.tree import VECTOR

LEAF = "task"
"""Name of the leaf that tells the task."""
_OWN = ("label", "share")


@dataclass(frozen=True)
class Task:
    """One of the tasks of a run.

    Attributes:
        label: its name in metrics and in the ledger.
        share: weight by which it gets slots, in proportion to the others.
        config: options of its simulator.
    """

    label: str
    share: float
    config: Any


def tasks_of(config: SimulatorConfig, key: str) -> list[Task]:
    """Returns the tasks that ``tasks`` lists; none where it is empty.

    Raises:
        ConfigError: an entry is not usable, or two have the same label.
    """
    tasks = [_task(config, entry, f"{key}.tasks[{index}]") for index, entry in enumerate(config.tasks)]
    labels = [task.label for task in tasks]
    for index, label in enumerate(labels):
        if label in labels[:index]:
            raise ConfigError(
                f"{key}.tasks[{index}] is called {label!r}, as tasks[{labels.index(label)}] is: give one of them "
                "another label, such as {id: ..., label: easy}."
            )
    return tasks


def label_of(entry: Any, name: str = "") -> Any:
    """Returns the label of an entry of ``tasks``: its own, or the last part of its id.

    Args:
        entry: the id, or keys and values
        name: id of the task, where the entry does not hold it
    """
    values = {"id": entry} if isinstance(entry, str) else entry
    return values.get("label", re.split(r"[/:]", str(values.get("id", name)))[-1])


def _task(config: SimulatorConfig, entry: Any, key: str) -> Task:
    values = {"id": entry} if isinstance(entry, str) else entry
    if not isinstance(values, Mapping):
        raise ConfigError(f"{key} is {entry!r}; it must be the id of a task, or hold keys and values, such as id=...")
    for name in ("name", "total_num_envs", "tasks", "observe_task", "pad_observations"):
        if name in values:
            raise ConfigError(f"{key}.{name} is given, but it is the same for all tasks: set it beside tasks.")
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    options = fields | {"tasks": []} | {name: value for name, value in values.items() if name not in _OWN}
    section = typed(type(config), options, key)
    check_fields(section, key)
    label = label_of(values, getattr(section, "id", ""))
    if not isinstance(label, str) or not re.fullmatch(r"[\w.-]+", label):
        raise ConfigError(
            f"{key} is called {label!r}, which cannot be part of a metric's name: give it a label of letters, digits, "
            "_ . and -, such as {id: ..., label: reach}."
        )
    share = values.get("share", 1.0)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1e9:
        raise ConfigError(f"{key}.share is {share!r}; it must be a number greater than 0.")
    return Task(label, float(share), section)


def allotted(shares: Sequence[float], count: int, together: int = 1) -> list[int]:
    """Returns the number of the task of each slot, so that any row of slots has about the right shares.

    A task that would have no slot gets the last one of the task that has most: without any, it could not come back
    where shares follow progress.

    Args:
        shares: weight of each task; no more tasks than slots.
        count: number of slots.
        together: slots in a row that have the same task.
    """
    weights = np.asarray(shares) / np.sum(shares)
    counts, tasks = np.zeros(len(shares)), []  # rows of slots: how many each task has, and the task of each
    for number in range(-(-count // together)):
        task = int(np.argmax(weights * (number + 1) - counts))  # the one that is most behind; of equals, the first
        counts[task] += 1
        tasks.append(task)
    for missing in np.flatnonzero(counts == 0).tolist():
        most = int(np.argmax(counts))
        tasks[len(tasks) - 1 - tasks[::-1].index(most)] = missing
        counts[most] -= 1
    return [task for task in tasks for _ in range(together)][:count]


def training_allotment(
    config: SimulatorConfig, first_slot: int, count: int, together: int, weights: Mapping[str, float]
) -> Allotment | None:
    """Returns the tasks of the slots of a rollout worker; None where there is only one task.

    Args:
        config: ``env.train``.
        first_slot: number of the worker's first slot among those of all workers.
        count: number of its slots.
        together: slots in a row that have the same task.
        weights: factor of each task's share, by label; 1 for one that is not named.
    """
    if not config.tasks:
        return None
    tasks = tasks_of(config, "env.train")
    shares = [task.share * weights.get(task.label, 1.0) for task in tasks]
    of_slots = allotted(shares, config.total_num_envs, together)
    return Allotment(of_slots[first_slot : first_slot + count], [task.label for task in tasks])


def evaluation_allotment(config: SimulatorConfig, train: SimulatorConfig, of_slots: Sequence[int]) -> Allotment | None:
    """Returns the tasks of the slots of an evaluation; None where there is only one task.

    Args:
        config: ``env.eval``.
        train: ``env.train``, whose tasks the policy tells apart.
        of_slots: number of each slot's task among those of ``config``.
    """
    return Allotment(of_slots, SeveralTasks.labels(train, "env.train")) if config.tasks else None


class SeveralTasks(Simulator):
    """Slots of several tasks; stands in for the simulator of a section with ``tasks``."""

    console_metrics = (m.ENV_TASKS.mean, m.ENV_TASKS.worst)

    @classmethod
    def describe(cls, config: SimulatorConfig, key: str) -> TaskFacts:
        """As of ``Simulator``; the time limit is the shortest one, so that what suits it suits every task."""
        tasks, descriptions = tasks_of(config, key), list[TaskFacts]()
        for index, task in enumerate(tasks):
            descriptions.append(varied_facts(task.config, f"{key}.tasks[{index}]"))
            if task.config.ignore_terminations != tasks[0].config.ignore_terminations:
                raise ConfigError(
                    f"{key}.tasks: ignore_terminations is {tasks[0].config.ignore_terminations} for {tasks[0].label} "
                    f"and {task.config.ignore_terminations} for {task.label}: it is the same for all tasks."
                )

        def find_spaces() -> SpaceSpec | None:
            """Finds the spaces that the tasks share, as far as any of them is quick to make."""
            specs = zip(tasks, [facts.find_spaces() for facts in descriptions], strict=True)
            labelled = [(task.label, spec) for task, spec in specs if spec is not None]
            return _Spaces.of(config, labelled, [task.label for task in tasks]).spec if labelled else None

        def check_machine() -> None:
            for facts in descriptions:
                facts.check_machine()

        return TaskFacts(
            time_limit=min((facts.time_limit for facts in descriptions if facts.time_limit is not None), default=None),
            waits=all(facts.waits for facts in descriptions),
            seeds=all(facts.seeds for facts in descriptions),
            independent=all(facts.independent for facts in descriptions),
            success=all(facts.success for facts in descriptions),
            axes=tuple(axis for axis in descriptions[0].axes if all(axis in facts.axes for facts in descriptions)),
            expert=all(facts.expert for facts in descriptions),
            why_not={
                fact: why
                for facts in reversed(descriptions)
                for fact, why in facts.why_not.items()
                if not getattr(facts, fact)
            },
            find_spaces=find_spaces,
            check_machine=check_machine,
        )

    @classmethod
    def labels(cls, config: SimulatorConfig, key: str) -> list[str]:
        """Returns the labels of the tasks, in order."""
        return [task.label for task in tasks_of(config, key)]

    @classmethod
    def check_slots(cls, config: SimulatorConfig, key: str, together: int) -> None:
        """Checks that there is a slot for each task.

        Args:
            config: section with ``tasks``.
            key: its key in the configuration, for the error.
            together: slots in a row that have the same task.
        """
        tasks, count = len(tasks_of(config, key)), config.total_num_envs
        if tasks * together > count:
            each = f"a group of {together} environments" if together > 1 else "an environment"
            raise ConfigError(
                f"{key}.tasks names {tasks} tasks, each of which needs {each}, but {key}.total_num_envs is {count}: "
                f"give {tasks * together} or more."
            )

    @classmethod
    def goal_task(cls, config: SimulatorConfig) -> GoalTask | None:
        raise ConfigError(
            f"env.train.tasks names {len(config.tasks)} tasks, but hindsight judges the goals of one: set "
            "algorithm.hindsight=0, or name one task with env.train.id."
        )

    @classmethod
    def make(
        cls, config: SimulatorConfig, num_envs: int, next_seed: NextSeed, allotment: Allotment | None = None
    ) -> SeveralTasks:
        """As of ``Simulator``; without an allotment, the slots are the first ones of all workers."""
        tasks = tasks_of(config, "env.train")
        if allotment is None:
            of_slots = allotted([task.share for task in tasks], num_envs)
            allotment = Allotment(of_slots, [task.label for task in tasks])
        return cls(config, tasks, allotment, next_seed)

    def __init__(
        self, config: SimulatorConfig, tasks: Sequence[Task], allotment: Allotment, next_seed: NextSeed
    ) -> None:
        """Makes a simulator for each task that has a slot.

        Raises:
            ConfigError: a simulator cannot be made, or the tasks differ in their spaces.
        """
        of_slots = np.asarray(allotment.of_slots)
        self.num_envs = len(of_slots)
        self._tasks = [
            _TaskSlots.of(task, f"{KEY}.tasks[{number}]", np.flatnonzero(of_slots == number), next_seed)
            for number, task in enumerate(tasks)
            if np.any(of_slots == number)
        ]
        specs = [(task.label, task.simulator.spec) for task in self._tasks]
        self._spaces = _Spaces.of(config, specs, allotment.labels)
        self.spec = self._spaces.spec
        simulators = [task.simulator for task in self._tasks]
        self.has_success = all(simulator.has_success for simulator in simulators)
        self.can_wait = all(simulator.can_wait for simulator in simulators)  # type: ignore[misc] # depends on the tasks
        self.notes = tuple(dict.fromkeys(note for simulator in simulators for note in simulator.notes))
        metrics = dict.fromkeys(metric for simulator in simulators for metric in simulator.metrics)
        self.metrics = tuple(metrics)  # type: ignore[misc] # likewise

    @property
    def reset_seconds(self) -> float | None:  # type: ignore[override] # the sum of the tasks'
        """Time spent in resets so far; None where a task does not tell."""
        seconds = [task.simulator.reset_seconds for task in self._tasks]
        return None if None in seconds else sum(filter(None, seconds))

    def vary(self, variations: Variations) -> None:
        for task in self._tasks:
            task.simulator.vary(variations)

    def reset(self) -> tuple[Observations, dict[int, Beginning]]:
        observations = self.spec.observations(self.num_envs)
        beginnings: dict[int, Beginning] = {}
        for task in self._tasks:
            first, began = task.simulator.reset()
            observations[task.slots] = self._spaces.translated(first, task.label)
            beginnings |= task.named(began)
        return observations, beginnings

    def step(self, actions: NDArray[Any], active: Bool | None = None) -> Step:
        steps = []
        for task in self._tasks:
            taking = None if active is None else active[task.slots]
            if np.any(~task.exhausted if taking is None else ~task.exhausted & taking):
                steps.append((task, task.simulator.step(actions[task.slots], taking)))
        return self._merged(steps)

    def _merged(self, steps: Sequence[tuple[_TaskSlots, Step]]) -> Step:
        """Puts the answers of the tasks at the places of their slots."""
        count = self.num_envs
        observations, successors = self.spec.observations(count), self.spec.observations(count)
        rewards = np.zeros(count, dtype=np.float64)
        terminated, truncated, success, valid = (np.zeros(count, dtype=bool) for _ in range(4))
        failure: NDArray[np.float64] | None = None
        terms: dict[Any, NDArray[np.float64]] = {}
        observed: dict[Any, NDArray[np.float64]] = {}
        beginnings: dict[int, Beginning] = {}
        for task, step in steps:
            slots, label = task.slots, task.label
            successors[slots] = translated = self._spaces.translated(step.successors, label)
            same = step.observations is step.successors
            observations[slots] = translated if same else self._spaces.translated(step.observations, label)
            rewards[slots], valid[slots] = step.rewards, step.valid
            terminated[slots], truncated[slots] = step.terminated, step.truncated
            if step.success is not None:
                success[slots] = step.success
            if step.failure is not None:
                failure = np.full(count, np.nan) if failure is None else failure
                failure[slots] = step.failure
            for columns, numbers in ((terms, step.reward_terms), (observed, step.observed)):
                for name, values in numbers.items():
                    columns.setdefault(name, np.full(count, np.nan))[slots] = values
            beginnings |= task.named(step.beginnings)
        return Step(
            observations,
            successors,
            rewards,
            terminated,
            truncated,
            success if self.has_success else None,
            valid,
            beginnings,
            failure,
            terms,
            observed,
            any(step.tells_success for _, step in steps),
            tuple(f"{task.label}: {note}" for task, step in steps for note in step.notes),
        )

    def _place_of(self, n: int) -> tuple[Simulator, int]:
        """Returns the simulator of a slot, and its number there."""
        task = next(task for task in self._tasks if n in task.slots)
        return task.simulator, int(np.searchsorted(task.slots, n))

    def expert_action(self, n: int) -> Float32:
        simulator, place = self._place_of(n)
        return simulator.expert_action(place)

    def scene(self, n: int) -> Scene | None:
        simulator, place = self._place_of(n)
        return simulator.scene(place)

    def poses(self, n: int) -> Float32:
        simulator, place = self._place_of(n)
        return simulator.poses(place)

    def close(self) -> None:
        for task in self._tasks:
            task.simulator.close()


@dataclass(frozen=True)
class _TaskSlots:
    """Slots of one task.

    Attributes:
        label: of the task.
        slots: [M] their numbers.
        simulator: of M environments.
        exhausted: [M] True once a slot has got no seed for its next episode; some ask a step after the end of the last.
    """

    label: str
    slots: NDArray[np.int64]
    simulator: Simulator
    exhausted: Bool

    @classmethod
    def of(cls, task: Task, key: str, slots: NDArray[np.int64], next_seed: NextSeed) -> _TaskSlots:
        exhausted = np.zeros(len(slots), dtype=bool)

        def own_seed(number: int) -> int | None:
            seed = next_seed(int(slots[number]))
            exhausted[number] = seed is None
            return seed

        return cls(task.label, slots, make_simulator(task.config, len(slots), own_seed, key=key), exhausted)

    def named(self, beginnings: Mapping[int, Beginning]) -> dict[int, Beginning]:
        """Beginnings by the numbers of the slots, each with the task."""
        return {int(self.slots[n]): replace(beginning, task=self.label) for n, beginning in beginnings.items()}


@dataclass(frozen=True)
class _Spaces:
    """Spaces that all tasks have in common, and how observations get there.

    Attributes:
        spec: the common spaces.
        places: number of each task by its label; empty if observations do not tell it.
        width: D of the common vector; None for trees.
    """

    spec: SpaceSpec
    places: Mapping[str, int]
    width: int | None

    @classmethod
    def of(cls, config: SimulatorConfig, specs: Sequence[tuple[str, SpaceSpec]], labels: Sequence[str]) -> _Spaces:
        """Finds the common spaces.

        Raises:
            ConfigError: the tasks have none in common.
        """
        (first, common), *others = [(label, _padded(spec, label, config.pad_observations)) for label, spec in specs]
        for label, spec in others:
            if not spec.same_as(common) or not _same_bounds(spec, common):
                raise ConfigError(_differing(first, common, label, spec))
        width = None if common.leaves is not None else common.observation_dim
        if not config.observe_task:
            return cls(common, {}, width)
        try:
            spec = common.with_leaf(LEAF, LeafSpec((), "int64", (len(labels),)))
        except ValueError as error:
            raise ConfigError(
                f"{first} observes a leaf of its own that is called {LEAF}, where the run would tell the task: set "
                "env.train.observe_task=false."
            ) from error
        return cls(spec, {label: place for place, label in enumerate(labels)}, width)

    def translated(self, observations: Observations, label: str) -> Observations:
        """Returns observations [M, ...] of a task in the common spaces."""
        if self.width is not None and observations.shape[1] < self.width:
            wide = np.zeros((len(observations), self.width), dtype=np.float32)
            wide[:, : observations.shape[1]] = observations
            observations = wide
        if not self.places:
            return observations
        leaves = {VECTOR: observations} if self.width is not None else observations.leaves
        return Tree({**leaves, LEAF: np.full(len(observations), self.places[label])})


def _padded(spec: SpaceSpec, label: str, width: int | None) -> SpaceSpec:
    """Spaces with vectors of a fixed length."""
    if width is None:
        return spec
    if spec.leaves is not None or spec.observation_dim > width:
        observed = "a tree of arrays" if spec.leaves is not None else f"{spec.observation_dim} numbers"
        raise ConfigError(
            f"env.train.pad_observations is {width}, but {label} observes {observed}: "
            + ("leave it out." if spec.leaves is not None else f"give at least {spec.observation_dim}.")
        )
    return replace(spec, observation_dim=width)


def _same_bounds(spec: SpaceSpec, other: SpaceSpec) -> bool:
    bounds = ((spec.action_low, other.action_low), (spec.action_high, other.action_high))
    return all(ours is theirs is None or np.array_equal(ours, theirs) for ours, theirs in bounds)  # type: ignore[arg-type] # None equals nothing


def _differing(first: str, spec: SpaceSpec, label: str, other: SpaceSpec) -> str:
    """Says how the spaces of two tasks differ, and what to do."""
    if spec.leaves is None and other.leaves is None and spec.observation_dim != other.observation_dim:
        widest = max(spec.observation_dim, other.observation_dim)
        return (
            f"the tasks of a run share their spaces, but {first} observes {spec.observation_dim} numbers and {label} "
            f"{other.observation_dim}: env.train.pad_observations={widest} fills the shorter one up with zeros."
        )
    return (
        f"the tasks of a run share their spaces, but {first} has {spec} and {label} has {other}: give them the same "
        "options, such as control_mode, or run them by themselves."
    )
