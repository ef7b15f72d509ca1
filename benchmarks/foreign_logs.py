"""Runs TRL, Stable-Baselines3, CleanRL, rsl_rl and RLlib for seconds, and judges the logs that they write.

    python benchmarks/foreign_logs.py LOGS                 # makes all runs below LOGS, and prints a table of verdicts
    python benchmarks/foreign_logs.py LOGS trl_grpo rllib  # only these
    python benchmarks/foreign_logs.py LOGS --judge         # judges the runs that are there

Every library makes a healthy run and some that are broken on purpose. Models are tiny and made from a configuration, so
nothing is downloaded. It needs an environment with rlpipe and the libraries; TRL has had no PPO trainer since 1.13, and
CleanRL's scripts need an old Gym, so both have a folder of their own:

    pip install trl stable-baselines3 rsl-rl-lib "ray[rllib]"
    pip install --no-deps --target TRL trl==1.12.0                                    # --trl-ppo TRL
    pip install --no-deps --target CLEANRL gym==0.23.1
    pip install --no-deps --ignore-requires-python --target CLEANRL cleanrl==1.2.0    # --cleanrl CLEANRL

Exit code 1 if a run failed, or if a system or verdict is not the expected one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
LEARNING_RATE_FAR_TOO_LARGE = 0.05


def sb3(folder: Path, *, learning_rate: float = 3e-4, nan_after: int = 0, **options: Any) -> None:
    """Trains Stable-Baselines3's PPO on CartPole; it logs to CSV, JSON and TensorBoard."""
    import gymnasium
    from stable_baselines3 import PPO
    from stable_baselines3.common.logger import configure
    from stable_baselines3.common.monitor import Monitor

    class Failing(gymnasium.RewardWrapper):
        """Rewards that are NaN after some steps."""

        steps = 0

        def reward(self, reward: Any) -> Any:
            self.steps += 1
            return float("nan") if nan_after and self.steps > nan_after else reward

    env = Monitor(Failing(gymnasium.make("CartPole-v1")), str(folder / "0"))
    model = PPO(
        "MlpPolicy", env, learning_rate, n_steps=256, n_epochs=4, batch_size=64, seed=0, device="cpu", **options
    )
    model.set_logger(configure(str(folder), ["csv", "json", "tensorboard"]))
    model.learn(10_240)


def tiny_transformer(kind: str) -> Any:
    """Makes a random transformer of about 3,000 parameters."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=16, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=2, num_labels=1,
    )  # fmt: skip
    return (Qwen2ForSequenceClassification if kind == "reward" else Qwen2ForCausalLM)(config)


def tiny_tokenizer() -> Any:
    """Makes a tokenizer of sixteen words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "<bos>", "<unk>", *"abcdefghijkl"]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>",
        padding_side="left",
    )  # fmt: skip


def trl_grpo(folder: Path, *, learning_rate: float = 3e-3, reward: str = "share") -> None:
    """Trains with TRL's GRPO; the reward is the share of the letter a, a constant, or NaN."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def share_of_a(completions: list[str], **_: Any) -> list[float]:
        return {
            "share": [text.split().count("a") / 8 for text in completions],
            "constant": [1.0] * len(completions),
            "nan": [float("nan")] * len(completions),
        }[reward]

    options = GRPOConfig(
        output_dir=str(folder), learning_rate=learning_rate, per_device_train_batch_size=16, num_generations=8,
        max_completion_length=8, max_steps=40, logging_steps=1, save_steps=40, report_to=["tensorboard"], use_cpu=True,
        beta=0.01, bf16=False, disable_tqdm=True, seed=0,
    )  # fmt: skip
    prompts = Dataset.from_dict({"prompt": ["a b", "c d", "e f", "g h"] * 20})
    tiny_transformer("policy").save_pretrained(folder / "model")  # the reference is loaded from there
    GRPOTrainer(
        str(folder / "model"), share_of_a, args=options, train_dataset=prompts, processing_class=tiny_tokenizer()
    ).train()


def trl_ppo(folder: Path, *, learning_rate: float = 3e-3, lr_scheduler_type: str = "linear") -> None:
    """Trains with TRL's PPO; the reward model is a random network."""
    from datasets import Dataset
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    options = PPOConfig(
        output_dir=str(folder), learning_rate=learning_rate, per_device_train_batch_size=16, num_mini_batches=1,
        total_episodes=320, response_length=8, logging_steps=1, save_steps=20, report_to=["tensorboard"], use_cpu=True,
        bf16=False, num_sample_generations=0, disable_tqdm=True, seed=0, lr_scheduler_type=lr_scheduler_type,
    )  # fmt: skip
    tokenizer = tiny_tokenizer()
    prompts = Dataset.from_dict({"input_ids": [tokenizer(text)["input_ids"] for text in ("a b", "c d", "e f") * 16]})
    PPOTrainer(
        options, tokenizer, tiny_transformer("policy"), tiny_transformer("policy"), tiny_transformer("reward"), prompts,
        tiny_transformer("reward"), eval_dataset=prompts.select(range(16)),
    ).train()  # fmt: skip


