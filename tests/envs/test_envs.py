"""The step contract: one scripted story, told by every adapter, comes out the same."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from rlpipe.collection.collector import Collector
from rlpipe.collection.episodes import NumberSummary
from rlpipe.config.loading import load_config
from rlpipe.envs.gymnasium import Gymnasium
from rlpipe.envs.gymnasium.info import reward_terms
from rlpipe.envs.gymnasium.options import GymnasiumConfig
from rlpipe.envs.gymnasium.single import GymnasiumEnv
from rlpipe.envs.gymnasium.vector import GymnasiumVector
from rlpipe.envs.scripted import Scripted, ScriptedConfig, ScriptedEnv, ScriptedEpisode
from rlpipe.errors import ConfigError
from rlpipe.policies.mlp import MLPConfig, MLPPolicy

# Slot 0: ten steps, solved at the end. Slot 1: a time limit after 100 steps, so an episode spans three iterations of
# 40. Slot 2: the task ends and the limit strikes on the same step. Slot 3: solved at reset, lost, over after 3 steps.
STORY = [
    [
        {
            "length": 10,
            "end": "terminated",
            "success_at": (10,),
            "reward": 1.0,
            "reward_terms": {"reach": 0.25},
            "metrics": {"force": [3.0, None, 1.0, 2.0], "slip": [None]},
        }
    ],
    [{"length": 100, "end": "truncated", "success_at": (7, 8)}],
    [{"length": 100, "end": "both", "success_at": (100,), "reward": 0.5}],
    [{"length": 3, "end": "terminated", "success_at": (0,)}, {"length": 5, "end": "terminated", "success_at": (2, 5)}],
]


class StoryEnv(gymnasium.Env):
    """A slot of the story as a Gymnasium environment."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, slot: int):
        self.inner = ScriptedEnv(slot, [ScriptedEpisode(**episode) for episode in STORY[slot]])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        observation, success = self.inner.reset(seed)
        return observation, {"is_success": success}

    def step(self, action):
        step = self.inner.step(action)
        terms = {f"reward_{name}": value for name, value in (step.reward_terms or {}).items()}
        info = {"is_success": step.success, **terms, **({"metrics": step.observed} if step.observed else {})}
        return step.observation, step.reward, step.terminated, step.truncated, info


class OddMetrics(gymnasium.Env):
    """Its info holds metrics of all kinds."""

    observation_space = action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        metrics = {"array": np.array([0.5]), "flag": True, "none": None, "word": "near"}
        return np.zeros(1, dtype=np.float32), 0.0, False, False, {"metrics": metrics}


def seeds(_: int) -> int:
    return 7


def scripted_simulator():
    return Scripted.make(ScriptedConfig("scripted", script=STORY), len(STORY), seeds)


class StoryTeller(Gymnasium):
    """Environments that count their resets, so that none may be repeated."""

    tries_seeds = False


def gymnasium_one_by_one():
    envs = [GymnasiumEnv(StoryEnv(slot), "is_success") for slot in range(len(STORY))]
    return StoryTeller(envs, seeds, ignore_terminations=False)


class VectorTeller(GymnasiumVector):
    """Likewise."""

    tries_seeds = False


def gymnasium_vector(mode: AutoresetMode):
    env = SyncVectorEnv([lambda slot=slot: StoryEnv(slot) for slot in range(len(STORY))], autoreset_mode=mode)
    return VectorTeller(env, seeds, success_key="is_success")


def maniskill():
    from rlpipe.envs.maniskill import ManiSkill
    from rlpipe.envs.maniskill.loading import load_maniskill
    from rlpipe.envs.maniskill.options import ManiSkillConfig
    from rlpipe.envs.maniskill.single import ManiSkillEnv

    load_maniskill()
    from tests.helpers import scripted_maniskill  # noqa: F401 - registers the task

    envs = [
        ManiSkillEnv(
            ManiSkillConfig(
                "maniskill", id="RlpipeScripted-v1", reward_mode="dense", kwargs={"slot": slot, "course": course}
            )
        )
        for slot, course in enumerate(STORY)
    ]
    return ManiSkill(envs, seeds, ignore_terminations=False, limit=envs[0].limit)


