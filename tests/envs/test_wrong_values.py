"""Simulators that return wrong values: each is a right number, or one sentence that names the field."""

from __future__ import annotations

import functools
import math
import pickle
import random
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from hypothesis import given
from hypothesis import strategies as st

import rlpipe
from rlpipe.analysis import comparison
from rlpipe.analysis.evaluated_run import EvaluatedRun
from rlpipe.collection.actions import PolicyActions
from rlpipe.collection.collector import Collector
from rlpipe.collection.episodes import MOST_TERMS, EpisodeTracker
from rlpipe.collection.evaluator import Evaluator
from rlpipe.envs.base import OneByOne, SingleStep
from rlpipe.envs.gymnasium import Gymnasium
from rlpipe.envs.gymnasium.options import GymnasiumConfig
from rlpipe.envs.gymnasium.single import GymnasiumEnv
from rlpipe.envs.gymnasium.vector import DRAWS_TOGETHER, GymnasiumVector
from rlpipe.envs.scripted import Scripted
from rlpipe.envs.shared.checks import flag, number
from rlpipe.envs.shared.seeding import Seeding, seed_global_generators
from rlpipe.envs.shared.spaces import Spaces
from rlpipe.errors import ConfigError, ContractError, RunError, SimulatorError
from rlpipe.policies.base import build_policy
from rlpipe.policies.mlp import MLPConfig, MLPPolicy
from rlpipe.trajectory import ChosenStart, Episode
from tests.helpers.fuzz import fuzz
from tests.helpers.odd_env import ADAPTERS, PLACES, STEPS, OddEnv, OddPlugin, OddSimulator, OddSingle, OddVector, seeds
from tests.helpers.runs import lines, scripted

ACTIONS = Box(-1.0, 1.0, (1,))
adapters = pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in ADAPTERS.items()])


def collected(simulator, horizon: int = 2 * STEPS):
    """Two episodes in each environment, collected as a rollout worker does."""
    policy = MLPPolicy(MLPConfig("mlp", hidden_sizes=[4]), simulator.spec) if simulator.spec.leaves is None else _Idle()
    return Collector(simulator, policy, horizon, worker=0, first_slot=0, noise_seed=[0]).collect(0)


class _Idle:
    """Policy that does nothing, whatever it observes."""

    def noise(self, generator, steps):
        return np.zeros((steps, 1), dtype=np.float32)

    def decide(self, observations, noise, memory):
        count = len(noise)
        return _Decided(torch.zeros(count, 1), torch.zeros(count), None)


class _Decided:
    def __init__(self, actions, log_probs, memories):
        self.actions, self.log_probs, self.memories = actions, log_probs, memories


# --- rewards and ends


@pytest.mark.parametrize(
    "value", [2, 2.0, np.float32(2), np.array(2), np.array([2.0]), np.array([[2]]), [2.0], torch.tensor([2.0])]
)
def test_an_array_of_one_number_is_that_number(value):
    assert number(value, "reward") == 2.0


@pytest.mark.parametrize("value", [None, "2", [], [1, 2], np.array([1.0, 2.0]), {}, b"2", 10**400, 1j, object()])
def test_what_is_not_one_number_is_an_error_that_names_the_field_and_the_value(value):
    with pytest.raises(ContractError, match=r"the reward is .*; one number is expected"):
        number(value, "reward")


@pytest.mark.parametrize(("value", "held"), [(True, True), (np.False_, False), (1, True), (0.0, False), ([1], True)])
def test_true_false_0_and_1_are_truth_values(value, held):
    assert flag(value, "success") is held


@pytest.mark.parametrize("value", [float("nan"), "False", "", 0.5, 2, -1, None, [], [True, False], object()])
def test_nothing_else_is_a_truth_value(value):
    with pytest.raises(ContractError, match=r"success is .*; true, false, 0 or 1 is expected"):
        flag(value, "success")


@adapters
@pytest.mark.parametrize("place", ["reward", "terminated", "truncated", "success"])
def test_every_adapter_names_the_field_that_is_wrong(make, place):
    with pytest.raises(ContractError, match=f"{place}|terminated|is_success") as told:
        collected(make({place: "no"}))
    assert "'no'" in str(told.value)


@adapters
def test_what_the_simulator_raises_is_told_as_raised_by_it(make):
    def fail(_):
        raise ZeroDivisionError("by itself")

    with pytest.raises(SimulatorError, match="raised ZeroDivisionError: by itself while taking step 1"):
        collected(make({"step": fail}))