def cleanrl(folder: Path, *, learning_rate: float = 2.5e-4) -> None:
    """Runs CleanRL's ppo.py on CartPole."""
    script = Path(os.environ["CLEANRL"]) / "cleanrl" / "ppo.py"
    options = [f"--learning-rate={learning_rate}", "--total-timesteps=20480", "--cuda=False"]
    old_numpy = f"import numpy, runpy; numpy.bool8 = numpy.bool_; runpy.run_path({str(script)!r}, run_name='__main__')"
    subprocess.run([sys.executable, "-c", old_numpy, *options], cwd=folder, check=True)


def rsl_rl(folder: Path, *, learning_rate: float = 1e-3, schedule: str = "adaptive") -> None:
    """Trains rsl_rl's PPO to move points to the origin."""
    import torch
    from rsl_rl.env import VecEnv
    from rsl_rl.runners import OnPolicyRunner
    from tensordict import TensorDict

    class Points(VecEnv):
        """Points in a plane; the reward is minus the distance from the origin."""

        num_envs, num_actions, max_episode_length, device = 32, 2, 20, "cpu"

        def __init__(self) -> None:
            self.cfg: dict[str, Any] = {}
            self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)
            self.place = torch.randn(self.num_envs, 2)

        def get_observations(self) -> TensorDict:
            return TensorDict({"policy": self.place.clone()}, batch_size=[self.num_envs])

        def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
            self.place = (self.place + 0.2 * actions.clamp(-1, 1)).clamp(-3, 3)
            self.episode_length_buf += 1
            reward = -self.place.norm(dim=1)
            over = self.episode_length_buf >= self.max_episode_length
            self.place[over] = torch.randn(int(over.sum()), 2)
            self.episode_length_buf[over] = 0
            extras = {"time_outs": over, "log": {"Episode_Reward/distance": reward.mean()}}
            return self.get_observations(), reward, over.long(), extras

    torch.manual_seed(0)
    network = {"class_name": "MLPModel", "hidden_dims": [32], "activation": "elu"}
    settings = {
        "num_steps_per_env": 24,
        "save_interval": 1000,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "algorithm": {"class_name": "PPO", "learning_rate": learning_rate, "schedule": schedule},
        "actor": {**network, "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0}},
        "critic": dict(network),
        "logger": "tensorboard",
    }
    OnPolicyRunner(Points(), settings, log_dir=str(folder)).learn(60)


def rllib(folder: Path, *, learning_rate: float = 3e-4) -> None:
    """Trains RLlib's PPO on CartPole with Tune, which logs to JSON, CSV and TensorBoard."""
    import ray
    from ray import tune
    from ray.rllib.algorithms.ppo import PPOConfig

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0)
        .training(lr=learning_rate, train_batch_size_per_learner=512, minibatch_size=128, num_epochs=4)
        .debugging(seed=0, log_level="ERROR")
    )
    running = tune.RunConfig(storage_path=str(folder), name="tune", stop={"training_iteration": 20}, verbose=0)
    tune.Tuner("PPO", param_space=config, run_config=running).fit()
    ray.shutdown()


@dataclass(frozen=True)
class Run:
    """A run that is made.

    Attributes:
        make: function that trains and logs to a folder.
        system: dialect that diagnose should recognise.
        broken: what is wrong on purpose; empty for a healthy run.
        options: arguments of ``make``.
    """

    make: Callable[..., None]
    system: str
    broken: str
    options: dict[str, Any]


