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
from rlpipe.config.simulators import simulator_class
from rlpipe.envs.base import KEY, Allotment, Beginning, Simulator, SimulatorConfig, Step, TaskFacts
from rlpipe.envs.shared.goals import GoalTask
from rlpipe.envs.shared.make import make_simulator
from rlpipe.envs.shared.slots import NextSeed
from rlpipe.errors import ConfigError
from rlpipe.metrics import catalogue as m
from rlpipe.trajectory import Bool, Float32, LeafSpec, Observations, Scene, SpaceSpec, Tree

LEAF = "task"
"""Name of the leaf that tells the task."""
VECTOR = "observation"
"""Name of the leaf that holds what was a vector before a task stood beside it."""
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

    Args:
        config: section of a simulator.
        key: its key in the configuration, for the error.
    Raises:
        ConfigError: an entry is not usable, or two have the same label.
    """
    found = [_task(config, entry, f"{key}.tasks[{index}]") for index, entry in enumerate(config.tasks)]
    labels = [task.label for task in found]
    for index, label in enumerate(labels):
        if label in labels[:index]:
            raise ConfigError(
                f"{key}.tasks[{index}] is called {label!r}, as tasks[{labels.index(label)}] is: give one of them "
                "another label, such as {id: ..., label: easy}."
            )
    return found


def _task(config: SimulatorConfig, entry: Any, key: str) -> Task:
    given = {"id": entry} if isinstance(entry, str) else entry
    if not isinstance(given, Mapping):
        raise ConfigError(f"{key} is {entry!r}; it must be the id of a task, or hold keys and values, such as id=...")
    for name in ("name", "total_num_envs", "tasks", "observe_task", "pad_observations"):
        if name in given:
            raise ConfigError(f"{key}.{name} is given, but it is the same for all tasks: set it beside tasks.")
    own = {name: given[name] for name in _OWN if name in given}
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    options = fields | {"tasks": []} | {name: value for name, value in given.items() if name not in _OWN}
    section = typed(type(config), options, key)
    check_fields(section, key)
    label = own.get("label", re.split(r"[/:]", str(getattr(section, "id", "")))[-1])
    if not isinstance(label, str) or not re.fullmatch(r"[\w.-]+", label):
        raise ConfigError(
            f"{key} is called {label!r}, which cannot be part of a metric's name: give it a label of letters, digits, "
            "_ . and -, such as {id: ..., label: reach}."
        )
    share = own.get("share", 1.0)
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
    given, found = np.zeros(len(shares)), []
    for number in range(-(-count // together)):
        chosen = int(np.argmax(weights * (number + 1) - given))  # the one that is most behind; of equals, the first
        given[chosen] += 1
        found.append(chosen)
    for missing in np.flatnonzero(given == 0).tolist():
        most = int(np.argmax(given))
        found[len(found) - 1 - found[::-1].index(most)] = missing
        given[most] -= 1
    return [task for task in found for _ in range(together)][:count]


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

    console_metrics = (m.ENV_TASKS_SUCCESS_ONCE_MEAN, m.ENV_TASKS_SUCCESS_ONCE_WORST)

    @classmethod
    def describe(cls, config: SimulatorConfig, key: str) -> TaskFacts:
        """As of ``Simulator``; the time limit is the shortest one, so that what suits it suits every task."""
        tasks, known = tasks_of(config, key), []
        for index, task in enumerate(tasks):
            known.append(_plugin(task.config).describe(task.config, f"{key}.tasks[{index}]"))
            _check_same(key, tasks[0], task)
        return TaskFacts(
            time_limit=min((facts.time_limit for facts in known if facts.time_limit is not None), default=None),
            waits=all(facts.waits for facts in known),
            seeds=all(facts.seeds for facts in known),
            success=all(facts.success for facts in known),
            why_not={name: why for facts in reversed(known) for name, why in _obstacles(facts).items()},
            find_spaces=lambda: _find_spaces(config, tasks, known),
            check_machine=lambda: _check_machine(known),
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
        Raises:
            ConfigError: there is none for one of them.
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

        Args:
            config: section with ``tasks``.
            tasks: what it names.
            allotment: tasks of the slots.
            next_seed: called before each reset of a slot.
        Raises:
            ConfigError: a simulator cannot be made, or the tasks differ in their spaces.
        """
        of_slots = np.asarray(allotment.of_slots)
        self.num_envs = len(of_slots)
        self._tasks = [
            _TaskSlots.made(task, f"{KEY}.tasks[{number}]", np.flatnonzero(of_slots == number), next_seed)
            for number, task in enumerate(tasks)
            if np.any(of_slots == number)
        ]
        specs = [(task.label, task.simulator.spec) for task in self._tasks]
        self._spaces = _Spaces.of(config, specs, allotment.known)
        self.spec = self._spaces.spec
        simulators = [task.simulator for task in self._tasks]
        self.has_success = all(one.has_success for one in simulators)
        self.can_wait = all(one.can_wait for one in simulators)  # type: ignore[misc] # depends on the tasks here
        self.notes = tuple(dict.fromkeys(note for one in simulators for note in one.notes))
        self.metrics = tuple(dict.fromkeys(one for made in simulators for one in made.metrics))  # type: ignore[misc]

    @property
    def reset_seconds(self) -> float | None:  # type: ignore[override] # the sum of the tasks'
        """Time spent in resets so far; None where a task does not tell."""
        known = [seconds for task in self._tasks if (seconds := task.simulator.reset_seconds) is not None]
        return sum(known) if len(known) == len(self._tasks) else None

    def reset(self) -> tuple[Observations, dict[int, Beginning]]:
        observations = self.spec.observations(self.num_envs)
        beginnings: dict[int, Beginning] = {}
        for task in self._tasks:
            first, began = task.simulator.reset()
            observations[task.slots] = self._spaces.translated(first, task.label)
            beginnings |= task.named(began)
        return observations, beginnings

    def step(self, actions: NDArray[Any], active: Bool | None = None) -> Step:
        merged = _Merged(self.spec, self.num_envs, self.has_success)
        for task in self._tasks:
            taking = None if active is None else active[task.slots]
            if np.any(~task.exhausted if taking is None else ~task.exhausted & taking):
                merged.add(task, task.simulator.step(actions[task.slots], taking), self._spaces)
        return merged.step()

    def _place_of(self, n: int) -> tuple[Simulator, int]:
        """Returns the simulator of a slot, and its number there."""
        task = next(one for one in self._tasks if n in one.slots)
        return task.simulator, int(np.searchsorted(task.slots, n))

    def scene(self, n: int) -> Scene | None:
        simulator, place = self._place_of(n)
        return simulator.scene(place)

    def poses(self, n: int) -> Float32:
        simulator, place = self._place_of(n)
        return simulator.poses(place)

    def close(self) -> None:
        for task in self._tasks:
            task.simulator.close()


