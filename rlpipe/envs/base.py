"""The step contract: what every simulator returns after a step, whatever its own conventions.

Autoreset, the true successor observation, termination as opposed to truncation, and success are settled here, once.
Collection and evaluation therefore do not need to know which simulator they drive. This is stop 1 of the data.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlpipe.config.fields import check_not_empty, check_path, option
from rlpipe.config.variations import NO_VARIATIONS, Axis, Variations
from rlpipe.envs.shared.axes import EVERYWHERE, OF_CAMERAS
from rlpipe.envs.shared.checks import first_of, flag, number, number_or_none, place, shown, without_names
from rlpipe.envs.shared.goals import GoalTask
from rlpipe.envs.shared.seeding import Seeding
from rlpipe.envs.shared.slots import NextSeed, NextStart, Slots
from rlpipe.errors import ConfigError, ContractError
from rlpipe.trajectory import Bool, ChosenStart, Float32, Observations, Scene, SpaceSpec, State

if TYPE_CHECKING:  # a simulator in a Python of its own does without
    from rlpipe.metrics.declaration import Metric

KEY = "\x1fkey\x1f"
"""Placeholder for the key of the section in errors of ``make``, which has no key; ``make_simulator`` replaces it."""

MOST_NOTES = 100
"""Notes of one simulator."""

NO_STATES = (
    "cannot begin an episode in a stored state, as maniskill can, and the MuJoCo tasks of Gymnasium and "
    "Gymnasium-Robotics: set curriculum.name=forward, which needs none."
)

NO_EXPERT = "has no planner, as some tasks of maniskill and all of metaworld do: name a run or package.module:function."


@dataclass(frozen=True)
class SimulatorConfig:
    """Base of every simulator's configuration."""

    name: str
    """``gymnasium``, ``maniskill``, ``envpool``, ``metaworld``, ``dm_control``, ``robosuite``, ``libero``,
    ``scripted``, or ``package.module:Class``."""
    total_num_envs: int = option(16, least=1, most=100_000, unit="environments")
    """Number of environments over all rollout workers (N). Under ``env.eval``: slots of the evaluation, at most one per
    episode."""
    ignore_terminations: bool = option(False)
    """End episodes only by the time limit, so that a goal must be held to count at the end."""
    tasks: list[Any] = option([], fixed=True)
    """Several tasks in one run, in place of one ``id`` (docs/tasks.md): ids, or keys and values that differ from those
    beside the list, with ``label`` (the task's name in metrics) and ``share`` (its weight; 1). Under ``env.eval``, some
    of those of ``env.train``."""
    observe_task: bool = option(True, fixed=True)
    """With several tasks, tell the policy which one it is in, by the leaf ``task`` of its observations."""
    pad_observations: int | None = option(None, least=1, below=2**31, unit="numbers", fixed=True)
    """With several tasks, fill their observation vectors up with zeros to this length; None: they have the same one."""
    variations: dict[str, Any] = option({})
    """Axes on which episodes differ, and their levels ([variations.md](variations.md)): ``{mass: {uniform: [0.5, 2.0]},
    action_latency: {choice: [0, 1, 2]}}``. Under ``env.eval`` they replace those of ``env.train`` as a whole, so ``{}``
    evaluates without any."""
    observe_variations: list[str] = option([], fixed=True)
    """Axes whose levels are observed, as the leaf ``variations``; ``true`` for all axes that vary."""
    python: str | None = option(None, checks=(check_path, check_not_empty), unit="file")
    """Python interpreter in which the simulator runs, in a process of its own, such as that of another virtual
    environment ([simulators.md](simulators.md#a-python-of-its-own)). None: in the worker."""
    start_timeout: float = option(300.0, above=0, below=1e9, unit="s")
    """With ``python``: longest time that its process may be silent while it starts, imports the simulator and makes
    it."""
    answer_timeout: float = option(300.0, above=0, below=1e9, unit="s")
    """With ``python``: longest time that the simulator may be silent, while it is reset or stepped, before its process
    is ended and it counts as failed."""

    @property
    def task_name(self) -> str:
        """Id of the task; the simulator's name where there is none, or several."""
        return str(getattr(self, "id", "") or self.name)

    @property
    def goes_on_with(self) -> str | None:
        """Option to set so that a success does not end an episode; None if it does not."""
        return None if self.ignore_terminations else "ignore_terminations=true"

    @property
    def has_cameras(self) -> bool:
        """True if observations hold pictures that are drawn."""
        return False

    @property
    def needs_vulkan(self) -> bool:
        """True if the machines that run the simulator must have a Vulkan device."""
        return False

    def largest_return(self, discount: float) -> float | None:  # noqa: ARG002 - for tasks whose rewards are known
        """Largest discounted return of an episode; None if it is unknown.

        Args:
            discount: weight of a reward one step later.
        """
        return None