RUNS = {
    "sb3": Run(sb3, "sb3", "", {}),
    "sb3_lr": Run(sb3, "sb3", "learning rate 0.05", {"learning_rate": LEARNING_RATE_FAR_TOO_LARGE}),
    "sb3_entropy": Run(sb3, "sb3", "entropy coefficient -1", {"ent_coef": -1.0, "learning_rate": 3e-3}),
    "sb3_nan": Run(sb3, "sb3", "reward NaN after 2,000 steps", {"nan_after": 2000}),
    "trl_grpo": Run(trl_grpo, "trl", "", {}),
    "trl_grpo_lr": Run(trl_grpo, "trl", "learning rate 0.05", {"learning_rate": LEARNING_RATE_FAR_TOO_LARGE}),
    "trl_grpo_constant": Run(trl_grpo, "trl", "constant reward", {"reward": "constant"}),
    "trl_grpo_nan": Run(trl_grpo, "trl", "reward NaN", {"reward": "nan"}),
    "trl_ppo": Run(trl_ppo, "trl", "", {}),
    "trl_ppo_lr": Run(
        trl_ppo, "trl", "learning rate 0.05",
        {"learning_rate": LEARNING_RATE_FAR_TOO_LARGE, "lr_scheduler_type": "constant"},
    ),
    "cleanrl": Run(cleanrl, "cleanrl", "", {}),
    "cleanrl_lr": Run(cleanrl, "cleanrl", "learning rate 0.05", {"learning_rate": LEARNING_RATE_FAR_TOO_LARGE}),
    "rsl_rl": Run(rsl_rl, "rsl_rl", "", {}),
    "rsl_rl_lr": Run(
        rsl_rl, "rsl_rl", "learning rate 0.05",
        {"learning_rate": LEARNING_RATE_FAR_TOO_LARGE, "schedule": "fixed"},
    ),
    "rllib": Run(rllib, "rllib", "", {}),
    "rllib_lr": Run(rllib, "rllib", "learning rate 0.05", {"learning_rate": LEARNING_RATE_FAR_TOO_LARGE}),
}  # fmt: skip


def made(name: str, folder: Path, options: argparse.Namespace) -> bool:
    """Makes a run in a process of its own; True if the library ended as it should. A run that is broken may raise."""
    folder.mkdir(parents=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    for start, path in {"trl_ppo": options.trl_ppo, "cleanrl": options.cleanrl}.items():
        if name.startswith(start) and path:
            environment["CLEANRL"] = str(path.resolve())
            environment["PYTHONPATH"] = os.pathsep.join([str(path.resolve()), os.environ.get("PYTHONPATH", "")])
    with (folder / "output.txt").open("w") as output:
        command = [sys.executable, __file__, str(folder), "--make", name]
        done = subprocess.run(command, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False)
    return done.returncode == 0


def files_of(folder: Path) -> list[Path]:
    """Returns the log files of a run, and its folder."""
    patterns = ("progress.*", "result.json", "checkpoint-*/trainer_state.json", "*tfevents*")
    return [*(file for pattern in patterns for file in sorted(folder.rglob(pattern))), folder]


def judged(name: str, folder: Path) -> tuple[str, bool]:
    """Returns the lines of the table for a run, one for each judgement, and whether all of them are as expected."""
    from rlpipe.analysis.diagnosis import diagnose
    from rlpipe.errors import ConfigError
    from rlpipe.metrics.descriptions import SYSTEM_TITLES

    run, right = RUNS[name], True
    files: dict[tuple[str, str, str], list[str]] = {}
    for file in files_of(folder):
        kind = "folder" if file == folder else "TensorBoard" if "tfevents" in file.name else f"`{file.name}`"
        try:
            found = diagnose(file)
            why = [f"`{one.metric}` {one.rule}" for one in found.standing if one.level == found.verdict]
            answer = SYSTEM_TITLES[found.dialect], found.verdict, ", ".join(why[:2]) if run.broken else ""
            good = found.dialect == run.system and (found.verdict in ("critical", "warn")) == bool(run.broken)
        except ConfigError as error:
            answer, good = ("none", "none", str(error)), False
        files.setdefault(answer, []).append(kind)
        right = right and good
    lines = [(run.broken or "nothing", ", ".join(kinds), *answer) for answer, kinds in files.items()]
    return "".join(f"| {name} | {' | '.join(cells)} |\n" for cells in lines), right


def main() -> int:
    """Makes and judges the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"any of {', '.join(RUNS)}; default: all")
    parser.add_argument("--judge", action="store_true", help="only judge")
    parser.add_argument("--cleanrl", type=Path, help="folder of CleanRL and its Gym")
    parser.add_argument("--trl-ppo", type=Path, help="folder of a TRL that has a PPO trainer")
    parser.add_argument("--make", choices=RUNS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        RUNS[options.make].make(options.folder, **RUNS[options.make].options)
        return 0
    right = True
    table = (
        "| run | wrong on purpose | files | system | verdict | because of |\n| --- | --- | --- | --- | --- | --- |\n"
    )
    for name in options.runs or RUNS:
        folder = options.folder.resolve() / name
        if not options.judge and not made(name, folder, options) and not RUNS[name].broken:
            print(f"{name} failed: see {folder / 'output.txt'}", file=sys.stderr)
            right = False
        lines, good = judged(name, folder)
        table, right = table + lines, right and good
    print(table)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