# --- observations


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.zeros(1), r"the observation has shape \(1,\), but observation_space declares \(2,\)"),
        (np.zeros((1, 2)), r"shape \(1, 2\), but observation_space declares \(2,\)"),
        (0.5, r"shape \(\), but observation_space declares \(2,\)"),
        (None, "the observation is None; an array of numbers"),
        ([0.0, None], r"the observation is \[0.0, None\]"),
        (["a", "b"], "the observation is"),
        ([[1.0], [1.0, 2.0]], "the observation is"),
    ],
)
@adapters
def test_an_observation_is_never_spread_or_read_from_something_else(make, value, told):
    if "tree" in str(make):
        return
    simulator = make({"observation": value})
    if simulator.spec.leaves is not None:
        told = "the observation"
    batched = not isinstance(simulator, OneByOne)
    with pytest.raises(ContractError, match="the observation" if batched else told):
        collected(simulator)


TREE = Dict(
    {"arm": Dict({"q": Box(-1, 1, (2,))}), "rgb": Box(0, 255, (2, 2, 3), np.uint8), "tool": Discrete(3, start=5)}
)
RIGHT = {"arm": {"q": np.zeros(2)}, "rgb": np.zeros((2, 2, 3), np.uint8), "tool": 6}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"arm": {}}, "the observation lacks 'arm/q', which observation_space declares"),
        ({"arm": 3.0}, "the observation lacks 'arm/q', which"),
        (
            {"arm": {"q": np.zeros(3)}},
            r"the observation 'arm/q' has shape \(3,\), but observation_space declares \(2,\)",
        ),
        (
            {"rgb": np.full((2, 2, 3), 0.5)},
            "the observation 'rgb' holds 0.5 as float64, which uint8, as declared, cannot",
        ),
        ({"rgb": np.full((2, 2, 3), 256)}, "the observation 'rgb' holds 256 as int64, which uint8"),
        ({"rgb": np.full((2, 2, 3), np.nan)}, "the observation 'rgb' holds nan"),
        ({"tool": 8}, "the observation 'tool' is 8, but observation_space declares 5 to 7"),
        ({"tool": 4}, "the observation 'tool' is 4, but observation_space declares 5 to 7"),
        ({"tool": 5.5}, "the observation 'tool' holds 5.5"),
    ],
)
def test_a_leaf_that_is_wrong_is_told_by_its_name(wrong, told):
    with pytest.raises(ContractError, match=told):
        Spaces(TREE, ACTIONS, "Task-v0").observation(RIGHT | wrong)


def test_whole_numbers_may_have_any_dtype_that_holds_them():
    spaces = Spaces(TREE, ACTIONS, "Task-v0")
    value = spaces.observation(RIGHT | {"rgb": np.full((2, 2, 3), 7.0), "tool": np.float32(6.0)})
    assert (value["rgb"].dtype, value["rgb"].max(), int(value["tool"])) == (np.uint8, 7, 1)


def test_categories_of_several_parts_are_checked_each_by_its_own_number():
    spaces = Spaces(Dict({"parts": MultiDiscrete([2, 4])}), ACTIONS, "Task-v0")
    assert spaces.observation({"parts": [1, 3]})["parts"].tolist() == [1, 3]
    with pytest.raises(ContractError, match=r"'parts' is \[2, 0\], but observation_space declares 0 to 1, 0 to 3"):
        spaces.observation({"parts": [2, 0]})


def test_a_number_beyond_its_bounds_is_a_note_and_no_end():
    simulator = ADAPTERS["gymnasium"]({"observation": np.array([11.0, 0.0], np.float32)})
    _, window = collected(simulator)
    assert window.notes == ["The observation holds 11, beyond its declared bounds, -10 to 10; it is used as it is."]


def test_any_part_of_a_multibinary_leaf_may_lie_beyond_0_and_1():
    spaces = Spaces(Dict({"lamps": MultiBinary(3)}), ACTIONS, "Lamps-v0")
    told = "The observation 'lamps' holds 2, beyond its declared bounds, 0 to 1; it is used as it is."
    assert [*spaces.beyond({"lamps": np.array([0, 1, 2], np.int8)})] == [told]