ADAPTERS = {
    "scripted": scripted_simulator,
    "gymnasium, one by one": gymnasium_one_by_one,
    "gymnasium, NEXT_STEP": lambda: gymnasium_vector(AutoresetMode.NEXT_STEP),
    "gymnasium, SAME_STEP": lambda: gymnasium_vector(AutoresetMode.SAME_STEP),
    "gymnasium, DISABLED": lambda: gymnasium_vector(AutoresetMode.DISABLED),
    "maniskill": pytest.param(maniskill, marks=[pytest.mark.maniskill]),
}
ADAPTERS = [maker if not callable(maker) else pytest.param(maker, id=name) for name, maker in ADAPTERS.items() if maker]


def tell(simulator, fragments: int = 4, horizon: int = 40):
    """Collects fragments; returns for each slot its first 100 transitions, and the episodes that ended in them."""
    policy = MLPPolicy(MLPConfig("mlp", hidden_sizes=[4]), simulator.spec)
    collector = Collector(simulator, policy, horizon, worker=0, first_slot=0, noise_seed=[0])
    transitions = [[] for _ in range(simulator.num_envs)]
    episodes = [[] for _ in range(simulator.num_envs)]
    for version in range(fragments):
        batch, window = collector.collect(version)
        successors = batch.successors()
        for t, n in np.argwhere(batch.valid):
            transitions[n].append(
                (
                    tuple(batch.observations[t, n]),
                    float(batch.rewards[t, n]),
                    tuple(successors[t, n]),
                    bool(batch.terminated[t, n]),
                    bool(batch.truncated[t, n]),
                )
            )
        for episode in window.episodes:
            row = dataclasses.replace(episode, seed=None, policy_version=0, step=0, log_prob=None)
            episodes[episode.slot].append(row)
    simulator.close()
    ended = [sum(one[3] or one[4] for one in slot[:100]) for slot in transitions]
    return [slot[:100] for slot in transitions], [rows[:count] for rows, count in zip(episodes, ended, strict=True)]


@pytest.fixture(scope="module")
def story():
    """The story as the scripted simulator tells it; the tests below say that this is the right one."""
    return tell(scripted_simulator())


@pytest.mark.parametrize("make", ADAPTERS)
def test_every_adapter_tells_the_same_transitions(make, story):
    transitions, _ = tell(make())
    assert transitions == story[0]


@pytest.mark.parametrize("make", ADAPTERS)
def test_every_adapter_tells_the_same_episodes(make, story):
    _, episodes = tell(make())
    assert episodes == story[1]


def test_reward_terms_are_summed_over_the_episode_by_name(story):
    _, episodes = story
    assert [rows[0].reward_terms for rows in episodes] == [{"reach": 2.5}, {}, {}, {}]


def test_a_number_of_the_simulator_is_summarised_over_the_steps_of_an_episode_in_which_it_applies(story):
    _, episodes = story
    force = {"force/mean": 15.0 / 7, "force/least": 1.0, "force/most": 3.0, "force/last": 3.0}  # 3 - 1 2 3 - 1 2 3 -
    assert [rows[0].metrics for rows in episodes] == [force, {}, {}, {}]


def test_numbers_whose_names_fall_together_and_those_of_the_package_stay_apart():
    script = [[{"length": 2, "metrics": {"grip/force": [2.0], "grip force": [1.0], "return": [3.0], "": [4.0]}}]]
    _, ((episode,),) = tell(Scripted.make(ScriptedConfig("scripted", script=script), 1, seeds), 1, 2)
    assert {name: value for name, value in episode.metrics.items() if name.endswith("/last")} == {
        "grip_force/last": 1.0,
        "grip_force_2/last": 2.0,
        "return/last": 3.0,
        "_/last": 4.0,
    }
    assert episode.episode_return == 0.0


def test_what_is_no_number_is_left_out_of_the_metrics_of_an_episode_and_told_once():
    envs = [GymnasiumEnv(OddMetrics(), None)]
    simulator = StoryTeller(envs, seeds, ignore_terminations=False)
    simulator.reset()
    first, second = (simulator.step(np.zeros((1, 1), dtype=np.float32)) for _ in range(2))
    assert {name: values.tolist() for name, values in first.observed.items()} == {"array": [0.5], "flag": [1.0]}
    assert first.notes == ("The metric 'word' is 'near', no number: it is left out.",)
    assert second.notes == ()


