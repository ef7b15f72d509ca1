"""At the level of tokens, what TRL calls entropy, kl and clip ratios are means over all tokens that were taken."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlpipe.algorithms.grpo import GRPO, GRPOConfig, GRPOSamples
from rlpipe.functional.levels import at_level
from rlpipe.metrics import CATALOGUE, MetricWindow
from rlpipe.metrics.dialects import Dialect
from rlpipe.metrics.on_device import DeviceObservations, MinibatchSizes
from rlpipe.policies.tokens import TokenConfig, TokenPolicy
from rlpipe.trajectory import SpaceSpec

STEPS = torch.tensor([3, 1, 2, 3, 2, 1])  # of chunks of three actions with two tokens each
ADVANTAGES = torch.tensor([1.0, -1.0, 2.0, -2.0, 0.5, -0.5])
SIZES = [4, 2]  # minibatches that are not alike


def policy_and_samples(decoding: str) -> tuple[TokenPolicy, GRPOSamples]:
    """A policy that has left the one before the update, which was the reference a while ago."""
    torch.manual_seed(0)
    bound = np.ones(2, dtype=np.float32)
    options = {"hidden_sizes": [8], "bins": 5, "slot_width": 8, "decoding": decoding, "decoder_heads": 2}
    spec = SpaceSpec(3, 2, None, -bound, bound).chunked(3)
    policy = TokenPolicy(TokenConfig("tokens", chunk_size=3, **options), spec)
    observations, actions = torch.randn(6, 3), 2 * torch.rand(6, 6) - 1
    log_probs = []
    for _ in range(2):
        with torch.no_grad():
            log_probs.append(at_level(policy.evaluate_parts(observations, actions)[0], STEPS, "token").values)
            for parameter in policy.actor_parameters():
                parameter += 0.1 * torch.randn_like(parameter)
    reference, old = log_probs
    samples = GRPOSamples(
        observations, actions, old.sum(1), ADVANTAGES, torch.arange(6), torch.arange(6), torch.ones(6),
        ref_log_probs=reference, num_steps=STEPS, old_units=old,
    )  # fmt: skip
    return policy, samples


def measured(policy: TokenPolicy, samples: GRPOSamples) -> MetricWindow:
    """Observations of an update on two minibatches."""
    algorithm = GRPO(GRPOConfig("grpo", logprob_level="token", entropy_level="token", kl_beta=0.1))
    parts = torch.split(torch.arange(6), SIZES)
    losses = [algorithm.loss(policy, samples.select(part)) for part in parts]
    terms = {name: torch.cat([loss.terms[name] for loss in losses]) for name in losses[0].terms}
    observations, window = DeviceObservations(CATALOGUE.values()), MetricWindow()
    with torch.no_grad():
        observed = algorithm.measure(samples, torch.arange(6), terms)
        observations.add_update(observed, samples.trajectory, MinibatchSizes(SIZES, SIZES, 2))
        observations.reduce(window)
    return window


def written(policy: TokenPolicy, samples: GRPOSamples) -> tuple[dict[str, float], dict[str, float]]:
    """Metrics of an update on two minibatches, in TRL's names and in ours."""
    window = measured(policy, samples)
    row = window.read(CATALOGUE.values())
    return Dialect("trl").write(row, window.states), row


@pytest.mark.parametrize("decoding", ["parallel", "autoregressive"])
def test_they_are_means_over_tokens_recomputed_one_by_one(decoding):
    policy, samples = policy_and_samples(decoding)
    parts, entropies = (each.detach().double() for each in policy.evaluate_parts(samples.observations, samples.actions))
    old, reference = samples.old_units.view(6, 3, 2).double(), samples.ref_log_probs.view(6, 3, 2).double()
    tokens = []
    for b in range(6):
        for step in range(STEPS[b]):
            for d in range(2):
                x = (reference[b, step, d] - parts[b, step, d]).item()
                ratio = (parts[b, step, d] - old[b, step, d]).exp().item()
                low, high = ratio < 0.8 and ADVANTAGES[b] < 0, ratio > 1.28 and ADVANTAGES[b] > 0
                tokens.append((entropies[b, step, d].item(), np.exp(x) - x - 1, low, high, low or high))
    assert len(tokens) == 24
    theirs, ours = written(policy, samples)
    keys = ["entropy", "kl", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"]
    expected = np.array(tokens, dtype=float).mean(0)
    assert 0 < expected[4] < 1
    assert [theirs[key] for key in keys] == pytest.approx(expected, rel=1e-4)
    for d in range(2):
        of_dimension = np.mean([entropies[b, :, d][: STEPS[b]].sum().item() for b in range(6)]) * 6 / 12
        assert ours[f"train/actor/entropy/dim_{d}"] == pytest.approx(of_dimension, rel=1e-5)


def test_never_taken_tokens_change_nothing():
    policy, samples = policy_and_samples("parallel")
    before, _ = written(policy, samples)
    samples.actions[1, 2:] = 0.9  # of the second decision, one action of two tokens was taken
    assert written(policy, samples)[0] == before


@pytest.mark.parametrize(("decision", "token", "shows"), [(1, 1, True), (1, 2, False)])
def test_a_log_probability_that_is_not_a_number_shows_where_the_token_was_taken(decision, token, shows):
    policy, samples = policy_and_samples("parallel")
    samples.old_units[decision, token] = torch.nan  # the first of three actions was taken, so two of six tokens
    assert ("train/actor/approx_kl" in measured(policy, samples).nonfinite()) == shows
    algorithm = GRPO(GRPOConfig("grpo", logprob_level="token"))
    divergence = algorithm.divergence(algorithm.loss(policy, samples).terms)
    assert (len(divergence), divergence.isnan().sum()) == (24, int(shows))