def check_ends(config: Any, key: str, limit: int | None) -> None:
    """Checks that episodes can end in a simulator that truncates them at its time limit [environment steps] alone."""
    if limit is None and config.ignore_terminations:
        raise ConfigError(
            f"{key}.ignore_terminations is true and {config.id} has no time limit, so no episode could end: set "
            f"{key}.max_episode_steps, or {key}.ignore_terminations=false."
        )


@dataclass(frozen=True)
class TaskEntry:
    """Task that a simulator offers, as far as is known without making it.

    Attributes:
        id: value of ``env.train.id``.
        time_limit: environment steps after which every episode ends; None if that is not known yet.
        settings: options that a configuration also needs, such as ``success_key=is_success``.
        needs: packages or assets that this machine lacks for it; empty if nothing is known to be missing.
    """

    id: str
    time_limit: int | None = None
    settings: str = ""
    needs: str = ""


def no_spaces() -> SpaceSpec | None:
    """Says that the workers will find out the spaces."""
    return None


def nothing_needed() -> None:
    """Says that any machine will do."""


@dataclass(frozen=True)
class TaskFacts:
    """Facts about a configured simulator that are known before anything starts.

    Attributes:
        time_limit: environment steps after which every episode ends; None if that is not known.
        waits: True if ``step`` can leave some environments as they are, as chunks of actions need.
        seeds: True if every episode begins with the seed that it is given, as evaluations need.
        independent: False if an episode may also depend, in its last digits, on those that its slot ran before it: the
            physics keeps something over a reset.
        success: False if it is known that episodes do not tell success.
        starts: True if ``next_start`` is asked, and episodes begin with its seeds.
        states: True if episodes can also begin in a stored state.
        expert: True if the simulator knows what to do in any state of its task (``Simulator.expert_action``).
        blends: True if they can also begin on the way from a stored state to the state of a reset.
        stops_after_success: True if ``steps_after_success`` is heeded.
        axes: axes on which episodes can vary.
        why_not: what to do about a fact that does not hold, by its name: ``waits``, ``starts`` and ``independent``: an
            option to set;
            ``seeds``: a sentence; ``success``: a clause; ``states`` and ``expert``: the reason as well, as the end of a
            sentence that begins with the task.
        action_bounds: least and greatest of every number of an action, where that is known without the spaces.
        find_spaces: finds the spaces in the driver, where that is quick, so that a policy is checked before the start;
            returns None where it would take long or cannot be done here. Raises ConfigError where no policy can use
            them.
        check_machine: raises ConfigError if this machine lacks devices that the simulator needs; opens none. It is
            called only where the run happens on this machine alone.
    """

    time_limit: int | None = None
    waits: bool = False
    seeds: bool = True
    independent: bool = True
    success: bool = True
    starts: bool = False
    states: bool = False
    expert: bool = False
    blends: bool = False
    stops_after_success: bool = False
    axes: tuple[Axis, ...] = EVERYWHERE
    why_not: Mapping[str, str] = field(default_factory=dict)
    action_bounds: tuple[float, float] | None = None
    find_spaces: Callable[[], SpaceSpec | None] = no_spaces
    check_machine: Callable[[], None] = nothing_needed

    def remedy(self, fact: str) -> str:
        """Returns what to do about a fact that does not hold, as in ``why_not``; empty if nothing is known."""
        return self.why_not.get(fact, {"states": NO_STATES, "expert": NO_EXPERT}.get(fact, ""))


