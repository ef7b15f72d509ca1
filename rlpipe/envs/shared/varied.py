"""Variations of every simulator: what its slots are told to do, and what they observe, differs between episodes.

``VariedSimulator`` stands around a simulator some of whose axes vary, and there is none otherwise. Everything that it
adds to an episode follows from the seed of its slot, the start that a curriculum chose and the number of the step, so
another process that repeats the actions of an episode arrives at the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlpipe.config.variations import CHOICE, LEAF, Axis, Levels, Variations, check_effects, is_picture, seed_on
from rlpipe.envs.base import Beginning, Simulator, Step
from rlpipe.envs.shared.axes import (
    ACTION_HOLD,
    ACTION_LATENCY,
    ACTION_NOISE,
    ACTION_SCALE,
    BRIGHTNESS,
    CAMERA_SHIFT,
    CONTRAST,
    EVERYWHERE,
    OBSERVATION_DROPOUT,
    OBSERVATION_LATENCY,
    OBSERVATION_NOISE,
    OF_CAMERAS,
)
from rlpipe.envs.shared.checks import check_beginnings, check_observations, check_step
from rlpipe.envs.shared.slots import NextSeed, NextStart
from rlpipe.errors import ConfigError
from rlpipe.trajectory import Bool, Float32, LeafSpec, Observations, Scene, SpaceSpec, State, Tree
from rlpipe.trajectory.tree import VECTOR, named_leaves

BLOCK = 32
"""Steps whose noise is drawn at once."""
_NOISE = 1
"""Last part of the seed of an axis' noise; that of its level has none."""
_STEPS = np.int64

Draw = Callable[[np.random.Generator, tuple[int, int]], NDArray[Any]]


_HERE = frozenset(axis.name for axis in (*EVERYWHERE, *OF_CAMERAS))
"""Axes that act here; all others are the simulator's own."""


class SlotSeeds:
    """Seeds of the episodes that N slots are running, as they were asked for."""

    def __init__(self, next_seed: NextSeed) -> None:
        """Asks ``next_seed``."""
        self._next_seed = next_seed
        self._seeds: dict[int, int] = {}

    def __call__(self, n: int) -> int | None:
        """Returns the seed of a slot's next episode, as of ``NextSeed``."""
        seed = self._next_seed(n)
        if seed is not None:
            self._seeds[n] = seed
        return seed

    def __getitem__(self, n: int) -> int:
        """Returns the seed of a slot's present episode."""
        return self._seeds[n]


class _Noise:
    """Random numbers of each slot's episode: those of a step follow from the seed, the axis and the step's number."""

    def __init__(self, axis: str, num_envs: int, width: int, draw: Draw) -> None:
        """Draws ``width`` numbers for each step of N slots."""
        self._axis, self._draw, self._shape = axis, draw, (BLOCK, width)
        self._generators = [np.random.default_rng(0)] * num_envs
        self._blocks = np.zeros((num_envs, BLOCK, width), dtype=np.float32)
        self._numbers = np.zeros(num_envs, dtype=_STEPS)  # of the block that each slot has
        self._slots = np.arange(num_envs)

    def begin(self, n: int, seed: int) -> None:
        """Begins an episode."""
        self._generators[n] = np.random.default_rng(seed_on(seed, self._axis, _NOISE))
        self._numbers[n] = -1

    def at(self, steps: NDArray[_STEPS]) -> Float32:
        """Returns the numbers [N, width] of a step of each slot, which is never before one that was asked for."""
        numbers = steps // BLOCK
        for n in np.flatnonzero(self._numbers != numbers).tolist():
            while self._numbers[n] < numbers[n]:
                self._blocks[n] = self._draw(self._generators[n], self._shape)
                self._numbers[n] += 1
        rows: Float32 = self._blocks[self._slots, steps % BLOCK]
        return rows


def _normal(generator: np.random.Generator, shape: tuple[int, int]) -> NDArray[Any]:
    return generator.standard_normal(shape, dtype=np.float32)


def _uniform(generator: np.random.Generator, shape: tuple[int, int]) -> NDArray[Any]:
    return generator.random(shape, dtype=np.float32)


class _Levels:
    """Levels of the episode of each slot, by axis."""

    def __init__(self, variations: Variations, num_envs: int) -> None:
        """Every slot is at a legal level until its first episode."""
        self.variations = variations
        self._levels = {name: np.full(num_envs, levels.at(0.0)) for name, levels in variations.levels.items()}

    def has(self, *axes: Axis) -> bool:
        """True if one of the axes varies."""
        return any(axis.name in self._levels for axis in axes)

    def begin(self, n: int, levels: Mapping[str, float]) -> None:
        """Begins an episode."""
        for name, values in self._levels.items():
            values[n] = levels[name]

    def of(self, axis: Axis, num_envs: int) -> NDArray[np.float64]:
        """Returns the levels [N] on an axis; the neutral one where it does not vary."""
        return self._levels.get(axis.name, np.full(num_envs, axis.neutral))

    def most(self, axis: Axis) -> int:
        """Returns the largest level on an axis in steps."""
        return int(self.variations.most(axis.name, axis.neutral))