@given(st.lists(st.floats(-1e6, 1e6) | st.just(np.nan), max_size=8))
def test_steps_without_a_number_change_nothing_in_its_summary(values):
    summary, applied = NumberSummary(2), [value for value in values if not np.isnan(value)]
    summary.add(np.array([7.0, 7.0]))
    summary.clear(np.array([1]))  # what came before belongs to another episode
    for value in values:
        summary.add(np.array([np.nan, value]))
    found = summary.of(1)
    assert (found == {}) == (applied == [])
    if applied:
        assert found.pop("mean") == pytest.approx(np.mean(applied), abs=1e-6)
        assert found == {"least": min(applied), "most": max(applied), "last": applied[-1]}
    assert set(summary.of(0).values()) == {7.0}


def test_the_step_of_the_first_success_is_counted_from_one(story):
    _, episodes = story
    assert [rows[0].first_success for rows in episodes] == [10, 7, 100, None]


def test_only_numbers_are_reward_terms():
    info = {"reward_run": 0.5, "reward_type": "dense", "reward_none": None, "reward_given": True, "reward_list": [1, 2]}
    assert reward_terms(info) == {"run": 0.5}
    assert reward_terms({"success": True}) is None
    assert reward_terms({"reward_terms": {"reach": 1}}) == {"reach": 1.0}


def test_a_reward_term_may_have_any_name():
    script = [[{"length": 2, "reward_terms": {"reach the goal/now": 0.5}}]]
    _, episodes = tell(Scripted.make(ScriptedConfig("scripted", script=script), 1, seeds), 1, 2)
    assert episodes[0][0].reward_terms == {"reach_the_goal_now": 1.0}


def test_failure_is_known_only_where_the_simulator_speaks_of_it():
    script = [[{"length": 4, "fail_at": at}] for at in ((2,), (4,), ())] + [[{"length": 4}]]
    _, episodes = tell(Scripted.make(ScriptedConfig("scripted", script=script), 4, seeds), 1, 4)
    assert [(rows[0].fail_once, rows[0].fail_at_end) for rows in episodes] == [
        (True, False),
        (True, True),
        (False, False),
        (None, None),
    ]


def test_the_log_probability_of_an_episode_is_the_sum_over_its_actions():
    simulator = Scripted.make(ScriptedConfig("scripted", script=[[{"length": 6}]]), 1, seeds)
    policy = MLPPolicy(MLPConfig("mlp", hidden_sizes=[4]), simulator.spec)
    batch, window = Collector(simulator, policy, 6, worker=0, first_slot=0, noise_seed=[0]).collect(0)
    assert window.episodes[0].log_prob == pytest.approx(float(batch.log_probs.sum(dtype=np.float64)))


def test_a_ten_step_slot_and_a_hundred_step_slot_finish_what_they_should(story):
    _, episodes = story
    assert [len(rows) for rows in episodes] == [10, 1, 1, 25]


def test_an_episode_that_spans_three_iterations_is_one_row(story):
    (row,) = story[1][1]
    assert (row.length, row.terminated, row.truncated, row.success_once, row.success_at_end) == (
        100,
        False,
        True,
        True,
        False,
    )


def test_a_fragment_says_which_slots_it_is_of_and_how_far_their_episodes_were():
    simulator = Scripted.make(ScriptedConfig("scripted", script=[[{"length": 3}], [{"length": 5}]]), 2, seeds)
    policy = MLPPolicy(MLPConfig("mlp", hidden_sizes=[4]), simulator.spec)
    collector = Collector(simulator, policy, 4, worker=1, first_slot=2, noise_seed=[0])
    fragments = [collector.collect(version)[0] for version in range(3)]
    assert [batch.steps_before.tolist() for batch in fragments] == [[0, 0], [1, 4], [2, 3]]
    assert {batch.first_slot for batch in fragments} == {2}


def test_termination_and_time_limit_on_the_same_step_are_both_kept(story):
    (row,) = story[1][2]
    assert (row.terminated, row.truncated, row.episode_return) == (True, True, 0.5)


def test_an_environment_that_is_solved_at_reset_says_so_and_does_not_count_as_success_once(story):
    solved, played = story[1][3][:2]
    assert (solved.success_at_reset, solved.success_once, solved.length) == (True, False, 3)
    assert (played.success_at_reset, played.success_once, played.success_at_end) == (False, True, True)