@dataclass(frozen=True)
class Beginning:
    """Start of an episode.

    Attributes:
        seed: seed of the reset; None where the simulator drew its own.
        success: True if the task was solved before the first step; None where the simulator does not report it.
        chosen: start that a curriculum chose; None where the task drew it.
        task: label of the task; None where a run has only one.
        variations: level of the episode on each axis that varies.
    """

    seed: int | None
    success: bool | None
    chosen: ChosenStart | None = None
    task: str | None = None
    variations: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """Answer of N environments to one action each. No array is written to afterwards.

    Attributes:
        observations: [N, D] float32, or a tree, to act on next; where an episode ended, from after the reset.
        successors: [N, D] float32, or a tree, the true successor of this step, before any reset.
        rewards: [N] float64.
        terminated: [N] bool, the task ended. Can hold together with ``truncated``.
        truncated: [N] bool, a time limit cut the episode off.
        success: [N] bool after this step; None for a simulator without a notion of success.
        valid: [N] bool; False where the environment took no step, because it only reset or is idle.
        beginnings: episodes that start with the next valid step, by environment.
        failure: [N] 1 where the task is in a failed state, 0 where not, NaN where unknown; None if unknown everywhere.
        reward_terms: by name, [N] terms of this step's reward; NaN where a term does not apply.
        observed: [N] values of the simulator's own metrics; NaN where one does not apply. Those under a name are
            summarised over each episode (``Episode.metrics``), those under a declared metric over all steps.
        tells_success: True if at least one environment told its success; where none does, ``success`` is False.
        notes: sentences for the user on what was left out or is unusual, each told once.
    """

    observations: Observations
    successors: Observations
    rewards: NDArray[np.float64]
    terminated: Bool
    truncated: Bool
    success: Bool | None
    valid: Bool
    beginnings: dict[int, Beginning]
    failure: NDArray[np.float64] | None = None
    reward_terms: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    observed: Mapping[str | Metric, NDArray[np.float64]] = field(default_factory=dict)
    tells_success: bool = True
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Allotment:
    """Tasks of the slots of one worker, by number.

    Attributes:
        of_slots: [N] number of each slot's task among those of its own simulator.
        labels: labels of all tasks that the policy tells apart, in order.
    """

    of_slots: Sequence[int]
    labels: Sequence[str]