class _Commands:
    """Actions on their way to the simulator: held, late, scaled and noisy, in this order, within their bounds."""

    def __init__(self, spec: SpaceSpec, num_envs: int, levels: _Levels) -> None:
        """No command has been given."""
        self._spec, self._num_envs, self._levels = spec, num_envs, levels
        self._slots = np.arange(num_envs)
        self._depth = levels.most(ACTION_LATENCY) + levels.most(ACTION_HOLD)
        self._past = spec.actions(num_envs, self._depth)
        self._noise: _Noise | None = None
        if levels.has(ACTION_NOISE):
            self._noise = _Noise(ACTION_NOISE.name, num_envs, spec.action_dim, _normal)
            assert spec.action_low is not None
            assert spec.action_high is not None
            half = 0.5 * spec.action_high - 0.5 * spec.action_low
            self._unit: Float32 = np.where(np.isfinite(half), half, 1.0).astype(np.float32)

    def begin(self, n: int, seed: int) -> None:
        """Begins an episode."""
        if self._noise is not None:
            self._noise.begin(n, seed)

    def at(self, steps: NDArray[_STEPS], actions: NDArray[Any]) -> NDArray[Any]:
        """Returns what arrives at the simulator.

        Args:
            steps: [N] steps that each slot's episode has taken.
            actions: [N, A], or [N] of discrete ones, of a policy.
        """
        levels, count = self._levels, self._num_envs
        if levels.has(ACTION_LATENCY, ACTION_HOLD):
            self._past[self._slots, steps % self._depth] = actions
            steps_of = np.maximum(steps - levels.of(ACTION_LATENCY, count).astype(_STEPS), 0)
            steps_of -= steps_of % levels.of(ACTION_HOLD, count).astype(_STEPS)
            actions = self._past[self._slots, steps_of % self._depth]
        if not levels.has(ACTION_SCALE, ACTION_NOISE):
            return actions
        if levels.has(ACTION_SCALE):
            actions = actions * levels.of(ACTION_SCALE, count).astype(np.float32)[:, None]
        if self._noise is not None:
            scale = levels.of(ACTION_NOISE, count).astype(np.float32)[:, None]
            noisy = actions + scale * self._unit * self._noise.at(steps)
            actions = np.where(scale == 0, actions, noisy)  # a sum would turn -0.0 into 0.0
        return self._spec.clip(actions)