def test_arrays_of_another_library_are_told_as_such_in_a_step():
    simulator = OddSimulator({"reward": torch.zeros(2)})
    with pytest.raises(ContractError, match="rewards of a step is tensor"):
        collected(simulator)


def test_observations_of_another_type_are_told():
    simulator = OddSimulator({"observation": np.zeros((2, 2))}, since=0)
    with pytest.raises(
        ContractError, match=r"the observations are array\(.*\) of float64; an array of float32 is expected"
    ):
        collected(simulator)


def test_leaves_whose_names_fall_together_stay_apart():
    space = Dict({"a": Dict({"b": Box(-1, 1, (1,))}), "a/b": Box(-1, 1, (1,))})
    value = Spaces(space, ACTIONS, "Task-v0").observation({"a": {"b": [0.25]}, "a/b": [0.5]})
    assert {name: leaf.tolist() for name, leaf in value.leaves.items()} == {"a/b": [0.25], "a/b~2": [0.5]}


# --- terms of the reward


@pytest.mark.parametrize("value", [None, "much", [1.0, 2.0], {}])
def test_a_term_that_is_no_number_is_left_out_with_one_note(value):
    _, window = collected(ADAPTERS["gymnasium"]({"terms": value}))
    assert [episode.reward_terms for episode in window.episodes] == [{"reach": 0.5 * STEPS}] * 4
    assert window.notes == [f"The reward term 'odd' is {value!r}, no number: it is left out."]


@pytest.mark.parametrize("adapter", ["gymnasium", "vector, NEXT_STEP", "vector, SAME_STEP"])
def test_metrics_without_names_are_left_out_with_one_note(adapter):
    _, window = collected(ADAPTERS[adapter]({"info": lambda info: info | {"metrics": np.array([0.5, 1.0])}}))
    assert window.notes == ["The metrics are of type ndarray, no dict of numbers: they are left out."]
    assert {name for episode in window.episodes for name in episode.metrics} == set()


def test_a_term_may_be_an_array_of_one_number():
    _, window = collected(ADAPTERS["gymnasium"]({"terms": np.array([0.25])}))
    assert window.episodes[0].reward_terms == {"reach": 0.5 * STEPS, "odd": 0.25 * STEPS}


@pytest.mark.parametrize("terms", [{"a b": 1.0, "a/b": 2.0}, {"a/b": 2.0, "a b": 1.0}])
def test_terms_whose_names_fall_together_stay_apart_whatever_their_order(terms):
    _, window = collected(ADAPTERS["gymnasium"]({"info": {"reward_terms": terms}}))
    assert window.episodes[0].reward_terms == {"a_b": 1.0 * STEPS, "a_b_2": 2.0 * STEPS}
    assert [note for note in window.notes if "rename one" in note] == [
        "The reward terms 'a b' and 'a/b' have the same name without special characters: the second is shown as "
        "'a_b_2'. Workers that report them in different steps may swap them: rename one."
    ]


def test_a_number_in_place_of_the_terms_is_no_term():
    _, window = collected(ADAPTERS["gymnasium"]({"info": {"reward_terms": 0.5, "reward_reach": 1.0}}))
    assert window.episodes[0].reward_terms == {"reach": 1.0 * STEPS}


def test_names_that_never_end_are_cut_off_with_a_note():
    tracker = EpisodeTracker(0, 0, 1)
    simulator = ADAPTERS["gymnasium"]({"info": lambda _: {"reward_terms": {f"at {random.random()}": 1.0}}}, 1)
    simulator.reset()
    for _ in range(MOST_TERMS):
        tracker.step(simulator.step(np.zeros((2, 1), np.float32)), 0) if tracker._beginnings else None
    names = [f"at {number}" for number in range(2 * MOST_TERMS)]
    found = [tracker._name("reward terms", name) for name in names]
    assert sum(name is not None for name in found) == MOST_TERMS
    assert len(tracker.notes) == 1
    assert "more than 200 different reward terms" in tracker.notes[0]


# --- adapters that ask a library for success


def of_maniskill(monkeypatch, success, batched):
    pytest.importorskip("mani_skill")
    from rlpipe.envs.maniskill import ManiSkill, batched
    from rlpipe.envs.maniskill.options import ManiSkillConfig
    from tests.helpers import maniskill_tasks

    monkeypatch.setattr(maniskill_tasks.OddTask, "success", success)
    monkeypatch.setattr(batched, "_checked", {})
    return ManiSkill.make(ManiSkillConfig("maniskill", id="RlpipeOdd-v1", batched=batched), 2, seeds)


