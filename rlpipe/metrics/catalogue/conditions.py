"""Which runs have a metric: groups of algorithms, and what else a run must have.

A new algorithm joins the groups whose metrics it observes; a test compares them with the classes of the algorithms.
"""

CLIPPED = ("ppo", "grpo")
"""Algorithms with a clipped probability ratio: ``ClippedAlgorithm`` observes their metrics."""
VALUE_BASED = ("ppo",)
"""Clipped algorithms with a value function."""
GROUP_RELATIVE = ("grpo",)
"""Clipped algorithms that compare the episodes of a group."""
SOFT_ACTOR_CRITIC = ("sac", "rlpd")
"""Algorithms with a replay buffer and Q networks: ``SAC`` observes their metrics."""
WITH_CRITIC = (*VALUE_BASED, *SOFT_ACTOR_CRITIC)
"""Algorithms that train a critic of any kind."""

NEEDS_ASYNC = "collection beside learning (runner.pipeline=ahead or stream)"
NEEDS_BACKEND_PROCESS = "a backend in a process of its own"
NEEDS_CLONING = "behaviour cloning (rlpipe pretrain)"
NEEDS_CORRECTIONS = "corrections (rlpipe collect --expert) that behaviour cloning learns from"
NEEDS_CURRICULUM = "a curriculum (curriculum.name)"
NEEDS_DEMOS = "demonstrations (demos)"
NEEDS_FAILURE = "a simulator that reports failure"
NEEDS_GROUPS = "a group-relative algorithm"
NEEDS_HINDSIGHT = "hindsight (algorithm.hindsight)"
NEEDS_KL_PENALTY = "a KL penalty in the reward (algorithm.kl_control)"
NEEDS_NONFINITE = "a simulator that has returned an observation with a number that is not finite"
NEEDS_PROXIMAL = "decisions old enough to be corrected (algorithm.correct_from_lag)"
NEEDS_REFERENCE = "a frozen reference policy"
NEEDS_RESTARTS = "workers that can be restarted"
NEEDS_REWARD_MODEL = "a reward model"
NEEDS_REWARD_TERMS = "a simulator that reports reward terms"
NEEDS_SAC = "soft actor-critic (algorithm.name=sac or rlpd)"
NEEDS_SERVERS = "inference on a server"
NEEDS_OBSERVED = "a simulator that observes numbers of its own"
NEEDS_SILENCE = "a simulator that has not told the success of any episode, although it was to"
NEEDS_TASKS = "several tasks (env.train.tasks)"
NEEDS_STREAM = "collection without a barrier (runner.pipeline=stream)"
NEEDS_TOKEN_LEVEL = "a level of tokens (algorithm.logprob_level or entropy_level)"
NEEDS_WIDENING = "ranges that a curriculum widens (curriculum.name=widening)"
NEEDS_TOKENS = "a policy that acts in tokens"
NEEDS_CHUNKS = "policy.chunk_size above 1"
