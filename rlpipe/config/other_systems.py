"""Names of options in other systems, and the keys that stand for them here.

docs/coming_from.md says more about each; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping

_LIMITS = ("algorithm.clip_ratio_low", "algorithm.clip_ratio_high")
_ENVS = ("env.train.total_num_envs",)
_PPO = {
    "gamma": ("algorithm.discount",),
    "gae_lambda": ("algorithm.gae_lambda",),
    "ent_coef": ("algorithm.entropy_coef",),
    "vf_coef": ("algorithm.value_coef",),
    "max_grad_norm": ("learner.max_grad_norm",),
    "target_kl": ("algorithm.target_kl",),
    "learning_rate": ("learner.lr",),
    "total_timesteps": ("runner.total_timesteps",),
    "seed": ("runner.seed",),
}
_OFF_POLICY = {
    "buffer_size": ("algorithm.replay_capacity",),
    "learning_starts": ("algorithm.learning_starts",),
    "tau": ("algorithm.target_rate",),
}
OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "Stable-Baselines3": {
        **_PPO,
        **_OFF_POLICY,
        "n_envs": _ENVS,
        "n_steps": ("rollout.horizon",),
        "batch_size": ("algorithm.num_minibatches",),
        "n_epochs": ("algorithm.update_epochs",),
        "clip_range": _LIMITS,
        "clip_range_vf": ("algorithm.value_clip",),
        "normalize_advantage": ("algorithm.normalize_advantages",),
        "net_arch": ("policy.hidden_sizes",),
        "train_freq": ("algorithm.update_to_data",),
        "gradient_steps": ("algorithm.update_to_data",),
        "n_eval_episodes": ("evaluation.episodes",),
        "eval_freq": ("runner.val_check_interval",),
    },
    "CleanRL": {
        **_PPO,
        **_OFF_POLICY,
        "env_id": ("env.train.id",),
        "num_envs": _ENVS,
        "num_steps": ("rollout.horizon",),
        "num_minibatches": ("algorithm.num_minibatches",),
        "update_epochs": ("algorithm.update_epochs",),
        "clip_coef": _LIMITS,
        "clip_vloss": ("algorithm.value_clip",),
        "norm_adv": ("algorithm.normalize_advantages",),
        "anneal_lr": ("learner.lr_schedule",),
        "policy_lr": ("learner.lr",),
        "q_lr": ("learner.critic_lr",),
        "exp_name": ("runner.logger.experiment_name",),
        "wandb_project_name": ("runner.logger.project_name",),
        "cuda": ("learner.device",),
    },
    "RLlib": {
        "env": ("env.train.id",),
        "num_env_runners": ("rollout.num_workers",),
        "num_envs_per_env_runner": _ENVS,
        "rollout_fragment_length": ("rollout.horizon",),
        "train_batch_size": ("rollout.horizon", *_ENVS),
        "train_batch_size_per_learner": ("rollout.horizon", *_ENVS),
        "num_epochs": ("algorithm.update_epochs",),
        "num_sgd_iter": ("algorithm.update_epochs",),
        "minibatch_size": ("algorithm.num_minibatches",),
        "sgd_minibatch_size": ("algorithm.num_minibatches",),
        "gamma": ("algorithm.discount",),
        "lambda_": ("algorithm.gae_lambda",),
        "lambda": ("algorithm.gae_lambda",),
        "clip_param": _LIMITS,
        "vf_loss_coeff": ("algorithm.value_coef",),
        "entropy_coeff": ("algorithm.entropy_coef",),
        "use_kl_loss": ("algorithm.target_kl",),
        "kl_coeff": ("algorithm.target_kl",),
        "kl_target": ("algorithm.target_kl",),
        "lr": ("learner.lr",),
        "grad_clip": ("learner.max_grad_norm",),
        "num_learners": ("learner.num_learners",),
        "evaluation_interval": ("runner.val_check_interval",),
        "evaluation_duration": ("evaluation.episodes",),
    },
    "TRL": {
        "num_generations": ("algorithm.group_size",),
        "num_iterations": ("algorithm.update_epochs",),
        "num_ppo_epochs": ("algorithm.update_epochs",),
        "epsilon": ("algorithm.clip_ratio_low",),
        "epsilon_high": ("algorithm.clip_ratio_high",),
        "delta": ("algorithm.dual_clip",),
        "beta": ("algorithm.kl_beta",),
        "importance_sampling_level": ("algorithm.logprob_level",),
        "max_completion_length": ("env.train.max_episode_steps",),
        "learning_rate": ("learner.lr",),
        "max_grad_norm": ("learner.max_grad_norm",),
        "model": ("policy.name", "policy.model"),
        "peft_config": ("policy.adapters",),
    },
    "RLinf": {
        "runner.max_epochs": ("runner.total_timesteps",),
        "runner.resume_dir": ("rlpipe train --resume RUN",),
        "env.train.max_steps_per_rollout_epoch": ("rollout.horizon",),
        "algorithm.rollout_epoch": ("rollout.horizon",),
        "algorithm.gamma": ("algorithm.discount",),
        "algorithm.update_epoch": ("algorithm.update_epochs",),
        "actor.global_batch_size": ("algorithm.num_minibatches",),
        "algorithm.clip_ratio_c": ("algorithm.dual_clip",),
        "algorithm.entropy_bonus": ("algorithm.entropy_coef",),
        "algorithm.reward_type": ("algorithm.reward_level",),
        "algorithm.logprob_type": ("algorithm.logprob_level",),
        "algorithm.entropy_type": ("algorithm.entropy_level",),
        "actor.optim.lr": ("learner.lr",),
        "actor.optim.value_lr": ("learner.critic_lr",),
        "actor.optim.clip_grad": ("learner.max_grad_norm",),
    },
}
"""Our keys by the name of an option in another system, without the folders in which systems other than RLinf put it."""


VALUES: dict[str, dict[str, str]] = {
    "learner.lr_schedule": {
        **dict.fromkeys(("cosine", "cosine_annealing", "polynomial", "exponential", "anneal", "decay"), "linear"),
        **dict.fromkeys(("fixed", "none", "constant_with_warmup"), "constant"),
    },
    "policy.activation": {**dict.fromkeys(("swish", "gelu", "mish", "elu"), "silu"), "leaky_relu": "relu"},
    "learner.precision": {**dict.fromkeys(("bf16", "fp16", "float16"), "bfloat16"), "fp32": "float32"},
}
"""The nearest value of a key, by values that such an option has in other systems."""


def our_keys(key: str) -> Mapping[str, tuple[str, ...]]:
    """Returns the keys that stand for an unknown key, with ``-`` or ``_``, by the systems that have the name."""
    full = key.replace("-", "_")
    last = full.rpartition(".")[2]
    keys = {system: names.get(full) or names.get(last, ()) for system, names in OPTIONS.items()}
    return {system: ours for system, ours in keys.items() if ours and full not in ours}


def translation(key: str) -> str:
    """Returns the middle of a sentence about an unknown key: what it is called here; empty where nobody knows it."""
    systems_by_keys: dict[tuple[str, ...], list[str]] = {}
    for system, ours in our_keys(key).items():
        systems_by_keys.setdefault(ours, []).append(system)
    name = key.rpartition(".")[2]
    said = [
        f"what {', '.join(systems)} call{'s' * (len(systems) == 1)} {name} is {' and '.join(ours)} here"
        for ours, systems in systems_by_keys.items()
    ]
    return f"; {', '.join(said)} (docs/coming_from.md)." if said else ""


def nearest_value(key: str, value: str) -> str:
    """Returns the middle of a sentence about a value that is usual elsewhere, in any case; empty for any other."""
    ours = VALUES.get(key, {}).get(value.lower().replace("-", "_"))
    return f"; the nearest here is {ours!r}." if ours else ""