def test_the_successor_of_a_last_step_is_the_state_it_reached_not_the_next_episodes_first(story):
    transitions, _ = story
    observation, _, successor, terminated, _ = transitions[0][9]
    assert (observation, successor, terminated) == ((0, 0, 9, 0), (0, 0, 10, 0), True)
    assert transitions[0][10][0] == (0, 1, 0, 0)


def test_ignoring_terminations_lets_an_episode_run_to_its_time_limit():
    script = [[{"length": 4, "end": "both", "success_at": (4,)}]]
    simulator = Scripted.make(ScriptedConfig("scripted", script=script, ignore_terminations=True), 1, seeds)
    simulator.reset()
    steps = [simulator.step(np.zeros((1, 1), dtype=np.float32)) for _ in range(4)]
    assert [bool(step.terminated[0]) for step in steps] == [False] * 4
    assert steps[-1].truncated[0]


def test_a_slot_without_further_seeds_is_idle():
    queue = [1, 2]
    simulator = Scripted.make(
        ScriptedConfig("scripted", script=[[{"length": 2}]]), 1, lambda _: queue.pop(0) if queue else None
    )
    simulator.reset()
    valid = [bool(simulator.step(np.zeros((1, 1), dtype=np.float32)).valid[0]) for _ in range(6)]
    assert valid == [True] * 4 + [False] * 2


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_slot_of_a_vectorised_environment_without_further_seeds_is_idle(mode):
    queues = {0: [1, 2], 3: [1]}
    env = SyncVectorEnv([lambda slot=slot: StoryEnv(slot) for slot in (0, 3)], autoreset_mode=mode)
    simulator = VectorTeller(
        env, lambda n: queues[(0, 3)[n]].pop(0) if queues[(0, 3)[n]] else None, success_key="is_success"
    )
    simulator.reset()
    steps = [simulator.step(np.zeros((2, 1), dtype=np.float32)) for _ in range(40)]
    assert sum(step.valid for step in steps).tolist() == [20, 3]
    assert sum(step.terminated.astype(int) for step in steps).tolist() == [2, 1]


def test_a_vectorised_environment_that_does_not_say_how_it_resets_is_refused():
    env = SyncVectorEnv([lambda: StoryEnv(0)])
    env.metadata = {}
    with pytest.raises(ConfigError, match="autoreset_mode"):
        GymnasiumVector(env, seeds)


def test_a_natively_vectorised_environment_runs_whole_episodes():
    config = GymnasiumConfig("gymnasium", id="CartPole-v1", vectorized=True)
    transitions, episodes = tell(Gymnasium.make(config, 3, seeds), fragments=3)
    assert all(len(slot) == 100 for slot in transitions)
    assert all(rows and all(row.terminated for row in rows) for rows in episodes)


def test_a_natively_vectorised_environment_trains_but_does_not_evaluate():
    config = GymnasiumConfig("gymnasium", id="CartPole-v1", vectorized=True)
    facts = Gymnasium.describe(config, "env.eval")
    assert not facts.seeds
    assert "draws its own seeds" in facts.remedy("seeds")
    assert facts.remedy("seeds").endswith(": set env.eval.vectorized=false.")


@pytest.mark.parametrize("steps", [0, -1])
def test_a_time_limit_below_one_is_refused(steps):
    train = {"name": "gymnasium", "id": "CartPole-v1", "max_episode_steps": steps}
    with pytest.raises(ConfigError, match=r"env.train.max_episode_steps is .*at least 1"):
        load_config({"env": {"train": train}})


def test_a_time_limit_among_the_keyword_arguments_is_known():
    config = GymnasiumConfig("gymnasium", id="CartPole-v1", kwargs={"max_episode_steps": 7})
    assert Gymnasium.describe(config, "env.train").time_limit == 7


