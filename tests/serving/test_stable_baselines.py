"""A policy of Stable-Baselines3: acts as its own ``predict`` does, and nothing in its files is executed."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import zipfile
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import rlpipe
from rlpipe.collection.actions import RunningEpisode
from rlpipe.config.schema import ExternalConfig
from rlpipe.errors import ConfigError
from rlpipe.serving.external.stable_baselines import StableBaselinesPolicy, beside
from rlpipe.serving.external.vec_normalize import read_normalizer
from rlpipe.trajectory import LeafSpec, SpaceSpec, Tree

stable_baselines3 = pytest.importorskip("stable_baselines3", reason="needs rlpipe[sb3]: it is not installed")
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize  # noqa: E402 - after the check

TWO = np.full(1, 2, np.float32)
CARTPOLE, PENDULUM = SpaceSpec(4, 1, 2), SpaceSpec(3, 1, None, -TWO, TWO)
LEAVES = {"camera/rgb": LeafSpec((36, 36, 3), "uint8"), "state": LeafSpec((2,))}
CAMERA = SpaceSpec.of_tree(LEAVES, 1, None, -TWO, TWO)
OFF_POLICY = {"learning_starts": 50, "buffer_size": 500, "batch_size": 8}
ALGORITHMS = {
    "PPO": (CARTPOLE, "CartPole-v1", {"n_steps": 64}),
    "A2C": (PENDULUM, "Pendulum-v1", {"use_sde": True, "policy_kwargs": {"net_arch": {"pi": [8], "vf": [4]}}}),
    "SAC": (PENDULUM, "Pendulum-v1", {"policy_kwargs": {"net_arch": [16, 8], "activation_fn": torch.nn.Tanh}}),
    "TD3": (PENDULUM, "Pendulum-v1", {"policy_kwargs": {"net_arch": [8]}}),
    "DDPG": (PENDULUM, "Pendulum-v1", {"policy_kwargs": {"net_arch": [8]}}),
    "DQN": (CARTPOLE, "CartPole-v1", {"policy_kwargs": {"net_arch": [8]}}),
}


class CameraTask(gymnasium.Env):
    """Two numbers and a picture, drawn at random."""

    observation_space = gymnasium.spaces.Dict(
        {
            "camera/rgb": gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8),
            "state": gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32),
        }
    )
    action_space = gymnasium.spaces.Box(-TWO, TWO)

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


def learnt(name, task, options, file):
    """Trains for 60 steps and saves."""
    of_algorithm = options if name in ("PPO", "A2C") else {**OFF_POLICY, **options}
    policy = "MultiInputPolicy" if isinstance(task, VecNormalize) and "Dict" in str(task.observation_space) else None
    model = getattr(stable_baselines3, name)(policy or "MlpPolicy", task, device="cpu", seed=0, **of_algorithm)
    model.learn(60).save(file)
    return model


@pytest.fixture(scope="module")
def sac(tmp_path_factory):
    """SAC on a normalised Pendulum, its model and its statistics in a folder."""
    folder = tmp_path_factory.mktemp("sac")
    task = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")]))
    model = learnt("SAC", task, {"policy_kwargs": {"net_arch": [16]}}, folder / "swing.zip")
    task.save(str(folder / "vecnormalize.pkl"))
    return folder / "swing.zip", model, task


def actions(policy, observations) -> np.ndarray:
    """Actions of a policy in an episode with these observations, after it was sent to another process."""
    sent = pickle.loads(pickle.dumps(policy))
    episode = RunningEpisode(0, 0, np.random.default_rng(0))
    return np.stack([sent.actions(observations[[row]], [episode])[0] for row in range(len(observations))])


def repacked(file: Path, to: Path, **parts: bytes) -> str:
    """Copies a model with some parts replaced; ``policy_pth`` is ``policy.pth``."""
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(to, "w") as copy:
        for name in archive.namelist():
            copy.writestr(name, parts.get(name.replace(".", "_"), archive.read(name)))
    return str(to)


def refused(name, spec, **config) -> str:
    with pytest.raises(ConfigError) as error:
        StableBaselinesPolicy(str(name), spec, ExternalConfig(**config))
    return str(error.value)


class Bomb:
    """Makes a file where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


