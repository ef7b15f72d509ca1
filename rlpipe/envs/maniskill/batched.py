"""K ManiSkill environments stepped as one, with the numbers of K stock environments.

Stock environments are made and reset as ever; in between, a group takes their scenes over and steps them together.
That this changes no number is checked before use, on twins, for the very task and options that were asked for.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rlpipe.config.variations import NO_VARIATIONS, Variations
from rlpipe.envs.base import Beginning, Simulator, Step, began_in
from rlpipe.envs.maniskill.group import ScenePhysics, make_template
from rlpipe.envs.maniskill.rows import Rows, adopt, find_rows, hand_back, widen
from rlpipe.envs.maniskill.single import ManiSkillEnv
from rlpipe.envs.maniskill.state import row_of, states_of
from rlpipe.envs.shared.checks import flags
from rlpipe.envs.shared.garbage import collect_exempted
from rlpipe.envs.shared.slots import NextSeed, Slots
from rlpipe.trajectory import Bool, ChosenStart, Float32, Scene, State

CHECK_STEPS = 20
"""Steps of the twins. All are reset at the start and after half of the steps, one of them also after a third."""

STATE_CHECKS = 3
"""States of each scene that are read from its stock environment as well, before those of the group are trusted."""

_checked: dict[tuple[str, int], Rows | str] = {}
"""Result of the check by what was checked: the places of the rows, or the reason why there can be no group."""


class NotBatchableError(Exception):
    """The task cannot be stepped as one. The message is the rest of a sentence that ends in "because"."""


class SceneStep(NamedTuple):
    """Answer of ManiSkill to a step of K environments; ``info`` is that of the task."""

    observations: torch.Tensor
    rewards: torch.Tensor
    terminated: torch.Tensor
    info: dict[str, Any]


class SceneGroup:
    """Scenes of stock environments that are stepped together."""

    def __init__(self, envs: Sequence[ManiSkillEnv], rows: Rows) -> None:
        """Makes the group of each scene's stock environment, to be reset by ``reset`` before the first step."""
        self._envs = envs
        self._rows = rows
        self._task = make_template(envs[0].task)
        widen(rows, self._task, len(envs))
        self._physics = ScenePhysics([None] * len(envs), self._task.scene.px.timestep)
        self._task.scene.px = self._physics
        self._ahead: set[int] = set()  # scenes whose numbers their stock environment does not have
        self._states: dict[str, NDArray[Any]] | None = None  # of all scenes, since the last step
        self._changed: set[int] = set()  # scenes that were reset since these were read

    def reset(
        self, scene: int, seed: int, start: ChosenStart | None = None, variations: Variations = NO_VARIATIONS
    ) -> tuple[Float32, Beginning]:
        """Begins an episode as the stock environment does; see ``began_in``."""
        self.hand_back(scene)
        began = began_in(self._envs[scene], seed, start, variations)
        self.adopt(scene)
        return began

    def hand_back(self, scene: int) -> None:
        """Gives a scene's numbers to its stock environment, once its last step is taken: the next reset needs them."""
        if scene in self._ahead:
            self._ahead.remove(scene)
            hand_back(self._rows, self._task, self._envs[scene].task, scene)

    def adopt(self, scene: int) -> None:
        """Takes over the state of the scene's stock environment."""
        adopt(self._rows, self._task, self._envs[scene].task, scene)
        self._changed.add(scene)

    def state(self, scene: int) -> State:
        """Returns the present state of a scene; those of all scenes are read together."""
        if self._states is None or scene in self._changed:
            self._states, self._changed = states_of(self._task), set()
        return row_of(self._states, scene)

    def step(self, actions: NDArray[Any], active: list[int]) -> SceneStep:
        """Steps the active scenes.

        Args:
            actions: [K, A] float32; those of other scenes have no effect.
            active: numbers of the scenes. Rows of the others in the answer mean nothing.
        """
        self._states = None
        self._physics.active = active
        self._ahead.update(active)
        observations, rewards, terminated, _, info = self._task.step(actions)
        return SceneStep(observations, rewards, terminated, info)

    def close(self) -> None:
        """Drops the group; the stock environments stay."""
        self._task.close()