def test_an_id_may_name_the_module_that_registers_it(monkeypatch, tmp_path):
    (tmp_path / "my_tasks.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Mine-v0', 'gymnasium.envs.classic_control.cartpole:CartPoleEnv', max_episode_steps=9)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = GymnasiumConfig("gymnasium", id="my_tasks:Mine-v0")
    Gymnasium.describe(config, "env.train")
    assert Gymnasium.make(config, 1, seeds).spec.num_actions == 2


@pytest.mark.parametrize(
    ("env_id", "told"),
    [
        (
            "own_latch:LatchDor-v0",
            r"own_latch \(.*own_latch\.py\) does not .*; did you mean 'own_latch:LatchDoor-v0'\?",
        ),
        ("own_again:LatchDor-v0", r"; did you mean 'own_again:OpenDoor-v0'\?$"),
        ("own_latch:Drawer", r"own_latch\.py\) does not register it\. It registers LatchDoor-v0\.$"),
        ("own_empty:Door-v0", r"own_empty\.py\) registers no task: call gymnasium\.register\('Door-v0', its class\)"),
        ("LatchDoor-v0", r"does not know it\. If a module of yours registers it, write module:LatchDoor-v0\.$"),
        ("CartPool-v1", r"does not know it; did you mean 'CartPole-v1'\? If a module"),
        ("random:Door-v0", r"Python's standard library \(.*random\.py\): give your file another name\.$"),
    ],
)
def test_an_id_that_is_not_registered_is_told_with_what_its_module_registers(monkeypatch, tmp_path, env_id, told):
    door = "import gymnasium\nclass Door(gymnasium.Env): pass\ngymnasium.register('LatchDoor-v0', Door)\n"
    again = "import gymnasium\ngymnasium.register('OpenDoor-v0', 'elsewhere:Door')\n"
    for name, text in (("own_latch", door), ("own_again", again), ("own_empty", "")):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in ("LatchDoor-v0", "OpenDoor-v0"):
        gymnasium.registry.pop(name, None)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=told):
        Gymnasium.describe(GymnasiumConfig("gymnasium", id=env_id), "env.train")


def test_an_environment_without_success_says_nothing_about_it():
    simulator = Gymnasium.make(GymnasiumConfig("gymnasium", id="CartPole-v1"), 2, seeds)
    simulator.reset()
    assert simulator.step(np.zeros(2, dtype=np.int64)).success is None


@pytest.mark.parametrize("key", ["is_succes", "succes", "success", "Is_Success"])
def test_a_misspelt_success_key_is_an_error_with_the_right_one(key):
    misspelt = GymnasiumConfig("gymnasium", id="tests.helpers.gym_trees:Sides-v0", success_key=key)
    with pytest.raises(ConfigError, match=rf"is '{key}', .* did you mean 'is_success'\? There are is_success\."):
        Gymnasium.find_spaces(misspelt)


def test_success_may_be_told_only_where_there_is_one():
    unlike_any = GymnasiumConfig("gymnasium", id="tests.helpers.gym_trees:Sides-v0", success_key="solved")
    assert Gymnasium.find_spaces(unlike_any) is not None


def test_a_discrete_action_reaches_gymnasium_as_an_integer():
    simulator = Gymnasium.make(GymnasiumConfig("gymnasium", id="CartPole-v1"), 1, seeds)
    first, _ = simulator.reset()
    step = simulator.step(np.array([1], dtype=np.int64))
    assert step.observations[0, 1] > first[0, 1]  # action 1 pushes the cart to the right


def test_an_unknown_gymnasium_id_names_the_nearest():
    with pytest.raises(ConfigError, match="CartPole-v1"):
        Gymnasium.describe(GymnasiumConfig("gymnasium", id="CartPol-v1"), "env.train")