@pytest.mark.parametrize(("name", "of_task"), ALGORITHMS.items(), ids=ALGORITHMS)
def test_actions_are_those_of_its_own_predict(tmp_path, name, of_task):
    spec, task, options = of_task
    model = learnt(name, task, options, tmp_path / "model.zip")
    observations = np.random.default_rng(0).normal(size=(50, spec.observation_dim)).astype(np.float32)
    expected = [model.predict(observation, deterministic=True)[0] for observation in observations]
    policy = StableBaselinesPolicy(str(tmp_path / "model.zip"), spec, ExternalConfig())
    assert (actions(policy, observations) == np.stack(expected)).all()


def test_an_evaluation_has_the_episodes_of_its_own_loop(tmp_path):
    model = learnt("PPO", "CartPole-v1", {"n_steps": 64}, tmp_path / "model.zip")
    overrides = [f"runner.logger.log_path={tmp_path}"]
    report = rlpipe.evaluate(
        "ppo_cartpole", policy=str(tmp_path / "model.zip"), local=True, episodes=4, overrides=overrides
    )
    assert [episode.seed for episode in report.episodes] == [1_000_000, 1_000_001, 1_000_002, 1_000_003]
    for episode in report.episodes:
        env = gymnasium.make("CartPole-v1")
        observation, _ = env.reset(seed=episode.seed)
        length, ended = 0, False
        while not ended:
            observation, _, terminated, truncated, _ = env.step(model.predict(observation, deterministic=True)[0])
            length, ended = length + 1, terminated or truncated
        assert episode.length == length


def test_what_it_reads_is_normalised_by_the_statistics_beside_it(sac, caplog):
    file, model, task = sac
    observations = 3 * np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    expected = model.predict(task.normalize_obs(observations), deterministic=True)[0]
    with caplog.at_level("INFO", "rlpipe"):
        policy = StableBaselinesPolicy(str(file), PENDULUM, ExternalConfig())
    assert "normalised by vecnormalize.pkl beside it" in caplog.text
    assert actions(policy, observations) == pytest.approx(expected, abs=1e-6)
    assert (actions(policy, observations) != model.predict(observations, deterministic=True)[0]).any()


def test_statistics_may_lie_elsewhere(sac, tmp_path):
    file, model, task = sac
    shutil.copyfile(file, tmp_path / "swing.zip")
    observations = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    config = ExternalConfig(normalizer=str(file.with_name("vecnormalize.pkl")))
    policy = StableBaselinesPolicy(str(tmp_path / "swing.zip"), PENDULUM, config)
    expected = model.predict(task.normalize_obs(observations), deterministic=True)[0]
    assert actions(policy, observations) == pytest.approx(expected, abs=1e-6)


def test_statistics_are_looked_for_under_the_names_that_others_give_them():
    assert [file.name for file in beside(Path("runs/swing_500_steps.zip"))] == [
        "swing_vecnormalize_500_steps.pkl", "swing_500_steps_vecnormalize.pkl", "vecnormalize.pkl",
        "vec_normalize.pkl",
    ]  # fmt: skip


def test_a_policy_with_a_camera_reads_pictures_as_the_simulator_gives_them(tmp_path):
    task = VecNormalize(DummyVecEnv([CameraTask]), norm_obs_keys=["state"])
    model = learnt("PPO", task, {"n_steps": 16, "batch_size": 16, "n_epochs": 1}, tmp_path / "model.zip")
    task.save(str(tmp_path / "vecnormalize.pkl"))
    generator = np.random.default_rng(0)
    pictures = generator.integers(0, 256, (5, 36, 36, 3), np.uint8)
    tree = Tree({"camera/rgb": pictures, "state": generator.normal(size=(5, 2)).astype(np.float32)})
    policy = StableBaselinesPolicy(str(tmp_path / "model.zip"), CAMERA, ExternalConfig())
    expected = model.predict(task.normalize_obs(dict(tree.leaves)), deterministic=True)[0]
    assert actions(policy, tree) == pytest.approx(expected, abs=1e-6)


def test_one_array_of_several_is_named_in_the_configuration(sac):
    file, model, task = sac
    spec = SpaceSpec.of_tree({"pole": LeafSpec((3,)), "other": LeafSpec((3,))}, 1, None, -TWO, TWO)
    assert "reads one array, and there are pole, other" in refused(file, spec)
    policy = StableBaselinesPolicy(str(file), spec, ExternalConfig(inputs={"observation": "pole"}))
    pole = np.ones((2, 3), np.float32)
    expected = model.predict(task.normalize_obs(pole), deterministic=True)[0]
    assert actions(policy, Tree({"pole": pole, "other": 0 * pole})) == pytest.approx(expected, abs=1e-6)
    assert "is a text" in refused(file, spec, inputs={"observation": "=push"})