class _Senses:
    """Observations on their way from the simulator: noisy, late and dropped, in this order."""

    def __init__(self, spec: SpaceSpec, num_envs: int, levels: _Levels) -> None:
        """Nothing has been observed."""
        self._num_envs, self._levels = num_envs, levels
        self._slots = np.arange(num_envs)
        leaves = spec.leaves or {VECTOR: LeafSpec((spec.observation_dim,))}
        fractions = {name: leaf.size for name, leaf in leaves.items() if leaf.dtype == "float32"}
        self._pictures = [name for name, leaf in leaves.items() if is_picture(leaf)]
        self._noise: dict[str, _Noise] = {}
        if levels.has(OBSERVATION_NOISE):
            self._noise = {
                name: _Noise(f"{OBSERVATION_NOISE.name}/{name}", num_envs, size, _normal)
                for name, size in fractions.items()
            }
        self._depth = levels.most(OBSERVATION_LATENCY) + 1
        self._past = spec.observations(num_envs, self._depth) if levels.has(OBSERVATION_LATENCY) else None
        self._last: Observations = None
        self._drops: _Noise | None = None
        if levels.has(OBSERVATION_DROPOUT):
            self._last = spec.observations(num_envs)
            self._drops = _Noise(OBSERVATION_DROPOUT.name, num_envs, 1, _uniform)
        self._shifts = np.zeros((num_envs, 2))

    def begin(self, n: int, seed: int) -> None:
        """Begins an episode."""
        for noise in (*self._noise.values(), *([] if self._drops is None else [self._drops])):
            noise.begin(n, seed)
        if self._levels.has(CAMERA_SHIFT):
            angle = 2 * np.pi * np.random.default_rng(seed_on(seed, CAMERA_SHIFT.name, _NOISE)).random()
            self._shifts[n] = np.cos(angle), np.sin(angle)

    @property
    def change_nothing(self) -> bool:
        """True if observations pass as they are."""
        return not self._levels.has(OBSERVATION_NOISE, OBSERVATION_LATENCY, OBSERVATION_DROPOUT, *OF_CAMERAS)

    def at(self, steps: NDArray[_STEPS], rows: Bool, observations: Observations) -> Observations:
        """Returns what is observed of observations that are new in some rows; the others mean nothing.

        Args:
            steps: [N] steps that each slot's episode has taken.
            rows: [N] slots that have taken a step, or begun an episode.
            observations: [N, ...] of the simulator.
        """
        observed = observations.copy()
        self._measure(steps, observed)
        count = self._num_envs
        if self._past is not None:
            slots = np.flatnonzero(rows)
            self._past[slots, steps[slots] % self._depth] = observed[slots]
            latency = self._levels.of(OBSERVATION_LATENCY, count).astype(_STEPS)
            observed = self._past[self._slots, np.maximum(steps - latency, 0) % self._depth]
        if self._drops is not None:
            dropped = (self._drops.at(steps)[:, 0] < self._levels.of(OBSERVATION_DROPOUT, count)) & (steps > 0)
            observed[dropped] = self._last[dropped]
            self._last[rows] = observed[rows]
        return observed

    def _measure(self, steps: NDArray[_STEPS], observed: Observations) -> None:
        """Changes observations into what sensors and cameras would give."""
        leaves = named_leaves(observed)
        scale = self._levels.of(OBSERVATION_NOISE, self._num_envs).astype(np.float32)
        noisy = np.flatnonzero(scale)
        for name, noise in self._noise.items():
            numbers = noise.at(steps)[noisy]
            scaled = numbers * scale[noisy, None]
            leaves[name][noisy] += scaled.reshape(len(noisy), *leaves[name].shape[1:])
        if self._levels.has(*OF_CAMERAS):
            for name in self._pictures:
                self._see(leaves[name])

    def _see(self, pictures: NDArray[np.uint8]) -> None:
        """Changes pictures [N, height, width, channels] into what the cameras of each slot see."""
        count = self._num_envs
        columns = (self._levels.of(axis, count).tolist() for axis in (BRIGHTNESS, CONTRAST, CAMERA_SHIFT))
        for n, (brightness, contrast, shift) in enumerate(zip(*columns, strict=True)):
            if brightness != BRIGHTNESS.neutral or contrast != CONTRAST.neutral:
                colours = (np.arange(256) - 127.5) * contrast + 127.5 + 255.0 * brightness
                pictures[n] = np.clip(np.rint(colours), 0, 255).astype(np.uint8)[pictures[n]]
            if shift:
                height, width = pictures.shape[1:3]
                down, right = np.rint(shift * width * self._shifts[n]).astype(int).tolist()
                rows, columns_of = np.arange(height) - down, np.arange(width) - right
                pictures[n] = pictures[n][np.clip(rows, 0, height - 1)][:, np.clip(columns_of, 0, width - 1)]