@pytest.mark.maniskill
class TestManiSkill:
    def test_an_unknown_task_names_the_nearest(self):
        from rlpipe.envs.maniskill import ManiSkill
        from rlpipe.envs.maniskill.options import ManiSkillConfig

        with pytest.raises(ConfigError, match="PushCube-v1"):
            ManiSkill.describe(ManiSkillConfig("maniskill", id="PushCub-v1"), "env.train")

    def test_an_unknown_control_mode_is_an_error_of_the_configuration(self):
        from rlpipe.envs.maniskill import ManiSkill
        from rlpipe.envs.maniskill.options import ManiSkillConfig

        with pytest.raises(ConfigError, match="pd_nothing"):
            ManiSkill.make(ManiSkillConfig("maniskill", id="PushCube-v1", control_mode="pd_nothing"), 1, seeds)

    def test_every_robot_scales_the_actions_of_the_modes_whose_bounds_are_known_without_it(self, monkeypatch):
        from mani_skill.agents.base_agent import BaseAgent
        from mani_skill.agents.registration import REGISTERED_AGENTS

        from rlpipe.envs.maniskill.loading import load_maniskill
        from rlpipe.envs.maniskill.simulator import SCALED_MODES, UNSCALED_ROBOT

        load_maniskill()
        monkeypatch.setattr(BaseAgent, "__init__", lambda *_: None)  # which would build the robot
        monkeypatch.setattr(BaseAgent, "robot", SimpleNamespace(active_joints=[], active_joints_map={}), raising=False)
        scaled = []
        for uid, agent in REGISTERED_AGENTS.items():
            try:
                modes = agent.agent_cls()._controller_configs
            except AssertionError:  # the humanoid counts its joints
                continue
            for mode in {*modes} & {*SCALED_MODES}:
                parts = modes[mode].values() if isinstance(modes[mode], dict) else [modes[mode]]
                scaled += [(uid, mode, part) for part in parts if hasattr(part, "normalize_action")]
        unscaled = {(uid, mode) for uid, mode, part in scaled if not part.normalize_action}
        assert unscaled == {(f"{UNSCALED_ROBOT}{camera}", "pd_ee_delta_pose") for camera in ("", "_wristcam")}
        assert {"panda", "fetch", "xarm6_robotiq"} <= {uid for uid, *_ in scaled}

    def test_missing_assets_are_an_error_with_the_command_that_downloads_them(self):
        from rlpipe.envs.maniskill import ManiSkill
        from rlpipe.envs.maniskill.options import ManiSkillConfig

        with pytest.raises(ConfigError, match=r"python -m mani_skill\.utils\.download_asset PickSingleYCB-v1"):
            ManiSkill.make(ManiSkillConfig("maniskill", id="PickSingleYCB-v1"), 1, seeds)

    @pytest.mark.skipif(torch.accelerator.is_available(), reason="with an accelerator, torch seeds it as ever")
    def test_seeding_the_cpu_alone_gives_the_random_numbers_of_torch(self):
        from rlpipe.envs.maniskill.loading import quicken_seeding

        quicken_seeding()
        drawn = []
        for seeding in (torch.manual_seed, torch.manual_seed.__wrapped__):
            seeding(np.int64(2**31 + 5))
            drawn.append(torch.rand(3).tolist())
        assert drawn[0] == drawn[1]

    def test_equal_seeds_begin_equal_episodes(self):
        from rlpipe.envs.maniskill import ManiSkill
        from rlpipe.envs.maniskill.options import ManiSkillConfig

        simulator = ManiSkill.make(ManiSkillConfig("maniskill", id="PushCube-v1"), 2, seeds)
        observations, _ = simulator.reset()
        assert np.array_equal(observations[0], observations[1])
        actions = np.full((2, 8), 0.5, dtype=np.float32)
        with torch.no_grad():
            steps = [simulator.step(actions) for _ in range(5)]
        assert np.array_equal(steps[-1].observations[0], steps[-1].observations[1])

    def test_the_short_way_to_poses_changes_no_number(self):
        import gymnasium
        from mani_skill.utils.structs.pose import Pose

        from rlpipe.envs.maniskill.loading import load_maniskill, quicken_poses

        load_maniskill()
        quicken_poses()
        short = Pose.__dict__["create"]
        options = {"obs_mode": "state", "reward_mode": "normalized_dense", "render_backend": "none"}
        actions = np.random.default_rng(0).uniform(-1, 1, (30, 8)).astype(np.float32)

        def story() -> list[np.ndarray]:
            env = gymnasium.make("PushCube-v1", num_envs=1, sim_backend="physx_cpu", **options)
            answers = [env.reset(seed=3)[0], *(x for action in actions for x in env.step(action)[:3])]
            env.close()
            return [np.asarray(answer) for answer in answers]

        try:
            quick = story()
            Pose.create = classmethod(short.__func__.__wrapped__)
            slow = story()
        finally:
            Pose.create = short
        assert all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(quick, slow, strict=True))

    def test_poses_that_the_short_way_does_not_cover_go_the_long_one(self):
        import sapien
        from mani_skill.utils.structs.pose import Pose

        from rlpipe.envs.maniskill.loading import quicken_poses

        quicken_poses()
        one = Pose.create(sapien.Pose([1, 2, 3]))
        assert one.raw_pose.tolist() == [[1, 2, 3, 1, 0, 0, 0]]
        assert Pose.create([sapien.Pose([1, 2, 3])] * 2).raw_pose.tolist() == one.raw_pose.tolist() * 2
        assert Pose.create(torch.tensor([1.0, 2.0, 3.0])).raw_pose.tolist() == one.raw_pose.tolist()
        assert Pose.create(one).raw_pose.tolist() == one.raw_pose.tolist()