def _find_spaces(config: SimulatorConfig, tasks: Sequence[Task], facts: Sequence[TaskFacts]) -> SpaceSpec | None:
    """Finds the spaces that the tasks share, as far as any of them is quick to make."""
    specs = [one.find_spaces() for one in facts]
    known = [(task.label, spec) for task, spec in zip(tasks, specs, strict=True) if spec is not None]
    return _Spaces.of(config, known, [task.label for task in tasks]).spec if known else None


def _check_machine(facts: Sequence[TaskFacts]) -> None:
    """Checks that this machine has what any of the tasks needs."""
    for one in facts:
        one.check_machine()


def _obstacles(facts: TaskFacts) -> dict[str, str]:
    """Returns what to do about the facts that do not hold."""
    return {name: why for name, why in facts.why_not.items() if not getattr(facts, name)}


def _plugin(config: SimulatorConfig) -> type[Simulator]:
    found: type[Simulator] = simulator_class(config, "env.train")
    return found


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
    def made(cls, task: Task, key: str, slots: NDArray[np.int64], next_seed: NextSeed) -> _TaskSlots:
        exhausted = np.zeros(len(slots), dtype=bool)

        def own_seed(number: int) -> int | None:
            seed = next_seed(int(slots[number]))
            exhausted[number] = seed is None
            return seed

        return cls(task.label, slots, make_simulator(task.config, len(slots), own_seed, key=key), exhausted)

    def named(self, beginnings: Mapping[int, Beginning]) -> dict[int, Beginning]:
        """Beginnings by the numbers of the slots, each with the task."""
        return {int(self.slots[n]): replace(one, task=self.label) for n, one in beginnings.items()}


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
    def of(cls, config: SimulatorConfig, specs: Sequence[tuple[str, SpaceSpec]], known: Sequence[str]) -> _Spaces:
        """Finds the common spaces.

        Args:
            config: section with ``tasks``.
            specs: label and spaces of each task.
            known: labels of all tasks that the policy tells apart.
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
        leaves = {VECTOR: LeafSpec((common.observation_dim,))} if common.leaves is None else dict(common.leaves)
        if LEAF in leaves:
            raise ConfigError(
                f"{first} observes a leaf of its own that is called {LEAF}, where the run would tell the task: set "
                "env.train.observe_task=false."
            )
        leaves[LEAF] = LeafSpec((), "int64", (len(known),))
        spec = SpaceSpec.of_tree(leaves, common.action_dim, common.num_actions, common.action_low, common.action_high)
        return cls(spec, {label: place for place, label in enumerate(known)}, width)

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
        found = "a tree of arrays" if spec.leaves is not None else f"{spec.observation_dim} numbers"
        raise ConfigError(
            f"env.train.pad_observations is {width}, but {label} observes {found}: "
            + ("leave it out." if spec.leaves is not None else f"give at least {spec.observation_dim}.")
        )
    return replace(spec, observation_dim=width)


def _same_bounds(one: SpaceSpec, other: SpaceSpec) -> bool:
    bounds = ((one.action_low, other.action_low), (one.action_high, other.action_high))
    return all(ours is theirs is None or np.array_equal(ours, theirs) for ours, theirs in bounds)  # type: ignore[arg-type] # None equals nothing


def _differing(first: str, one: SpaceSpec, label: str, other: SpaceSpec) -> str:
    """Says how the spaces of two tasks differ, and what to do."""
    if one.leaves is None and other.leaves is None and one.observation_dim != other.observation_dim:
        widest = max(one.observation_dim, other.observation_dim)
        return (
            f"the tasks of a run share their spaces, but {first} observes {one.observation_dim} numbers and {label} "
            f"{other.observation_dim}: env.train.pad_observations={widest} fills the shorter one up with zeros."
        )
    return (
        f"the tasks of a run share their spaces, but {first} has {one} and {label} has {other}: give them the same "
        "options, such as control_mode, or run them by themselves."
    )


class _Merged:
    """Answers of the tasks at the places of their slots."""

    def __init__(self, spec: SpaceSpec, count: int, has_success: bool) -> None:
        self._count = count
        self._observations, self._successors = spec.observations(count), spec.observations(count)
        self._rewards = np.zeros(count, dtype=np.float64)
        self._terminated, self._truncated, self._valid = (np.zeros(count, dtype=bool) for _ in range(3))
        self._success = np.zeros(count, dtype=bool) if has_success else None
        self._failure: NDArray[np.float64] | None = None
        self._terms: dict[str, NDArray[np.float64]] = {}
        self._observed: dict[Any, NDArray[np.float64]] = {}
        self._beginnings: dict[int, Beginning] = {}
        self._tells_success = False
        self._notes: tuple[str, ...] = ()

    def add(self, task: _TaskSlots, step: Step, spaces: _Spaces) -> None:
        """Takes the answer of one task."""
        slots, label = task.slots, task.label
        successors = spaces.translated(step.successors, label)
        self._successors[slots] = successors
        same = step.observations is step.successors
        self._observations[slots] = successors if same else spaces.translated(step.observations, label)
        self._rewards[slots], self._valid[slots] = step.rewards, step.valid
        self._terminated[slots], self._truncated[slots] = step.terminated, step.truncated
        if self._success is not None and step.success is not None:
            self._success[slots] = step.success
        if step.failure is not None:
            self._failure = np.full(self._count, np.nan) if self._failure is None else self._failure
            self._failure[slots] = step.failure
        _place(self._terms, step.reward_terms, slots, self._count)
        _place(self._observed, step.observed, slots, self._count)
        self._beginnings |= task.named(step.beginnings)
        self._tells_success |= step.tells_success
        self._notes += tuple(f"{label}: {note}" for note in step.notes)

    def step(self) -> Step:
        """Returns the answer of all."""
        return Step(
            self._observations,
            self._successors,
            self._rewards,
            self._terminated,
            self._truncated,
            self._success,
            self._valid,
            self._beginnings,
            self._failure,
            self._terms,
            self._observed,
            self._tells_success,
            self._notes,
        )


def _place(
    found: dict[Any, NDArray[np.float64]], told: Mapping[Any, NDArray[np.float64]], slots: NDArray[np.int64], count: int
) -> None:
    """Writes [M] values by name at the places of their slots among [N], where others are NaN."""
    for name, values in told.items():
        found.setdefault(name, np.full(count, np.nan))[slots] = values


def _check_same(key: str, first: Task, other: Task) -> None:
    """Checks what tasks of one run cannot have differently."""
    if other.config.ignore_terminations != first.config.ignore_terminations:
        raise ConfigError(
            f"{key}.tasks: ignore_terminations is {first.config.ignore_terminations} for {first.label} and "
            f"{other.config.ignore_terminations} for {other.label}: it is the same for all tasks."
        )
