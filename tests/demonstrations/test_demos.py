"""``rlpipe demos``: what the planner needs, what is said where it is missing, and what is kept of what it makes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpipe.demonstrations import planner_program
from rlpipe.demonstrations.formats.hdf5 import compress, compress_whole
from rlpipe.demonstrations.formats.maniskill import last_attempt
from rlpipe.demonstrations.planner import FIRST_EVALUATION_SEED, compact, make_demonstrations
from rlpipe.demonstrations.planner_process import PlannerError, check_planner, describe, messages
from rlpipe.demonstrations.planner_program import describe_python
from rlpipe.envs.maniskill.loading import load_maniskill
from rlpipe.errors import ConfigError

READY = {
    "python": "3.11.7",
    "system": "Linux",
    "versions": {"numpy": "1.26.4", "mani_skill": "3.0.1", "mplib": "0.1.1"},
    "tasks": ["PickCube-v1", "PlaceSphere-v1"],
}
SHIPPED = sorted(Path("configs/demonstrations").glob("*.h5"))
HERE = os.environ.get("RLPIPE_PLANNER_PYTHON", sys.executable)
"""A Python where the planner may run."""


def program(folder, text, name="python"):
    """An executable script, asked as a Python would be."""
    file = folder / name
    file.write_text(text)
    file.chmod(0o755)
    return str(file)


def answering(folder, then="exit 0", **changes):
    """A Python that tells what it has, and does something else when it is to plan."""
    (folder / "answer").write_text(f"\x1e{json.dumps(READY | changes)}\n")
    return program(folder, f'#!/bin/sh\ncase "$2" in *"def describe_python"*) cat {folder}/answer;; *) {then};; esac\n')


def without(name, version=None):
    return READY["versions"] | {name: version}


def order(folder, python, **changes):
    """Makes the demonstrations that a test asks for."""
    options = {"python": python, "first_seed": 0, "progress": lambda *_: None} | changes
    return make_demonstrations("PickCube-v1", options.pop("count", 4), "pd_ee_delta_pos", folder, **options)


# --- what the planner needs


def test_this_python_says_what_it_has():
    found = describe(sys.executable)
    assert found.versions["numpy"] == np.__version__
    assert found.python == ".".join(map(str, sys.version_info[:3]))


@pytest.mark.maniskill
def test_the_tasks_with_a_planner_are_read_from_maniskill():
    assert {"PickCube-v1", "StackCube-v1", "PlaceSphere-v1"} <= {*describe(sys.executable).tasks}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"versions": without("numpy", "2.4.6")}, "mplib 0.1.1, the planner, crashes without a message under numpy 2"),
        ({"versions": without("mani_skill")}, "mani_skill is not installed"),
        ({"versions": without("mplib")}, "mplib is not installed"),
        ({"versions": without("mplib"), "system": "Darwin"}, "is made for Linux, and this is Darwin"),
    ],
)
@pytest.mark.maniskill
def test_what_is_missing_is_said_with_what_was_found_and_the_commands_that_help(tmp_path, changes, reason):
    python = answering(tmp_path, **changes)
    with pytest.raises(ConfigError) as raised:
        order(tmp_path / "out", python)
    for part in (reason, python, "numpy 2.4.6" if "numpy 2" in reason else "numpy 1.26.4", "venv planner", "'numpy<2'"):
        assert part in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_a_planner_that_knows_numpy_2_may_have_it(tmp_path):
    versions = {"numpy": "2.4.6", "mani_skill": "4.0.0", "mplib": "0.2.1"}
    assert describe(answering(tmp_path, versions=versions)).problems() == []


def test_a_task_without_a_planner_is_told_the_ones_with(tmp_path):
    python = answering(tmp_path)
    with pytest.raises(ConfigError, match=r"no motion planner for 'PickCub-v1'; did you mean 'PickCube-v1'\?"):
        check_planner(python, "PickCub-v1", describe(python))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("#!/bin/sh\necho importing numpy\nkill -SEGV $$\n", r"signal 11 \(SIGSEGV\)[^$]*importing numpy"),
        ("#!/bin/sh\necho no module\nexit 3\n", r"exit code 3[^$]*no module"),
        ("#!/bin/sh\n", "does not behave like a Python interpreter"),
        ("no program\n", "cannot be run: Exec format error"),
    ],
)
def test_an_interpreter_that_does_not_answer_is_named_with_how_it_ended(tmp_path, text, says):
    with pytest.raises(ConfigError, match=says):
        describe(program(tmp_path, text))


def test_an_interpreter_that_does_not_exist_is_named():
    with pytest.raises(ConfigError, match=r"'no/python', which cannot be run: No such file"):
        describe("no/python")


@pytest.mark.parametrize(("first_seed", "count"), [(-1, 1), (0, 0), (FIRST_EVALUATION_SEED - 1, 2)])
@pytest.mark.maniskill
def test_seeds_stay_below_those_of_evaluation(tmp_path, first_seed, count):
    with pytest.raises(ConfigError, match="must lie from 0 to 999999"):
        order(tmp_path / "out", "no/python", first_seed=first_seed, count=count)


@pytest.mark.maniskill
def test_demonstrations_that_are_there_are_not_written_over(tmp_path):
    (tmp_path / "PickCube-v1.h5").write_text("mine")
    with pytest.raises(ConfigError, match="exists"):
        order(tmp_path, "no/python")
    assert (tmp_path / "PickCube-v1.h5").read_text() == "mine"


@pytest.mark.maniskill
def test_the_command_says_what_is_missing_and_exits_with_2(tmp_path):
    python = answering(tmp_path, versions=without("numpy", "2.4.6"))
    command = [sys.executable, "-m", "rlpipe", "demos", "PickCube-v1", "--python", python, "--out", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "rlpipe demos PickCube-v1 --python planner/bin/python" in done.stderr
    assert not (tmp_path / "out").exists()


# --- a process that fails


@pytest.mark.maniskill
def test_a_planner_that_dies_is_told_with_its_signal_and_leaves_nothing(tmp_path):
    python = answering(tmp_path, then="echo the last word; kill -SEGV $$")
    with pytest.raises(PlannerError, match=r"signal 11 \(SIGSEGV\)[^$]*the last word"):
        order(tmp_path / "out", python)
    assert not (tmp_path / "out").exists()


@pytest.mark.maniskill
def test_a_planner_that_gives_up_says_where(tmp_path):
    python = answering(tmp_path, then="""printf '\\036{"tried": 49}\\n\\036{"gave_up_before": 50}\\n'""")
    with pytest.raises(PlannerError, match=r"made 0 demonstrations .* gave up before seed 50: 50 in a row failed"):
        order(tmp_path / "out", python)


def test_whoever_stops_listening_ends_the_process(tmp_path):
    python = program(tmp_path, "#!/bin/sh\nprintf '\\036{\"pid\": %d}\\n' $$\nexec sleep 600\n")
    running = messages(python, describe_python)
    pid = next(running)["pid"]
    running.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# --- what is kept

STAND_IN = '''#!{python}
"""Plans at once: writes files as ManiSkill's commands do. Converting loses every third seed, as a control mode may."""
import ast, json, pathlib, re, sys
import h5py, numpy as np

