"""Tries files with the library robomimic: ``python robomimic_data.py write OUT TRUTH`` or ``read FILE TRUTH``.

``write`` has its script ``dataset_states_to_obs`` extract what is observed from states and actions, in a task of this
module. ``read`` opens what rlpipe wrote with its ``SequenceDataset``. ``TRUTH`` is an archive of NumPy's with the
columns ``NUMBER/NAME`` of the episodes. Prints a row for each check as JSON.
"""

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import robomimic.envs.env_base as bases
import robomimic.utils.env_utils as EnvUtils
import robomimic.utils.file_utils as FileUtils
import robomimic.utils.obs_utils as ObsUtils
from robomimic.scripts.dataset_states_to_obs import dataset_states_to_obs
from robomimic.utils.dataset import SequenceDataset


class Reach(bases.EnvBase):
    """Task of a hand in a plane that moves by its actions, and succeeds in the distance 0.1 of a cube at (0.5, 0.5)."""

    def __init__(self, env_name: str = "Reach", **options: Any) -> None:
        self._name, self._options = env_name, options
        self._hand = np.zeros(2)

    def get_observation(self) -> dict[str, Any]:
        cube = np.array([0.5, 0.5])
        return {"robot0_eef_pos": self._hand.copy(), "object": np.concatenate([cube, cube - self._hand])}

    def reset(self) -> dict[str, Any]:
        return self.reset_to({"states": np.zeros(2)})

    def reset_to(self, state: dict[str, Any]) -> dict[str, Any]:
        self._hand = np.array(state["states"])
        return self.get_observation()

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, dict[str, Any]]:
        self._hand = self._hand + action
        return self.get_observation(), self.get_reward(), self.is_done(), {}

    def get_state(self) -> dict[str, Any]:
        return {"states": self._hand.copy()}

    def is_success(self) -> dict[str, bool]:
        return {"task": bool(np.linalg.norm(self._hand - 0.5) < 0.1)}

    def get_reward(self) -> float:
        return float(self.is_success()["task"])

    def is_done(self) -> bool:
        return self.is_success()["task"]

    def serialize(self) -> dict[str, Any]:
        return {"env_name": self.name, "type": self.type, "env_kwargs": self._options}

    def render(self, **_: Any) -> None:
        raise NotImplementedError  # robomimic asks for it in rollouts alone, and there are none

    def get_goal(self) -> None:
        raise NotImplementedError  # robomimic asks for it in rollouts alone, and there are none

    def set_goal(self, **_: Any) -> None:
        raise NotImplementedError  # robomimic asks for it in rollouts alone, and there are none

    @classmethod
    def create_for_data_processing(cls, **_: Any) -> "Reach":
        return cls(control_freq=20)

    @property
    def name(self) -> str:
        return self._name

    @property
    def action_dimension(self) -> int:
        return 2

    @property
    def rollout_exceptions(self) -> tuple[Any, ...]:
        return ()

    @property
    def type(self) -> int:
        return bases.EnvType.GYM_TYPE


def write(out: str, truth: str) -> list[dict[str, Any]]:
    """Extracts observations of two episodes, in five and six steps, with the script of the library."""
    raw = Path(out).with_name("raw.hdf5")
    with h5py.File(raw, "w") as file:
        for number, length in enumerate((5, 6)):
            actions = np.full((length, 2), 0.5 / length)
            file[f"data/demo_{number}/actions"] = actions
            file[f"data/demo_{number}/states"] = np.cumsum(actions, axis=0) - actions
        file["data"].attrs["env_args"] = json.dumps(Reach(control_freq=20).serialize())
    EnvUtils.create_env_for_data_processing = lambda **_: Reach(control_freq=20)
    dataset_states_to_obs(Namespace(
        dataset=str(raw), output_name=Path(out).name, camera_names=[], camera_height=0, camera_width=0, shaped=False,
        n=None, done_mode=2, copy_rewards=False, copy_dones=False, compress=False, exclude_next_obs=False,
    ))  # fmt: skip
    raw.unlink()
    held: dict[str, Any] = {}
    with h5py.File(out) as file:
        for number in range(2):
            group = file[f"data/demo_{number}"]
            held |= {f"{number}/{name}": group[name][:] for name in ("actions", "rewards", "dones", "states")}
            held |= {f"{number}/{kind}/{name}": group[kind][name][:] for kind in ("obs", "next_obs") for name in
                     group[kind]}  # fmt: skip
    np.savez_compressed(truth, **held)
    return [{"check": "its script writes", "passed": True, "numbers": "2 episodes, 11 steps"}]


def read(path: str, truth: str) -> list[dict[str, Any]]:
    """Opens a file with the library's dataset, and compares every step."""
    with np.load(truth) as held:
        columns = {name: held[name] for name in held.files}
    leaves = sorted({name.split("/")[2] for name in columns if "/obs/" in name})
    ObsUtils.initialize_obs_utils_with_obs_specs({"obs": {"low_dim": leaves, "rgb": []}})
    env = FileUtils.get_env_metadata_from_dataset(path)
    shapes = FileUtils.get_shape_metadata_from_dataset(path, all_obs_keys=leaves)
    dataset = SequenceDataset(
        hdf5_path=path, obs_keys=leaves, dataset_keys=["actions", "rewards", "dones"], load_next_obs=True
    )
    problems, start = [], 0
    count = 1 + max(int(name.partition("/")[0]) for name in columns)
    for number in range(count):
        length = len(columns[f"{number}/actions"])
        for row in range(length):
            item = dataset[start + row]
            found = {name: item[name] for name in ("actions", "rewards", "dones")}
            found |= {f"{kind}/{leaf}": item[kind][leaf] for kind in ("obs", "next_obs") for leaf in leaves}
            for name, values in found.items():
                if not np.array_equal(np.ravel(values), np.ravel(columns[f"{number}/{name}"][row])):
                    problems.append(f"episode {number}, row {row}: {name}")
        start += length
    numbers = f"{count} episodes, {len(dataset)} steps; task {env['env_name']}, {shapes['ac_dim']} numbers an action"
    passed = not problems and len(dataset) == start
    return [{"check": "values", "passed": passed, "numbers": "; ".join([numbers, *problems[:3]])}]


print(json.dumps({"write": write, "read": read}[sys.argv[1]](*sys.argv[2:])))