class Simulator(ABC):
    """N environments that step together and reset themselves.

    A plug-in has a ``Config``, which is a ``SimulatorConfig``, and is made by ``make``.

    Attributes:
        spec: shapes and bounds that a policy must know.
        num_envs: N.
        has_success: True if steps report success.
        notes: sentences a user should read once, such as that environments are stepped one by one.
        reset_seconds: time spent in resets so far; None where resets cannot be told apart from steps.
        metrics: metrics that the simulator itself declares.
        console_metrics: metrics that the terminal shows of a run.
        evaluation_options: options that an evaluation has, where ``env.eval`` does not say otherwise.
        is_checked: True if each step is checked and converted where it is made.
        can_wait: True if ``step`` can leave some environments as they are, as chunks of actions need.
        next_start: asked before each reset of a slot that has an episode left, where ``TaskFacts.starts``.
        can_stop_after_success: True if it heeds ``steps_after_success``.
        steps_after_success: environment steps after its first success with which an episode is truncated; None for
            never.
        axes: axes on which episodes of some of its tasks can vary.
        variations: variations of those axes that the simulator itself has, set by ``vary``.
    """

    Config: ClassVar[type[Any]] = SimulatorConfig
    spec: SpaceSpec
    num_envs: int
    has_success: bool
    notes: tuple[str, ...] = ()
    reset_seconds: float | None = None
    metrics: ClassVar[tuple[Metric, ...]] = ()
    console_metrics: ClassVar[tuple[Metric, ...]] = ()
    evaluation_options: ClassVar[Mapping[str, Any]] = {}
    is_checked: ClassVar[bool] = False
    can_wait: ClassVar[bool] = False
    next_start: NextStart | None = None
    can_stop_after_success: ClassVar[bool] = False
    steps_after_success: int | None = None
    axes: ClassVar[tuple[Axis, ...]] = (*EVERYWHERE, *OF_CAMERAS)
    variations: Variations = NO_VARIATIONS

    def vary(self, variations: Variations) -> None:
        """Varies axes that the simulator itself has from the next ``reset`` on, and no others."""
        self.variations = variations

    @classmethod
    def describe(cls, config: Any, key: str) -> TaskFacts:  # noqa: ARG003 - for errors of simulators that check more
        """Checks, without starting anything, that the simulator can be made, and says what is known of it.

        Args:
            config: an instance of ``Config``.
            key: its key in the configuration, for errors and reasons.
        Raises:
            ConfigError: the simulator cannot be made.
        """
        limit: int | None = getattr(config, "max_episode_steps", None)
        axes = [axis for axis in cls.axes if axis.acts_on != "pictures" or config.has_cameras]
        return TaskFacts(limit, waits=cls.can_wait, stops_after_success=cls.can_stop_after_success, axes=tuple(axes))

    @classmethod
    def tasks(cls) -> list[TaskEntry]:
        """Lists the tasks that can be named in ``id``, quickly; none for a simulator without such names.

        Raises:
            ConfigError: its packages are not installed.
        """
        return []

    @classmethod
    def goal_task(cls, config: Any) -> GoalTask | None:  # noqa: ARG003 - for simulators whose tasks have goals
        """Returns how the task judges any goal, as hindsight needs in the learner; None if that is unknown.

        Args:
            config: an instance of ``Config``.
        Raises:
            ConfigError: this task cannot be judged for other goals than its own.
        """
        return None

    @classmethod
    def load(cls) -> None:
        """Loads the libraries that ``make`` needs, in a process that is then forked for each worker.

        So it must open no device and start no thread. A simulator without it is loaded by each worker.

        Raises:
            Exception: they cannot be loaded, or not without that; the process is not forked.
        """

    @classmethod
    @abstractmethod
    def make(cls, config: Any, num_envs: int, next_seed: NextSeed) -> Simulator:
        """Makes the simulator of one worker.

        Args:
            config: an instance of ``Config``.
            num_envs: N.
            next_seed: called before each reset of a slot.
        Raises:
            ConfigError: the simulator cannot be made as configured.
        """

    @abstractmethod
    def reset(self) -> tuple[Observations, dict[int, Beginning]]:
        """Begins an episode in every environment. Returns observations [N, ...] and the beginnings."""

    @abstractmethod
    def step(self, actions: NDArray[Any], active: Bool | None = None) -> Step:
        """Takes one action per environment.

        Args:
            actions: [N, A] float32; when discrete, [N] int64, or [N, M] of several parts.
            active: [N] environments that take it; the others wait, and their rows in the answer mean nothing. None for
                all; given only to a simulator that ``can_wait``.
        """

    def state(self, n: int) -> State:
        """Returns the present state of an environment, where ``TaskFacts.states``."""
        raise NotImplementedError  # most simulators cannot

    def expert_action(self, n: int) -> Float32:
        """Returns what the simulator's own expert would do in the present state of an environment, where
        ``TaskFacts.expert``: [A], within the bounds. It changes nothing that happens next."""
        raise NotImplementedError  # most simulators have none

    def scene(self, n: int) -> Scene | None:  # noqa: ARG002 - for simulators with geometry
        """Returns the bodies of an environment in its present episode; None for a simulator without geometry.

        Neither this nor ``poses`` may change what the simulator does next: replays must not change a number.

        Returns:
            The same object as before, unless the bodies have changed.
        """
        return None

    def poses(self, n: int) -> Float32:
        """Returns the present poses [B, 7] of the bodies in ``scene``: position in m, unit quaternion w, x, y, z."""
        raise NotImplementedError  # no geometry

    @abstractmethod
    def close(self) -> None:
        """Frees the simulator's resources."""


class SingleStep(NamedTuple):
    """Answer of one environment: ``Step`` without the first axis; None where the environment does not report it.

    ``OneByOne`` checks and converts every value, so each may be as the environment gave it.
    """

    observation: Observations
    reward: Any
    terminated: Any
    truncated: Any
    success: Any
    failure: Any = None
    reward_terms: Mapping[str, Any] | None = None
    observed: Mapping[str | Metric, Any] | None = None