class VariedSimulator(Simulator):
    """A simulator of which some axes vary between episodes, or whose levels are observed."""

    is_checked = True

    def __init__(self, simulator: Simulator, config: Any, axes: Sequence[Axis], seeds: SlotSeeds, key: str) -> None:
        """Takes over a simulator that has not been reset.

        Args:
            simulator: made with ``seeds`` as its ``next_seed``.
            config: its ``SimulatorConfig``.
            axes: axes that its tasks may have.
            seeds: seeds of the slots.
            key: key of the section, for errors.
        Raises:
            ConfigError: an axis has nothing to act on in these spaces.
        """
        self._simulator, self._seeds, self._key, self._axes = simulator, seeds, key, axes
        by_name = {axis.name: axis for axis in axes}
        self._observed_axes = [by_name[name] for name in config.observe_variations]
        self._neutral = {axis.name: axis.neutral for axis in axes}
        self._own: dict[str, Levels] = {}  # of the simulator's own axes, also of those that varied before
        for name in ("num_envs", "has_success", "notes", "metrics", "can_wait", "can_stop_after_success"):
            setattr(self, name, getattr(simulator, name))
        self.spec = simulator.spec
        if self._observed_axes:
            try:
                self.spec = simulator.spec.with_leaf(LEAF, LeafSpec((len(self._observed_axes),)))
            except ValueError as error:
                raise ConfigError(f"{key}.observe_variations adds a leaf {LEAF}, but {error} Leave it out.") from error
        self._steps = np.zeros(self.num_envs, dtype=_STEPS)  # of the present episode of each slot
        self._levels_observed = np.tile(
            np.array([axis.neutral for axis in self._observed_axes], dtype=np.float32), (self.num_envs, 1)
        )
        self.vary(Variations.of(config, key))

    def vary(self, variations: Variations) -> None:
        """Varies these axes from the next ``reset`` on, and no others."""
        spec = self._simulator.spec
        check_effects(variations, self._axes, spec, self._key)
        self._variations = variations
        self._levels = _Levels(variations, self.num_envs)
        self._commands = _Commands(spec, self.num_envs, self._levels)
        self._senses = _Senses(spec, self.num_envs, self._levels)
        elsewhere = {name: levels for name, levels in variations.levels.items() if name not in _HERE}
        self._own = {name: Levels(CHOICE, (self._neutral[name],)) for name in self._own} | elsewhere
        self._simulator.vary(replace(variations, levels=self._own))

    @classmethod
    def make(cls, config: Any, num_envs: int, next_seed: NextSeed) -> Simulator:
        raise NotImplementedError  # no plug-in: ``make_simulator`` puts it around others

    @property
    def next_start(self) -> NextStart | None:
        """As of ``Simulator``."""
        return self._simulator.next_start

    @next_start.setter
    def next_start(self, next_start: NextStart | None) -> None:
        self._simulator.next_start = next_start

    @property
    def steps_after_success(self) -> int | None:
        """As of ``Simulator``."""
        return self._simulator.steps_after_success

    @steps_after_success.setter
    def steps_after_success(self, steps: int | None) -> None:
        self._simulator.steps_after_success = steps

    @property
    def reset_seconds(self) -> float | None:  # type: ignore[override] # known to the simulator
        """As of ``Simulator``."""
        return self._simulator.reset_seconds

    def reset(self) -> tuple[Observations, dict[int, Beginning]]:
        answer = self._simulator.reset()
        if not self._simulator.is_checked:
            check_beginnings(answer)
            check_observations(answer[0], self._simulator.spec, self.num_envs)
        observations, beginnings = answer[0], self._begin(answer[1])
        return self._with_levels(self._sensed(self._rows(beginnings), observations)), beginnings

    def _begin(self, beginnings: Mapping[int, Beginning]) -> dict[int, Beginning]:
        """Begins episodes. Returns their beginnings with their levels."""
        varied = {}
        for n, beginning in beginnings.items():
            seed = self._seeds[n]
            levels = self._variations.draw(seed, beginning.chosen)
            self._steps[n] = 0
            self._levels.begin(n, levels)
            self._commands.begin(n, seed)
            self._senses.begin(n, seed)
            self._levels_observed[n] = [levels.get(axis.name, axis.neutral) for axis in self._observed_axes]
            varied[n] = replace(beginning, variations=levels)
        return varied

    def step(self, actions: NDArray[Any], active: Bool | None = None) -> Step:
        commands = self._commands.at(self._steps, actions)
        step = self._simulator.step(commands) if active is None else self._simulator.step(commands, active)
        if not self._simulator.is_checked:
            check_step(step, self._simulator.spec, self.num_envs, has_success=self.has_success)
        self._steps += step.valid
        successors = self._sensed(step.valid, step.successors)
        with_levels = self._with_levels(successors)
        if not step.beginnings:
            return replace(step, observations=with_levels, successors=with_levels)
        beginnings, observations = self._begin(step.beginnings), successors.copy()
        rows = self._rows(beginnings)
        observations[rows] = self._sensed(rows, step.observations)[rows]
        return replace(
            step, observations=self._with_levels(observations), successors=with_levels, beginnings=beginnings
        )

    def _rows(self, beginnings: Mapping[int, Beginning]) -> Bool:
        """[N] True for slots that begin an episode."""
        rows = np.zeros(self.num_envs, dtype=bool)
        rows[list(beginnings)] = True
        return rows

    def _sensed(self, rows: Bool, observations: Observations) -> Observations:
        """Returns what is observed of observations that are new in some rows."""
        return observations if self._senses.change_nothing else self._senses.at(self._steps, rows, observations)

    def _with_levels(self, observations: Observations) -> Observations:
        """Adds the leaf of the levels, where they are observed."""
        if not self._observed_axes:
            return observations
        return Tree({**named_leaves(observations), LEAF: self._levels_observed.copy()})

    def state(self, n: int) -> State:
        return self._simulator.state(n)

    def expert_action(self, n: int) -> Float32:
        return self._simulator.expert_action(n)

    def scene(self, n: int) -> Scene | None:
        return self._simulator.scene(n)

    def poses(self, n: int) -> Float32:
        return self._simulator.poses(n)

    def close(self) -> None:
        self._simulator.close()