def of_metaworld(monkeypatch, success):
    pytest.importorskip("metaworld")
    from rlpipe.envs.metaworld import MetaWorld, MetaWorldConfig

    simulator = MetaWorld.make(MetaWorldConfig("metaworld", id="reach-v3"), 2, seeds)
    task = type(simulator._envs[0]._env.unwrapped)
    step = task.step
    monkeypatch.setattr(
        task, "step", lambda self, action: (*(told := step(self, action))[:4], told[4] | {"success": success})
    )
    return simulator


LIBRARIES = {
    "maniskill": functools.partial(of_maniskill, batched=False),
    "maniskill, batched": functools.partial(of_maniskill, batched=True),
    "metaworld": of_metaworld,
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_success_of_nan_that_a_library_tells_is_refused(monkeypatch, library):
    with pytest.raises(
        (ContractError, ConfigError), match=r"success (of a reset )?is (nan|tensor\(\[nan\]\)); true, false, 0 or 1 "
    ):
        collected(LIBRARIES[library](monkeypatch, math.nan))


@pytest.mark.soak
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_success_of_one_that_a_library_tells_is_a_success(monkeypatch, library):
    simulator = LIBRARIES[library](monkeypatch, 1.0)
    assert simulator.reset()
    assert simulator.step(np.zeros((2, *simulator.spec.action_shape), np.float32)).success.tolist() == [True, True]


# --- success that is never told


def test_a_success_that_is_told_only_where_there_is_one_is_false_elsewhere():
    step = 0

    def told(info):
        nonlocal step
        step += 1
        return info if step == 2 * STEPS else {}

    _, window = collected(ADAPTERS["gymnasium"]({"info": told}))
    assert window.tells_success
    assert sorted(episode.success_once for episode in window.episodes) == [False, False, False, True]


@pytest.mark.parametrize("key", ["is_success", "success"])
def test_a_success_for_which_no_key_is_set_is_told_once(key):
    env = OddEnv({"info": lambda info: {key: info["is_success"]}})
    _, window = collected(Gymnasium([GymnasiumEnv(env)], seeds, ignore_terminations=False))
    assert window.notes == [f"The info holds {key!r}: set env.train.success_key={key} to measure success."]


def test_a_vectorised_success_for_which_no_key_is_set_is_told_once():
    _, window = collected(GymnasiumVector(vector(), seeds))
    assert window.notes == ["The info holds 'is_success': set env.train.success_key=is_success to measure success."]


def test_a_success_that_no_info_holds_is_known_as_such():
    _, window = collected(ADAPTERS["gymnasium"]({"info": {"distance": 0.5}}))
    assert not window.tells_success


# --- the form of the interface


class Old(OddEnv):
    """The step of Gym before 0.26."""

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, info


class Mended(Old):
    """As the error says."""

    def step(self, action):
        observation, reward, done, info = super().step(action)
        return observation, reward, done, False, info


class ObservationAlone(OddEnv):
    """The reset of Gym before 0.26."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class WithoutSeed(OddEnv):
    """Likewise."""

    def reset(self):
        return super().reset()


class WithoutOptions(OddEnv):
    """A reset that takes no options."""

    def reset(self, seed=None):
        return super().reset(seed=seed)


class NoEnvironment:
    """Something else that is registered."""


class Adapted(gymnasium.Wrapper):
    """A wrapper that brings the old form into the new one."""

    def step(self, action):
        observation, reward, done, info = self.env.step(action)
        return observation, reward, done, False, info


FORMS = {
    Old: r"step\(\) returns 4 values, as in Gym before 0.26; return five: .*, reward, done, False, info",
    ObservationAlone: r"reset\(\) returns array.* and no info, as in Gym before 0.26; return two values",
    WithoutSeed: r"reset\(\) takes no seed, .*define reset\(self, \*, seed=None, options=None\)",
    WithoutOptions: r"reset\(\) takes no options",
    NoEnvironment: "makes <class '.*NoEnvironment'>, which is no gymnasium.Env: derive its class from gymnasium.Env",
}


def registered(kind, **options) -> GymnasiumConfig:
    name = f"{kind.__name__}-v7"
    gymnasium.registry.pop(name, None)
    options = {"max_episode_steps": 5} | options
    gymnasium.register(name, entry_point=f"{kind.__module__}:{kind.__name__}", **options)
    return GymnasiumConfig("gymnasium", id=name, success_key="is_success")


@pytest.mark.parametrize("kind", FORMS)
def test_the_form_of_the_old_gym_is_refused_before_the_start(kind):
    with pytest.raises(ConfigError, match=FORMS[kind]):
        Gymnasium.find_spaces(registered(kind))


@pytest.mark.parametrize("kind", [Mended, OddEnv])
def test_what_the_error_advises_is_accepted(kind):
    spec = Gymnasium.find_spaces(registered(kind))
    assert spec is not None
    assert spec.observation_dim == 2


def test_an_old_environment_that_a_registered_wrapper_adapts_is_accepted():
    wrapper = gymnasium.envs.registration.WrapperSpec("Adapted", f"{__name__}:Adapted", {})
    config = registered(Old, additional_wrappers=(wrapper,), max_episode_steps=None, disable_env_checker=True)
    assert Gymnasium.find_spaces(config) is not None


@pytest.mark.parametrize("place", ["reward", "success", "observation", "terminated"])
def test_what_comes_in_the_first_episode_is_refused_before_the_start(place):
    config = GymnasiumConfig(
        "gymnasium",
        id="tests.helpers.odd_env:OddEnv-v0",
        success_key="is_success",
        kwargs={"odd": {place: "no"}, "since": 3},
    )
    with pytest.raises(ConfigError, match=r"OddEnv-v0: .*'no'"):
        Gymnasium.find_spaces(config)


def vector(**odd) -> OddVector:
    return OddVector(odd, 1, gymnasium.vector.AutoresetMode.SAME_STEP)


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        (
            {"info": lambda info: info | {"final_info": np.array([{}, {}])}},
            "final_info is array.*as in Gymnasium before 1.0",
        ),
        ({"info": lambda info: {"is_success": [0, 0]}}, "the info of a last step holds no final_obs"),
        ({"reward": 1.0}, "the reward is 1.0; 2 numbers are expected, one for each environment"),
        ({"truncated": [0, 2]}, r"truncated is \[0, 2\]; 2 of true, false, 0 or 1 are expected"),
    ],
)
def test_a_vectorised_environment_of_another_form_is_told_so(odd, told):
    with pytest.raises(ContractError, match=told):
        collected(GymnasiumVector(vector(**odd), seeds, success_key="is_success"))


def test_an_autoreset_mode_that_does_not_exist_is_refused():
    env = vector()
    env.metadata = {"autoreset_mode": "sometimes"}
    with pytest.raises(ConfigError, match=r"as 'sometimes'; it must be one of AutoresetMode.NEXT_STEP"):
        GymnasiumVector(env, seeds)


# --- seeds


class Global(OddEnv):
    """Draws its start from a global generator."""

    draw = staticmethod(lambda: float(np.random.uniform()))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.start = self.draw()
        return self.observed(), {}


class Endless(Global):
    """Draws its start from what nobody can seed."""

    draw = staticmethod(lambda: random.SystemRandom().random())


def starts(kind, first_seed: int = 0, draw=None) -> tuple[list[float], list[int | None]]:
    """First observations of three episodes on two environments, and the seeds that their beginnings tell."""
    envs = [kind(), kind()]
    for env in envs:
        env.draw = draw or env.draw
    given = iter(range(first_seed, 1000))
    simulator = Gymnasium([GymnasiumEnv(env) for env in envs], lambda _: next(given), ignore_terminations=False)
    observations, beginnings = simulator.reset()
    found = [float(row[0]) for row in observations]
    for _ in range(STEPS):
        step = simulator.step(np.zeros((2, 1), np.float32))
    return found + [float(row[0]) for row in step.observations], [
        one.seed for one in (*beginnings.values(), *step.beginnings.values())
    ]


@pytest.mark.parametrize("draw", [None, random.random, lambda: float(torch.rand(()))], ids=["numpy", "python", "torch"])
def test_a_start_from_a_global_generator_follows_from_the_seed_of_the_episode(draw):
    found, told = starts(Global, draw=draw)
    assert len({*found}) == 4
    assert told == [0, 1, 2, 3]
    np.random.uniform(), random.random(), torch.rand(())
    assert starts(Global, draw=draw)[0] == found
    assert not {*starts(Global, first_seed=10, draw=draw)[0]} & {*found}


def test_an_episode_that_draws_globally_leaves_the_generators_of_others_alone():
    seed_global_generators(3)
    expected = np.random.uniform()
    seed_global_generators(3)
    starts(Global)
    simulator = Seeding(tries=True)
    with_seed = simulator.begin(lambda: (np.array([np.random.uniform()]), None), 5)
    assert with_seed[0] != expected


def test_a_reset_that_ignores_its_seed_is_noted_and_lists_no_seeds():
    _, told = starts(Endless)
    assert told == [None] * 4
    simulator = Gymnasium([GymnasiumEnv(Endless(), "is_success")], seeds, ignore_terminations=False)
    _, window = collected(simulator)
    assert [note[:62] for note in window.notes] == ["reset(seed=s) gave two different first observations, so no epi"]
    assert {episode.seed for episode in window.episodes} == {None}


def test_a_vectorised_environment_that_draws_globally_lists_no_seeds():
    simulator = GymnasiumVector(gymnasium.vector.SyncVectorEnv([Global, Global]), seeds, success_key="is_success")
    beginnings = simulator.reset()[1]
    assert [one.seed for one in beginnings.values()] == [None, None]
    notes = [simulator.step(np.zeros((2, 1), np.float32)).notes for _ in range(2)]
    assert notes == [(DRAWS_TOGETHER,), ()]


def test_a_start_that_a_curriculum_chose_is_seeded_by_its_own_seed_also_if_that_is_0():
    simulator = Gymnasium([GymnasiumEnv(Global())], seeds, ignore_terminations=False)
    simulator.next_start = lambda _: ChosenStart(seed=0)
    chosen, _ = simulator.reset()
    assert float(chosen[0, 0]) == starts(Global)[0][0]


def test_a_plug_in_may_have_attributes_of_any_name():
    simulator = OddPlugin([OddSingle({"terms": "fast"})], seeds, ignore_terminations=False)
    vars(simulator).update(dict.fromkeys(["_notes", "_note", "_told", "_seeding", "_shape", "_add_numbers"], "its own"))
    assert len(collected(simulator)[1].episodes) == 2


def test_a_plug_in_may_have_a_step_of_its_own_class():
    class Told(SingleStep):
        pass

    class Own(OddSingle):
        def step(self, action):
            return Told(*super().step(action))

    _, window = collected(OddPlugin([Own()], seeds, ignore_terminations=False))
    assert len(window.episodes) == 2


def test_an_evaluation_leaves_the_global_generators_alone(tmp_path):
    config = scripted(tmp_path)
    spec = Scripted.make(config.env.train, 1, seeds).spec
    evaluator = Evaluator(config, 0, 1, spec)
    policy = PolicyActions(build_policy(config, spec), deterministic=True, memory_width=0)
    seed_global_generators(3)
    expected = np.random.uniform(), random.random(), float(torch.rand(()))
    seed_global_generators(3)
    evaluator.evaluate(policy, 0)
    assert (np.random.uniform(), random.random(), float(torch.rand(()))) == expected


def test_two_workers_do_not_draw_the_same_from_global_generators():
    drawn = []

    class Noisy(OddEnv):
        def step(self, action):
            drawn.append(float(np.random.uniform()))
            return super().step(action)

    for first_slot in (0, 2, 0):
        np.random.seed(0)  # as of a process that was forked
        simulator = Gymnasium([GymnasiumEnv(Noisy(), "is_success") for _ in range(2)], seeds, ignore_terminations=False)
        policy = MLPPolicy(MLPConfig("mlp", hidden_sizes=[4]), simulator.spec)
        Collector(simulator, policy, 4, worker=0, first_slot=first_slot, noise_seed=[0]).collect(0)
    first, second, again = drawn[:8], drawn[8:16], drawn[16:]
    assert first == again
    assert not {*first} & {*second}


# --- whole runs


class Untold(OddEnv):
    """Never tells its success."""

    def __init__(self):
        super().__init__({"info": {"distance": 1.0}})


class Late(OddEnv):
    """Returns a wrong success in its fourth episode."""

    episodes = 0

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        if self.episodes == 4:
            self.odd = {"success": float("nan")}
        return super().reset(seed=seed)


def run_of(folder, kind):
    """Configuration of a short run of a registered environment."""
    task = registered(kind)
    train = {"name": "gymnasium", "id": task.id, "success_key": "is_success", "total_num_envs": 2}
    return scripted(folder, "runner.total_timesteps=64", "evaluation.episodes=2", env={"train": train})


def test_a_success_that_is_never_told_is_no_metric_and_an_alert(tmp_path):
    result = rlpipe.train(run_of(tmp_path, Untold), local=True)
    row = lines(result.directory, "metrics.jsonl")[-1]["metrics"]
    assert row["env/success_untold"] > 0
    assert not [name for name in row if "success" in name and name != "env/success_untold"]
    assert {episode["success_once"] for episode in lines(result.directory, "episodes.jsonl")} == {None}
    told = [event["message"] for event in lines(result.directory, "events.jsonl")]
    assert sum("'is_success' was never in the info of" in message for message in told) == 1
    assert sum("env/success_untold is" in message for message in told) == 1
    report = rlpipe.evaluate(result.checkpoint, local=True)
    assert [one.metric for one in report.estimates] == ["eval/return", "eval/episode_len"]
    (note,) = report.notes
    assert "never in the info of 2 finished episodes" in note
    assert "report it in every step, also where it is false" in note


def test_a_wrong_value_in_a_run_ends_it_with_its_sentence(tmp_path):
    with pytest.raises(RunError, match=r"^the simulator returned a wrong value: info\[.is_success.\] is nan") as told:
        rlpipe.train(run_of(tmp_path, Late), local=True)
    assert "Traceback" not in str(told.value)


def test_a_wrong_value_crosses_to_another_process():
    error = pickle.loads(pickle.dumps(ContractError("the reward is None")))
    assert (type(error), error.problem) == (ContractError, "the reward is None")


def test_a_comparison_warns_where_episodes_do_not_follow_from_seeds():
    def run(name, seed):
        episode = Episode(0, 0, seed, 0, 1.0, 4, None, None, None, terminated=False, truncated=True)
        return EvaluatedRun(Path(name), 0, {}, Path(), {}, {}, [episode], {})

    assert comparison._check_seeds([run("a", 1)]) == []
    (warning,) = comparison._check_seeds([run("a", 1), run("b", None)])
    assert warning.startswith("The episodes of b do not follow from seeds")


# --- everything at once


def odd_values():
    """Values of every kind that a simulator may return by mistake."""
    numbers = st.one_of(st.floats(), st.integers(), st.booleans(), st.none(), st.text(max_size=3))
    arrays = st.sampled_from([(), (1,), (2,), (3,), (1, 2), (2, 1), (2, 2), (0,)]).flatmap(
        lambda shape: st.sampled_from(["f4", "f8", "i8", "u1", "?", "O", "U3", "c8"]).map(
            lambda kind: np.ones(shape, kind)
        )
    )
    return st.one_of(
        numbers,
        arrays,
        st.lists(numbers, max_size=3),
        st.tuples(numbers, numbers),
        st.dictionaries(
            st.sampled_from(["reward_x", "is_success", "reward_terms", "_is_success", "final_info", "final_obs"]),
            numbers,
        ),
        st.builds(object),
    )


@fuzz(60)
@given(
    adapter=st.sampled_from(sorted(ADAPTERS)),
    odd=st.dictionaries(st.sampled_from(PLACES), odd_values(), min_size=1, max_size=2),
    since=st.integers(0, STEPS),
)
def test_every_outcome_is_a_right_number_or_one_sentence(adapter, odd, since):
    if "plug-in" in adapter:
        odd.pop("info", None)  # which they would look into themselves
    try:
        batch, window = collected(ADAPTERS[adapter](odd, since))
    except (ContractError, ConfigError) as error:
        told = str(error)
    else:
        assert_right(batch, window, plain=not {"reward", "step", "terminated", "truncated"} & odd.keys())
        return
    assert "\n" not in told
    assert len(told) < 500


def assert_right(batch, window, *, plain: bool) -> None:
    """Checks that what was collected are numbers; ``plain`` if each step pays 1."""
    assert batch.rewards.shape == batch.terminated.shape == (2 * STEPS, 2)
    for episode in window.episodes:
        assert episode.success_once in (True, False)
        assert all(isinstance(value, float) for value in episode.reward_terms.values())
        if plain:
            assert episode.episode_return == episode.length
