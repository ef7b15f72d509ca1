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
    CAMERA_TILT,
    CONTRAST,
    EVERYWHERE,
    OBSERVATION_DROPOUT,
    OBSERVATION_LATENCY,
    OBSERVATION_NOISE,
    OF_CAMERAS,
    OF_OBSERVATIONS,
)
from rlpipe.envs.shared.checks import check_beginnings, check_observations, check_step
from rlpipe.envs.shared.slots import NextSeed, NextStart
from rlpipe.errors import ConfigError
from rlpipe.functional.rotations import moved_pixels
from rlpipe.trajectory import Bool, Float32, LeafSpec, Observations, Scene, SpaceSpec, State, Tree
from rlpipe.trajectory.tree import VECTOR, named_leaves

BLOCK = 32
"""Steps whose noise is drawn at once."""
_NOISE = 1
"""Last part of the seed of an axis' noise; that of its level has none."""
_STEPS = np.int64

Draw = Callable[[np.random.Generator, tuple[int, int]], NDArray[Any]]


_HERE = (*EVERYWHERE, *OF_CAMERAS)
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
        self._columns: dict[str, NDArray[Any]] = {
            axis.name: np.full(num_envs, axis.neutral, _STEPS if axis.in_steps else np.float64) for axis in _HERE
        }
        self._varying = [axis.name for axis in _HERE if axis.name in variations.levels]
        for name in self._varying:
            self._columns[name][:] = variations.levels[name].at(0.0)

    def has(self, *axes: Axis) -> bool:
        """True if one of the axes varies."""
        return any(axis.name in self._varying for axis in axes)

    def begin(self, n: int, levels: Mapping[str, float]) -> None:
        """Begins an episode."""
        for name in self._varying:
            self._columns[name][n] = levels[name]

    def of(self, axis: Axis) -> NDArray[Any]:
        """Returns the levels [N] on an axis, which change as episodes begin; the neutral one where it does not vary."""
        return self._columns[axis.name]

    def most(self, axis: Axis) -> int:
        """Returns the largest level on an axis in steps."""
        return int(self.variations.most(axis.name, axis.neutral))


class _Commands:
    """Actions on their way to the simulator: held, late, scaled and noisy, in this order, within their bounds."""

    def __init__(self, spec: SpaceSpec, num_envs: int, levels: _Levels) -> None:
        """No command has been given."""
        self._spec = spec
        self._slots = np.arange(num_envs)
        self._latency, self._hold = levels.of(ACTION_LATENCY), levels.of(ACTION_HOLD)
        self._depth = levels.most(ACTION_LATENCY) + levels.most(ACTION_HOLD)
        self._past = spec.actions(num_envs, self._depth) if levels.has(ACTION_LATENCY, ACTION_HOLD) else None
        self._scale = levels.of(ACTION_SCALE) if levels.has(ACTION_SCALE) else None
        self._deviation = levels.of(ACTION_NOISE)
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
        if self._past is not None:
            self._past[self._slots, steps % self._depth] = actions
            steps_of = np.maximum(steps - self._latency, 0)
            steps_of -= steps_of % self._hold
            actions = self._past[self._slots, steps_of % self._depth]
        if self._scale is None and self._noise is None:
            return actions
        if self._scale is not None:
            actions = actions * self._scale.astype(np.float32)[:, None]
        if self._noise is not None:
            deviation = self._deviation.astype(np.float32)[:, None]
            noisy = actions + deviation * self._unit * self._noise.at(steps)
            actions = np.where(deviation == 0, actions, noisy)  # a sum would turn -0.0 into 0.0
        return self._spec.clip(actions)