class SingleEnv(ABC):
    """One environment of ``OneByOne``. It never resets itself.

    Attributes:
        spec: shapes and bounds that a policy must know.
        has_success: True if steps report success.
        success_name: name of the success in its own terms, for errors.
        unusual: sentences on what its first observations showed.
    """

    spec: SpaceSpec
    has_success: bool
    success_name: str = "success"
    unusual: Sequence[str] = ()

    @abstractmethod
    def reset(self, seed: int | None) -> tuple[Observations, bool | None]:
        """Begins an episode. Returns its first observation, [D] or a tree, and True if the task is already solved."""

    def vary(self, levels: Mapping[str, float]) -> None:
        """Sets the levels of the next episode on the environment's axes that vary, before its ``reset``."""
        raise NotImplementedError  # no axes

    @abstractmethod
    def step(self, action: Any) -> SingleStep:
        """Takes one action."""

    def state(self) -> State:
        """Returns the present state, where ``TaskFacts.states``."""
        raise NotImplementedError  # most environments cannot

    def set_state(self, state: State) -> tuple[Observations, bool | None]:
        """Continues from a state, before any step. Returns what ``reset`` does.

        Whatever a state does not hold, such as sizes, follows from the seed of the last ``reset``: that of the state's
        own episode, or another one where a curriculum mixes scenes.
        """
        raise NotImplementedError  # most environments cannot

    def blended(self, state: State, share: float) -> State:
        """Returns the state some share of the way from a state to the present one, where ``TaskFacts.blends``."""
        raise NotImplementedError  # most environments cannot

    def expert_action(self) -> Float32:
        """Returns the action of the simulator's own expert in the present state, where ``TaskFacts.expert``."""
        raise NotImplementedError  # most environments have none

    def scene(self) -> Scene | None:
        """Returns the bodies, as of ``Simulator.scene``."""
        return None

    def poses(self) -> Float32:
        """Returns the poses [B, 7] of the bodies in ``scene``."""
        raise NotImplementedError  # no geometry

    @abstractmethod
    def close(self) -> None:
        """Frees the resources."""


def began_in(
    env: Any, seed: int, start: ChosenStart | None, variations: Variations = NO_VARIATIONS
) -> tuple[Any, Beginning]:
    """Begins an episode of one environment.

    Args:
        env: has the ``vary``, ``reset``, ``set_state`` and ``blended`` of a ``SingleEnv``.
        seed: next seed of its slot.
        start: start that a curriculum chose; None for that of the seed.
        variations: variations of the environment's own axes.
    Returns:
        The first observation, and the beginning.
    """
    if variations:
        env.vary(variations.draw(seed, start))
    if start is not None and start.seed is not None:
        seed = start.seed
    observation, success = first_of(env.reset(seed))
    if start is not None and start.state is not None:
        if start.blend and start.target is not None:
            env.set_state(start.target)
        state = env.blended(start.state, start.blend) if start.blend else start.state
        observation, success = first_of(env.set_state(state))
    return observation, Beginning(seed, success, start)


class Notes:
    """Sentences for the user, each told once."""

    def __init__(self) -> None:
        """Has told nothing."""
        self._about: set[str] = set()
        self._waiting: list[str] = []

    def add(self, sentence: str, about: str = "") -> None:
        """Adds a sentence, unless there was one about the same; without ``about``, unless it was added before."""
        about = about or sentence
        if about not in self._about and len(self._about) < MOST_NOTES:
            self._about.add(about)
            self._waiting.append(sentence)

    def take(self) -> tuple[str, ...]:
        """Returns what was added since the last call."""
        if not self._waiting:  # as in nearly all steps
            return ()
        waiting, self._waiting = tuple(self._waiting), []
        return waiting