def test_a_task_with_other_spaces_is_refused(sac):
    file, _, _ = sac
    assert "observations of the shape [3]; those of this task have [5]" in refused(
        file, SpaceSpec(5, 1, None, -TWO, TWO)
    )
    assert "actions of the kind Box; here they are Discrete(2)" in refused(file, SpaceSpec(3, 1, 2))
    assert "whose low is [-2.0]; here it is [-1.0]" in refused(file, SpaceSpec(3, 1, None, -TWO / 2, TWO / 2))
    three = np.ones(3, np.float32)
    assert "does not fit this task" in refused(file, SpaceSpec(3, 3, None, -three, three))


def test_classes_of_others_are_refused_by_name(sac, tmp_path):
    file, _, _ = sac
    data = json.loads(zipfile.ZipFile(file).read("data"))
    for section, changed, words in (
        ("policy_class", {"__module__": "my_lab.policies"}, "policy class of my_lab.policies"),
        (
            "policy_kwargs",
            {"activation_fn": "<class 'my_lab.Sine'>"},
            "activation_fn=<class 'my_lab.Sine'>, which is no",
        ),
        ("policy_kwargs", {"n_critics": {"of": "another kind"}}, "does not fit this task"),
    ):
        other = json.dumps({**data, section: {**data[section], **changed}}).encode()
        assert words in refused(repacked(file, tmp_path / "other.zip", data=other), PENDULUM)


def test_a_planted_pickle_is_ignored_in_what_is_not_read_and_refused_in_the_weights(sac, tmp_path):
    import base64

    file, model, _ = sac
    bomb = pickle.dumps(Bomb(tmp_path / "executed"), protocol=2)
    data = json.loads(zipfile.ZipFile(file).read("data"))
    for section in data.values():
        if isinstance(section, dict) and ":serialized:" in section:
            section[":serialized:"] = base64.b64encode(bomb).decode()
    planted = repacked(
        file, tmp_path / "planted.zip", data=json.dumps(data).encode(), pytorch_variables_pth=bomb,
        actor_optimizer_pth=bomb,
    )  # fmt: skip
    observations = np.ones((2, 3), np.float32)
    policy = StableBaselinesPolicy(planted, PENDULUM, ExternalConfig())
    assert (actions(policy, observations) == model.predict(observations, deterministic=True)[0]).all()
    inside = io.BytesIO()
    torch.save({"actor.mu.weight": Bomb(tmp_path / "executed")}, inside)
    for weights in (bomb, inside.getvalue()):
        assert "holds more than numbers" in refused(
            repacked(file, tmp_path / "planted.zip", policy_pth=weights), PENDULUM
        )
    assert not (tmp_path / "executed").exists()


def test_a_planted_pickle_in_the_statistics_is_refused(sac, tmp_path):
    file, _, task = sac
    task.extra = Bomb(tmp_path / "executed")
    try:
        task.save(str(tmp_path / "vecnormalize.pkl"))
    finally:
        del task.extra
    assert "it names io.open" in refused(file, PENDULUM, normalizer=str(tmp_path / "vecnormalize.pkl"))
    assert not (tmp_path / "executed").exists()


def test_statistics_are_read_whatever_the_protocol_of_the_pickle(sac, tmp_path):
    _, _, task = sac
    for protocol in (4, 5):
        (tmp_path / "statistics.pkl").write_bytes(pickle.dumps(task, protocol))
        mean, variance = read_normalizer(tmp_path / "statistics.pkl", "x").moments[""]
        assert (mean == task.obs_rms.mean).all()
        assert (variance == task.obs_rms.var).all()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04N.", b"text"])
def test_what_is_neither_a_model_nor_statistics_is_refused(sac, tmp_path, content):
    (tmp_path / "other").write_bytes(content)
    assert "is no model that Stable-Baselines3 saved" in refused(tmp_path / "other", PENDULUM)
    assert "not what VecNormalize.save writes" in refused(sac[0], PENDULUM, normalizer=str(tmp_path / "other"))
    assert "No such file" in refused(tmp_path / "missing.zip", PENDULUM)


def test_statistics_of_other_observations_are_refused(sac, tmp_path):
    task = VecNormalize(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]))
    task.save(str(tmp_path / "cart.pkl"))
    assert "its VecNormalize does not fit" in refused(sac[0], PENDULUM, normalizer=str(tmp_path / "cart.pkl"))