class _Senses:
    """Observations on their way from the simulator: noisy, late and dropped, in this order."""

    def __init__(self, spec: SpaceSpec, num_envs: int, levels: _Levels) -> None:
        """Nothing has been observed."""
        self._slots = np.arange(num_envs)
        leaves = spec.leaves or {VECTOR: LeafSpec((spec.observation_dim,))}
        self._deviation = levels.of(OBSERVATION_NOISE)
        self._noise: dict[str, _Noise] = {}
        if levels.has(OBSERVATION_NOISE):
            self._noise = {
                name: _Noise(f"{OBSERVATION_NOISE.name}/{name}", num_envs, leaf.size, _normal)
                for name, leaf in leaves.items()
                if leaf.dtype == "float32"
            }
        self._cameras = _Cameras(num_envs, levels) if levels.has(*OF_CAMERAS) else None
        self._pictures = [name for name, leaf in leaves.items() if is_picture(leaf)]
        self._latency = levels.of(OBSERVATION_LATENCY)
        self._depth = levels.most(OBSERVATION_LATENCY) + 1
        self._past = spec.observations(num_envs, self._depth) if levels.has(OBSERVATION_LATENCY) else None
        self._last: Observations = None
        self._drops: _Noise | None = None
        self._share_dropped = levels.of(OBSERVATION_DROPOUT)
        if levels.has(OBSERVATION_DROPOUT):
            self._last = spec.observations(num_envs)
            self._drops = _Noise(OBSERVATION_DROPOUT.name, num_envs, 1, _uniform)
        self.change_nothing = not levels.has(*OF_OBSERVATIONS, *OF_CAMERAS)

    def begin(self, n: int, seed: int) -> None:
        """Begins an episode."""
        for noise in (*self._noise.values(), *([] if self._drops is None else [self._drops])):
            noise.begin(n, seed)
        if self._cameras is not None:
            self._cameras.begin(n, seed)

    def at(self, steps: NDArray[_STEPS], rows: Bool, observations: Observations) -> Observations:
        """Returns what is observed of observations that are new in some rows; the others mean nothing.

        Args:
            steps: [N] steps that each slot's episode has taken.
            rows: [N] slots that have taken a step, or begun an episode.
            observations: [N, ...] of the simulator.
        """
        observed = observations.copy()
        self._measure(steps, observed)
        if self._past is not None:
            slots = np.flatnonzero(rows)
            self._past[slots, steps[slots] % self._depth] = observed[slots]
            observed = self._past[self._slots, np.maximum(steps - self._latency, 0) % self._depth]
        if self._drops is not None:
            dropped = (self._drops.at(steps)[:, 0] < self._share_dropped) & (steps > 0)
            observed[dropped] = self._last[dropped]
            self._last[rows] = observed[rows]
        return observed

    def _measure(self, steps: NDArray[_STEPS], observed: Observations) -> None:
        """Changes observations into what sensors and cameras would give."""
        leaves = named_leaves(observed)
        if self._noise:
            scale = self._deviation.astype(np.float32)
            for name, noise in self._noise.items():
                leaf, scaled = leaves[name], noise.at(steps) * scale[:, None]
                is_noisy = (scale != 0).reshape(-1, *[1] * (leaf.ndim - 1))  # elsewhere a sum would turn -0.0 into 0.0
                np.add(leaf, scaled.reshape(leaf.shape), out=leaf, where=is_noisy)
        if self._cameras is not None:
            for name in self._pictures:
                self._cameras.see(leaves[name])


class _Cameras:
    """Pictures of each slot's cameras: turned, shifted, and in other colours."""

    def __init__(self, num_envs: int, levels: _Levels) -> None:
        """Every camera looks to the right."""
        self._brightness, self._contrast = levels.of(BRIGHTNESS), levels.of(CONTRAST)
        self._shift, self._tilt = levels.of(CAMERA_SHIFT), levels.of(CAMERA_TILT)
        self._ways = np.zeros((num_envs, 2))  # of the shift, down and to the right
        self._turns = np.zeros(num_envs)  # 1 to turn clockwise, -1 to turn the other way
        self._sources: list[dict[tuple[int, int], NDArray[np.intp]]] = [{} for _ in range(num_envs)]

    def begin(self, n: int, seed: int) -> None:
        """Begins an episode."""
        angle, side = (
            np.random.default_rng(seed_on(seed, axis.name, _NOISE)).random() for axis in (CAMERA_SHIFT, CAMERA_TILT)
        )
        self._ways[n] = np.cos(2 * np.pi * angle), np.sin(2 * np.pi * angle)
        self._turns[n] = 1 if side < 0.5 else -1
        self._sources[n] = {}

    def see(self, pictures: NDArray[np.uint8]) -> None:
        """Changes pictures [N, height, width, channels] into what the cameras see."""
        for n, picture in enumerate(pictures):
            if self._brightness[n] != BRIGHTNESS.neutral or self._contrast[n] != CONTRAST.neutral:
                colours = (np.arange(256) - 127.5) * self._contrast[n] + 127.5 + 255.0 * self._brightness[n]
                pictures[n] = np.clip(np.rint(colours), 0, 255).astype(np.uint8)[picture]
            if self._shift[n] or self._tilt[n]:
                size = picture.shape[:2]
                if size not in self._sources[n]:
                    self._sources[n][size] = self._source(n, *size)
                pictures[n] = picture.reshape(-1, picture.shape[-1])[self._sources[n][size]]

    def _source(self, n: int, height: int, width: int) -> NDArray[np.intp]:
        """Returns the pixel [height, width] of a picture that each pixel of a slot's camera shows."""
        down, right = np.rint(self._shift[n] * width * self._ways[n])
        return moved_pixels(height, width, down, right, np.deg2rad(self._tilt[n]) * self._turns[n])


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
        here = {axis.name for axis in _HERE}
        elsewhere = {name: levels for name, levels in variations.levels.items() if name not in here}
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