class OneByOne(Simulator):
    """N separate environments in one process, stepped in turn; each is reset at its end with a seed chosen here."""

    is_checked = True
    can_wait = True
    can_stop_after_success = True
    tries_seeds: ClassVar[bool] = True
    """False for a simulator of which it is known that an episode follows from its seed; others are reset twice."""

    @classmethod
    def describe(cls, config: Any, key: str) -> TaskFacts:
        return replace(super().describe(config, key), starts=True)

    def __init__(
        self, envs: list[SingleEnv], next_seed: NextSeed, *, ignore_terminations: bool, limit: int | None = None
    ) -> None:
        """Takes over environments that share a spec.

        Args:
            envs: one for each slot.
            next_seed: called before each reset of a slot.
            ignore_terminations: True if episodes end only by their time limit.
            limit: environment steps after which every episode is truncated; None where the environments do that.
        Raises:
            ConfigError: the environments differ in their specs.
        """
        self._envs = envs
        self._ignore_terminations = ignore_terminations
        self.spec = envs[0].spec
        self.num_envs = len(envs)
        self.has_success = all(env.has_success for env in envs)
        self.reset_seconds: float = 0.0
        # Two underscores: a subclass outside this package may have attributes of these names.
        self.__slots = Slots(self.num_envs, next_seed, limit)
        self.__shape = None if self.spec.leaves is not None else (self.spec.observation_dim,)
        self.__seeding = Seeding(tries=self.tries_seeds)
        self.__notes = Notes()
        if not all(env.spec.same_as(self.spec) for env in envs):
            raise ConfigError(
                f"the environments of one worker must share their spaces, but have {[env.spec for env in envs]}."
            )

    def reset(self) -> tuple[Observations, dict[int, Beginning]]:
        observations = self.spec.observations(self.num_envs)
        beginnings: dict[int, Beginning] = {}
        for n in range(self.num_envs):
            self._begin(n, observations, beginnings)
        return observations, beginnings

    def _begin(self, n: int, observations: Observations, beginnings: dict[int, Beginning]) -> None:
        episode = self.__slots.begin(n, self.next_start)
        if episode is not None:
            began = time.perf_counter()
            observation, beginning = self.__seeding.begin(
                lambda: began_in(self._envs[n], *episode, self.variations), episode.own_seed
            )
            place(observations, n, observation, self.spec)
            beginnings[n] = beginning if self.__seeding.repeats else replace(beginning, seed=None)
            if not self.__seeding.repeats:
                self.__notes.add(self.__seeding.note)
            self.reset_seconds += time.perf_counter() - began

    def step(self, actions: NDArray[Any], active: Bool | None = None) -> Step:
        count = self.num_envs
        successors = self.spec.observations(count)
        rewards = np.zeros(count, dtype=np.float64)
        terminated, truncated, success = (np.zeros(count, dtype=bool) for _ in range(3))
        failure: NDArray[np.float64] | None = None
        reward_terms: dict[str, NDArray[np.float64]] = {}
        observed: dict[str | Metric, NDArray[np.float64]] = {}
        tells_success = False
        valid = self.__slots.stepping(active)
        for n, env in enumerate(self._envs):
            if not valid[n]:
                continue
            answer = env.step(actions[n])
            if not isinstance(answer, SingleStep):
                raise ContractError(f"a step is {shown(answer)}; a SingleStep is expected")
            # What has the right type passes quickly: this is done for every step of every environment.
            observation, reward, ends, cut, succeeded, failed, terms, metrics = answer
            if type(observation) is np.ndarray and observation.shape == self.__shape:
                successors[n] = observation
            else:
                place(successors, n, observation, self.spec)
            rewards[n] = reward if type(reward) is float else number(reward, "reward")
            ends = ends is True or (ends is not False and flag(ends, "terminated"))
            terminated[n] = ends and not self._ignore_terminations
            if succeeded is not None:
                tells_success, success[n] = True, flag(succeeded, env.success_name)
            truncated[n] = cut is True or (cut is not False and flag(cut, "truncated"))
            if failed is not None:
                failure = np.full(count, np.nan) if failure is None else failure
                failure[n] = flag(failed, "failure")
            if terms is not None:
                self.__add_numbers(n, "reward term", terms, reward_terms)
            if metrics is not None:
                self.__add_numbers(n, "metric", metrics, observed)
            for sentence in env.unusual:
                self.__notes.add(sentence)
        truncated |= self.__slots.cut_off(valid, success, self.steps_after_success)
        observations, beginnings = successors, dict[int, Beginning]()
        if ended := np.flatnonzero(terminated | truncated).tolist():
            observations = successors.copy()
            for n in ended:
                self._begin(n, observations, beginnings)
        return Step(
            observations, successors, rewards, terminated, truncated, success if self.has_success else None, valid,
            beginnings, failure, reward_terms, observed, tells_success, self.__notes.take(),
        )  # fmt: skip

    def __add_numbers(self, n: int, kind: str, numbers: Any, columns: dict[Any, NDArray[np.float64]]) -> None:
        """Adds the named numbers of one environment; what is no number is left out with a note."""
        if not isinstance(numbers, Mapping):
            self.__notes.add(without_names(kind, numbers), kind)
            return
        for key, value in numbers.items():
            if (as_number := number_or_none(value)) is not None:
                columns.setdefault(key, np.full(self.num_envs, np.nan))[n] = as_number
            elif value is not None or kind != "metric":  # a metric of None does not apply
                name = getattr(key, "name", key)
                sentence = f"The {kind} {name!r} is {shown(value)}, no number: it is left out."
                self.__notes.add(sentence, f"{kind} {name}")

    def state(self, n: int) -> State:
        return self._envs[n].state()

    def expert_action(self, n: int) -> Float32:
        return self._envs[n].expert_action()

    def scene(self, n: int) -> Scene | None:
        return self._envs[n].scene()

    def poses(self, n: int) -> Float32:
        return self._envs[n].poses()

    def close(self) -> None:
        for env in self._envs:
            env.close()