text = sys.argv[2]
if "def describe_python" in text:
    print({answer!r})
    sys.exit()
asked = json.loads(ast.literal_eval(re.search(r"json\\.loads\\((.*)\\)\\)$", text)[1]))
folder = pathlib.Path(asked["folder"], asked["task"], "motionplanning")
folder.mkdir(parents=True)
seeds = range(asked["first_seed"], asked["first_seed"] + asked["count"])
for seed in seeds:
    print("\\x1e" + json.dumps({{"tried": seed}}))
kept = [seed for seed in seeds if seed % 3]
with h5py.File(folder / "plan.state.x.physx_cpu.h5", "w") as out:
    for index, seed in enumerate(kept):
        group = out.create_group(f"traj_{{index}}")
        group["obs"], group["actions"] = np.full((4, 42), seed, np.float32), np.zeros((3, 4), np.float32)
        group["success"] = group["terminated"] = np.array([False, False, True])
        group["truncated"] = np.zeros(3, bool)
episodes = [{{"episode_id": i, "episode_seed": seed, "elapsed_steps": 3}} for i, seed in enumerate(kept)]
info = {{"env_id": asked["task"], "env_kwargs": {{"control_mode": asked["control_mode"], "reward_mode": "sparse"}}}}
(folder / "plan.state.x.physx_cpu.json").write_text(json.dumps({{"episodes": episodes, "env_info": info}}))
print("\\x1e" + json.dumps({{"doing": "converting", "made": len(kept)}}))
'''


@pytest.mark.maniskill
def test_what_the_control_mode_loses_is_made_up_for_from_the_next_seeds(tmp_path):
    python = program(tmp_path, STAND_IN.format(python=sys.executable, answer=f"\x1e{json.dumps(READY)}"))
    heard = []
    made = order(tmp_path / "out", python, first_seed=7, count=9, progress=lambda *told: heard.append(told))
    assert made.seeds == [7, 8, 10, 11, 13, 14, 16, 17, 19]
    assert (made.trajectories, made.steps, made.longest) == (9, 27, 3)
    assert heard[0] == ("planning, seed 7", 0, 9)
    assert heard[9] == ("converting", 6, 9)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["PickCube-v1.h5", "PickCube-v1.json"]


def raw(folder, *trajectories, name="plan"):
    """A file as ManiSkill writes it; each trajectory is (seed, successes, terminations) of its steps."""
    file = folder / f"{name}.h5"
    episodes = []
    with h5py.File(file, "w") as out:
        for index, (seed, success, terminated) in enumerate(trajectories):
            group = out.create_group(f"traj_{index}")
            steps = len(success)
            group["obs"] = np.arange((steps + 1) * 2, dtype=np.float64).reshape(steps + 1, 2)
            group["actions"] = np.arange(steps, dtype=np.float32)[:, None]
            group["success"], group["terminated"] = np.array(success, bool), np.array(terminated, bool)
            group["truncated"], group["env_states/actors/cube"] = np.zeros(steps, bool), np.ones((steps + 1, 13))
            episodes.append({"episode_id": index, "episode_seed": seed, "elapsed_steps": steps, "success": True})
    text = json.dumps({"episodes": episodes, "env_info": {"env_id": "Reach-v1"}, "commit_info": None})
    file.with_suffix(".json").write_text(text)
    return file


def test_only_what_is_learnt_from_is_kept(tmp_path):
    compact([raw(tmp_path, (3, [0, 0, 1], [0, 0, 1]))], tmp_path / "out.h5", 1, "by hand")
    with h5py.File(tmp_path / "out.h5") as file:
        kept = file["traj_0"]
        assert {name: (kept[name].shape, kept[name].dtype.str) for name in kept} == {
            "obs": ((4, 2), "<f4"),
            "actions": ((3, 1), "<f4"),
            "success": ((3,), "|b1"),
            "terminated": ((3,), "|b1"),
        }
        assert kept["obs"][:].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    told = json.loads((tmp_path / "out.json").read_text())
    assert (told["env_info"], told["source_desc"]) == ({"env_id": "Reach-v1"}, "by hand")


@pytest.mark.parametrize("write", [compress, compress_whole])
def test_arrays_beyond_a_kilobyte_are_compressed(tmp_path, write):
    with h5py.File(tmp_path / "out.h5", "w") as file:
        for numbers in (256, 257):
            write(file, str(numbers), np.arange(numbers, dtype=np.float32))
        assert {name: array.compression for name, array in file.items()} == {"256": None, "257": "gzip"}
        assert file["256"][:].tolist() == list(range(256))


def test_files_are_joined_in_order_and_numbered_anew_up_to_as_many_as_were_asked_for(tmp_path):
    solved = ([0, 1], [0, 1])
    files = [raw(tmp_path, (5, *solved), (6, *solved)), raw(tmp_path, (8, *solved), (9, *solved), name="more")]
    compact(files, tmp_path / "out.h5", 3, "")
    told = json.loads((tmp_path / "out.json").read_text())["episodes"]
    assert [(episode["episode_id"], episode["episode_seed"]) for episode in told] == [(0, 5), (1, 6), (2, 8)]
    with h5py.File(tmp_path / "out.h5") as file:
        assert sorted(file) == ["traj_0", "traj_1", "traj_2"]


def test_a_failed_attempt_that_maniskill_left_in_front_of_a_trajectory_is_cut_off(tmp_path):
    joined = (3, [0, 0, 0, 0, 1], [0, 1, 0, 0, 1])  # two steps that came to nothing, then three of another seed
    compact([raw(tmp_path, joined)], tmp_path / "out.h5", 1, "")
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["traj_0/actions"][:, 0].tolist() == [2, 3, 4]
        assert file["traj_0/obs"][:, 0].tolist() == [4, 6, 8, 10]
    assert json.loads((tmp_path / "out.json").read_text())["episodes"][0]["elapsed_steps"] == 3


def test_a_task_that_ends_by_failure_is_one_attempt():
    success, terminated, failure = (np.array(flags, bool) for flags in ([0, 0, 1], [0, 1, 1], [0, 1, 0]))
    assert last_attempt(success, terminated, failure) == 0
    assert last_attempt(success, terminated) == 2


@given(attempts=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_of_any_number_of_attempts_the_last_one_is_kept(attempts):
    marks = np.zeros(sum(attempts), bool)
    marks[np.cumsum(attempts) - 1] = True
    success = np.zeros_like(marks)
    success[-1] = True
    assert last_attempt(success, marks) == sum(attempts[:-1])


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_demonstrations_begin_where_their_episode_began_and_below_evaluation(file):
    episodes = json.loads(file.with_suffix(".json").read_text())["episodes"]
    with h5py.File(file) as shown:
        assert len(shown) == len(episodes)
        for episode in episodes:
            trajectory = shown[f"traj_{episode['episode_id']}"]
            assert last_attempt(trajectory["success"][:], trajectory["terminated"][:]) == 0
            assert len(trajectory["actions"]) == episode["elapsed_steps"]
    assert max(episode["episode_seed"] for episode in episodes) < FIRST_EVALUATION_SEED


# --- the planner itself

IS_GRASPED = 18
"""Part of PickCube's observation. At a reset it still belongs to the last episode: ManiSkill reads the old contacts."""


@pytest.mark.maniskill
def test_the_planner_makes_demonstrations_whose_seeds_lead_to_where_they_begin(tmp_path):
    if problems := describe(HERE).problems():
        pytest.skip(f"{HERE}: {'; '.join(problems)} (RLPIPE_PLANNER_PYTHON may name another Python)")
    made = order(tmp_path / "out", HERE, first_seed=11, count=2)
    assert made.trajectories == 2
    assert min(made.seeds) >= 11

    from rlpipe.envs.maniskill import ManiSkill
    from rlpipe.envs.maniskill.options import ManiSkillConfig

    upcoming = iter(made.seeds)
    config = ManiSkillConfig("maniskill", id="PickCube-v1", control_mode="pd_ee_delta_pos")
    simulator = ManiSkill.make(config, 2, lambda _: next(upcoming))
    first, _ = simulator.reset()
    simulator.close()
    with h5py.File(made.file) as file:
        for index in range(2):
            shown = file[f"traj_{index}/obs"][0]
            assert np.delete(shown, IS_GRASPED) == pytest.approx(np.delete(first[index], IS_GRASPED), abs=1e-6)


def load_and_report() -> None:
    """Loads ManiSkill in the planner's process."""
    print("rendering", load_maniskill())


@pytest.mark.soak
def test_the_planners_program_holds_all_that_it_needs_to_load_maniskill():
    source = planner_program.program(load_and_report, {})
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=600, check=False)
    assert (ended.stdout.strip(), ended.returncode) == ("rendering False", 0), ended.stderr