class BatchedManiSkill(Simulator):
    """Task instances of one process that share controllers, observations and rewards; each has its own physics."""

    can_wait = True
    can_stop_after_success = True

    def __init__(
        self, envs: Sequence[ManiSkillEnv], rows: Rows, next_seed: NextSeed, *, ignore_terminations: bool
    ) -> None:
        """Takes over stock environments of one task, one for each slot; ``rows`` are those of ``checked_rows``."""
        self._envs = envs
        self._group = SceneGroup(envs, rows)
        self._ignore_terminations = ignore_terminations
        self.spec = envs[0].spec
        self.num_envs = len(envs)
        self.has_success = envs[0].has_success
        self._slots = Slots(self.num_envs, next_seed, envs[0].limit)
        self._unchecked_states: int | None = STATE_CHECKS * self.num_envs  # None: those of the group are others
        self.reset_seconds: float = 0.0

    @classmethod
    def make(cls, config: Any, num_envs: int, next_seed: NextSeed) -> Simulator:
        raise NotImplementedError  # no plug-in of its own: ManiSkill.make chooses between this and one by one

    @torch.inference_mode()
    def reset(self) -> tuple[Float32, dict[int, Beginning]]:
        observations = np.zeros((self.num_envs, self.spec.observation_dim), dtype=np.float32)
        return observations, self._begin(range(self.num_envs), observations)

    def _begin(self, scenes: Sequence[int], observations: Float32) -> dict[int, Beginning]:
        """Begins an episode in each scene that has one left; writes the first observations."""
        beginnings = {}
        for scene in scenes:
            episode = self._slots.begin(scene, self.next_start)
            if episode is None:
                self._group.hand_back(scene)
            else:
                began = time.perf_counter()
                observations[scene], beginnings[scene] = self._group.reset(scene, *episode, self.variations)
                self.reset_seconds += time.perf_counter() - began
        return beginnings

    @torch.inference_mode()
    def step(self, actions: NDArray[Any], active: Bool | None = None) -> Step:
        valid = self._slots.stepping(active)
        if not valid.any():
            return self._idle_step()
        answer = self._group.step(np.where(valid[:, None], actions, np.float32(0)), np.flatnonzero(valid).tolist())
        successors = np.where(valid[:, None], answer.observations.numpy(), np.float32(0))
        rewards = np.where(valid, numbers(answer.rewards, self.num_envs), 0.0)
        failure, terms, measured = (answer.info.get(name) for name in ("fail", "reward_terms", "metrics"))
        success = (
            valid & flags(answer.info["success"], "success", self.num_envs)
            if self.has_success
            else np.zeros(self.num_envs, dtype=bool)
        )
        terminated = valid & flags(answer.terminated, "terminated", self.num_envs) & (not self._ignore_terminations)
        truncated = self._slots.cut_off(valid, success, self.steps_after_success)
        observations, beginnings = successors, {}
        ended = np.flatnonzero(terminated | truncated).tolist()
        if ended:
            observations = successors.copy()
            beginnings = self._begin(ended, observations)
        return Step(
            observations,
            successors,
            rewards,
            terminated,
            truncated,
            success if self.has_success else None,
            valid,
            beginnings,
            None if failure is None else self._where(valid, failure),
            {name: self._where(valid, value) for name, value in (terms or {}).items()},
            {name: self._where(valid, value) for name, value in (measured or {}).items()},
            tells_success=self.has_success,
        )

    def _where(self, valid: NDArray[np.bool_], values: Any) -> NDArray[np.float64]:
        return np.where(valid, numbers(values, self.num_envs), np.nan)

    def _idle_step(self) -> Step:
        """Returns a step that no environment took."""
        nothing = np.zeros((self.num_envs, self.spec.observation_dim), dtype=np.float32)
        no = np.zeros(self.num_envs, dtype=bool)
        return Step(nothing, nothing, np.zeros(self.num_envs), no, no, no, no, {}, tells_success=False)

    def state(self, n: int) -> State:
        if self._unchecked_states == 0:
            return self._group.state(n)
        self._group.hand_back(n)
        state = self._envs[n].state()
        if self._unchecked_states is not None:
            self._unchecked_states = self._unchecked_states - 1 if self._has_same_state(n, state) else None
        return state

    def _has_same_state(self, n: int, state: State) -> bool:
        """True if the group tells the state of a scene as its stock environment does."""
        try:
            ours = self._group.state(n)
        except Exception:  # whatever a task does that a group cannot
            return False
        return ours.keys() == state.keys() and all(np.array_equal(ours[name], state[name]) for name in state)

    def expert_action(self, n: int) -> Float32:
        self._group.hand_back(n)
        return self._envs[n].expert_action()

    def scene(self, n: int) -> Scene | None:
        return self._envs[n].scene()

    def poses(self, n: int) -> Float32:
        return self._envs[n].poses()  # the group steps the physics of its stock environments, so bodies are there

    def close(self) -> None:
        self._group.close()
        for env in self._envs:
            env.close()
        self._envs = []
        del self._group
        collect_exempted()


def numbers(values: Any, count: int) -> NDArray[np.float64]:
    """Returns values [K], [K, 1] or a single one as [K] float64."""
    return np.broadcast_to(np.asarray(values, dtype=np.float64).reshape(-1), count)


def checked_rows(make_env: Callable[[], ManiSkillEnv], num_envs: int, task: str) -> Rows:
    """Returns the places of the rows in a task, once the group has proved to have the numbers of stock environments.

    Args:
        make_env: makes a stock environment.
        num_envs: size of the group. It counts, because torch may add in another order for another size.
        task: the task with its options. It is checked once in a process.
    Raises:
        NotBatchableError: the group has other numbers.
    """
    case = task, num_envs
    if case not in _checked:
        try:
            _checked[case] = _rows_of(make_env, num_envs)
        except NotBatchableError as error:
            _checked[case] = str(error)
        except Exception as error:  # whatever a task does that a group cannot
            _checked[case] = f"the group raised {type(error).__name__}: {str(error).strip(' .') or 'no message'}"
    rows = _checked[case]
    if isinstance(rows, str):
        raise NotBatchableError(rows)
    return rows


@torch.inference_mode()
def _rows_of(make_env: Callable[[], ManiSkillEnv], num_envs: int) -> Rows:
    """Finds the rows of a task, and checks a group against stock environments."""
    version = importlib.metadata.version("mani_skill")
    if not version.startswith("3.0."):
        raise NotBatchableError(f"ManiSkill {version} is installed, and only 3.0 can be stepped as one")
    scenes = [0, num_envs - 1]
    envs = [make_env() for _ in range(2 * len(scenes))]
    group: SceneGroup | None = None
    try:
        rows = _find_rows(envs[0], envs[-1])
        hosts = dict(zip(scenes, envs, strict=False))
        group = SceneGroup([hosts.get(scene, envs[0]) for scene in range(num_envs)], rows)
        check_twins(group, num_envs, dict(zip(scenes, reversed(envs), strict=False)))
    finally:
        for env in envs:
            env.close()
        if group is not None:
            group.close()
    return rows


def _find_rows(host: ManiSkillEnv, twin: ManiSkillEnv) -> Rows:
    """Finds the rows of a task. Steps it first, because some values exist only after a step; its twin remains equal."""
    group = make_template(host.task)
    action = np.zeros(host.spec.action_dim, dtype=np.float32)
    group.step(np.stack([action] * group.num_envs))
    host.step(action)
    twin.step(action)
    rows = find_rows(group, host.task)
    group.close()
    return rows


def check_twins(group: SceneGroup, num_envs: int, twins: Mapping[int, ManiSkillEnv]) -> None:
    """Steps a group and stock environments alike, and compares every number.

    Args:
        group: K scenes, of which only those with a twin move.
        num_envs: K.
        twins: stock environments by scene.
    Raises:
        NotBatchableError: a number differs.
    """
    generator = np.random.default_rng(0)
    spec = twins[0].spec
    low, high = (spec.clip(np.full(spec.action_dim, bound, dtype=np.float32)) for bound in (-10, 10))
    resets = {0: list(twins), CHECK_STEPS // 3: list(twins)[:1], CHECK_STEPS // 2: list(twins)}
    for step in range(CHECK_STEPS):
        for scene in resets.get(step, []):
            seed = 1000 * step + scene
            ours, theirs = group.reset(scene, seed), began_in(twins[scene], seed, None)
            if not (np.array_equal(ours[0], theirs[0], equal_nan=True) and ours[1] == theirs[1]):
                raise NotBatchableError(f"a reset after {step} steps differs from a stock environment's")
        if step == 0:
            for scene in set(range(num_envs)) - twins.keys():
                group.adopt(scene)
        actions = generator.uniform(low, high, (num_envs, spec.action_dim)).astype(np.float32)
        answer = group.step(actions, list(twins))
        for scene, twin in twins.items():
            stock = SceneStep(*(part for place, part in enumerate(twin.task.step(actions[scene])) if place != 3))
            if difference := next(differences(answer, stock, scene), None):
                raise NotBatchableError(f"{difference} differs from a stock environment's in step {step + 1}")


def differences(group: SceneStep, stock: SceneStep, scene: int) -> Iterator[str]:
    """Yields the name of everything in which a scene of a group differs from a stock environment."""
    pairs: list[tuple[str, Any, Any]] = [
        ("an observation", group.observations, stock.observations),
        ("a reward", group.rewards, stock.rewards),
        ("the end of an episode", group.terminated, stock.terminated),
    ]
    pairs += [(f"info[{name!r}]", group.info.get(name), value) for name, value in stock.info.items()]
    for name, ours, theirs in pairs:
        if not same(ours, theirs, scene):
            yield name


def same(ours: Any, theirs: Any, scene: int) -> bool:
    """True if a row equals a stock environment's value bit for bit. Other things than numbers are not compared."""
    if isinstance(theirs, Mapping):
        return isinstance(ours, Mapping) and all(same(ours.get(name), theirs[name], scene) for name in theirs)
    if isinstance(theirs, torch.Tensor):
        if not isinstance(ours, torch.Tensor) or ours.dtype != theirs.dtype:
            return False
        if not ours.ndim:
            return True  # a statistic over all scenes, which no step returns
        row, stock = ours[scene].reshape(-1).numpy(), theirs.reshape(-1).numpy()
        return np.array_equal(row, stock, equal_nan=row.dtype.kind == "f")
    return ours == theirs if isinstance(theirs, int | float) else True
