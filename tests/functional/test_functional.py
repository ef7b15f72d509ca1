"""The pure functions: advantages, losses, diagnostics, intervals. Numbers small enough to check by eye, and laws."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlpipe.functional.advantages import gae, normalize
from rlpipe.functional.diagnostics import approx_kl, approx_kl_k1, approx_kl_k2, clip_fraction, explained_variance
from rlpipe.functional.groups import equal_groups, group_advantages, group_deviations
from rlpipe.functional.intervals import wilson_interval
from rlpipe.functional.losses import PolicyLoss, behaviour_weights, clipped_value_loss, ppo_policy_loss
from rlpipe.functional.reference import kl_rewards, reference_kl, reference_kl_k1

law = settings(deadline=None)  # the first example pays for torch's start


def steps(*values: float) -> Tensor:
    """[T, 1] numbers of one environment."""
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def flags(*values: int) -> Tensor:
    """[T, 1] bool of one environment."""
    return torch.tensor(values, dtype=torch.bool).unsqueeze(1)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# --- gae


def test_advantages_by_hand():
    # deltas 1 + 0.5 * 2 - 4 = -2 and 3 + 0.5 * 8 - 2 = 5; the first then takes 0.5 * 0.5 of the second
    advantages = gae(steps(1, 3), steps(4, 2), steps(2, 8), flags(0, 0), flags(0, 0), discount=0.5, gae_lambda=0.5)
    assert advantages.flatten().tolist() == [-2 + 0.25 * 5, 5]


def test_a_time_limit_keeps_the_value_of_the_state_it_cut_off():
    advantages = gae(
        rewards=steps(1, 1),
        values=steps(0, 0),
        next_values=steps(8, 0),
        terminated=flags(0, 0),
        truncated=flags(1, 0),
        discount=0.5,
        gae_lambda=1.0,
    )
    assert advantages[0].item() == 1 + 0.5 * 8


def test_a_termination_removes_the_value_of_the_next_state():
    advantages = gae(steps(1, 1), steps(0, 0), steps(8, 0), flags(1, 0), flags(0, 0), discount=0.5, gae_lambda=1.0)
    assert advantages[0].item() == 1


def test_termination_wins_where_a_time_limit_falls_on_the_same_step():
    advantages = gae(steps(1, 1), steps(0, 0), steps(8, 0), flags(1, 0), flags(1, 0), discount=0.5, gae_lambda=1.0)
    assert advantages[0].item() == 1


@pytest.mark.parametrize(("terminated", "truncated"), [(1, 0), (0, 1), (1, 1)])
def test_no_reward_crosses_the_end_of_an_episode(terminated, truncated):
    advantages = gae(
        steps(0, 0, 100), steps(0, 0, 0), steps(0, 0, 0), flags(0, terminated, 0), flags(0, truncated, 0),
        discount=1.0, gae_lambda=1.0,
    )  # fmt: skip
    assert advantages.flatten().tolist() == [0, 0, 100]


def test_the_last_step_of_a_fragment_counts_the_value_of_what_comes_next():
    advantages = gae(steps(1), steps(2), steps(10), flags(0), flags(0), discount=0.5, gae_lambda=0.9)
    assert advantages.item() == 1 + 0.5 * 10 - 2


def test_advantages_keep_the_precision_they_were_given_in():
    for dtype in (torch.float32, torch.float64):
        ones = torch.ones(3, 2, dtype=dtype)
        never = torch.zeros(3, 2, dtype=torch.bool)
        assert gae(ones, ones, ones, never, never, discount=0.9, gae_lambda=0.9).dtype == dtype


def reals(bound: float = 100.0) -> st.SearchStrategy[float]:
    return st.floats(-bound, bound, allow_subnormal=False)


@st.composite
def fragments(draw: st.DrawFn, envs: int = 1) -> dict[str, Tensor]:
    """Inputs of ``gae`` in which the next value is V of the next row, except where an episode ends."""
    length = draw(st.integers(1, 6))

    def column(element: st.SearchStrategy, dtype: torch.dtype, rows: int = length) -> Tensor:
        drawn = draw(st.lists(element, min_size=rows * envs, max_size=rows * envs))
        return torch.tensor(drawn, dtype=dtype).view(rows, envs)

    values = column(reals(), torch.float64, length + 1)
    terminated, truncated = column(st.booleans(), torch.bool), column(st.booleans(), torch.bool)
    successors = column(reals(), torch.float64)
    return {
        "rewards": column(reals(), torch.float64),
        "values": values[:-1],
        "next_values": torch.where(terminated | truncated, successors, values[1:]),
        "terminated": terminated,
        "truncated": truncated,
    }


fractions = st.floats(0.0, 1.0, allow_subnormal=False)


@law
@given(fragments(), fractions)
def test_with_lambda_1_an_advantage_is_the_discounted_return_minus_the_value(fragment, discount):
    f = {name: column.flatten().tolist() for name, column in fragment.items()}
    expected: list[float] = []
    discounted_return = f["next_values"][-1]
    for t in reversed(range(len(f["rewards"]))):
        if f["terminated"][t]:
            discounted_return = 0.0
        elif f["truncated"][t]:
            discounted_return = f["next_values"][t]
        discounted_return = f["rewards"][t] + discount * discounted_return
        expected.insert(0, discounted_return - f["values"][t])
    advantages = gae(**fragment, discount=discount, gae_lambda=1.0)
    assert advantages.flatten().tolist() == pytest.approx(expected, rel=1e-12, abs=1e-10)


@law
@given(fragments(), fractions)
def test_with_lambda_0_an_advantage_is_the_one_step_error(fragment, discount):
    future = torch.where(fragment["terminated"], 0.0, fragment["next_values"])
    deltas = fragment["rewards"] + discount * future - fragment["values"]
    assert torch.equal(gae(**fragment, discount=discount, gae_lambda=0.0), deltas)


@law
@given(fragments(envs=2), reals(1e9), fractions, fractions)
def test_an_environment_does_not_influence_another(fragment, noise, discount, gae_lambda):
    changed = {name: column.clone() for name, column in fragment.items()}
    for column in changed.values():
        column[:, 1] = ~column[:, 1] if column.dtype == torch.bool else column[:, 1] + noise
    before = gae(**fragment, discount=discount, gae_lambda=gae_lambda)
    after = gae(**changed, discount=discount, gae_lambda=gae_lambda)
    assert torch.equal(before[:, 0], after[:, 0])


@law
@given(fragments(), fractions, fractions)
def test_what_came_before_the_end_of_an_episode_does_not_know_what_comes_after(fragment, discount, gae_lambda):
    fragment["truncated"][0] = True
    whole = gae(**fragment, discount=discount, gae_lambda=gae_lambda)
    first = gae(**{name: rows[:1] for name, rows in fragment.items()}, discount=discount, gae_lambda=gae_lambda)
    assert torch.equal(whole[:1], first)


# --- normalize


def test_normalised_by_hand():
    # mean 2, deviation 2 because ((-2)^2 + 0 + 2^2) / (3 - 1) = 4
    assert normalize(numbers(0, 2, 4), torch.ones(3, dtype=torch.bool), eps=0.0).tolist() == [-1, 0, 1]


def test_one_advantage_alone_is_left_as_it_is():
    assert normalize(numbers(7), torch.tensor([True])).tolist() == [7]
    assert normalize(numbers(7, 9), torch.tensor([True, False]))[0].item() == 7


@pytest.mark.parametrize("count", [2, 12, 1000])
@pytest.mark.parametrize("advantage", [0.0, 1.0, 33.3])
def test_equal_advantages_become_zero_and_not_noise(advantage, count):
    normalised = normalize(torch.full((count,), advantage), torch.ones(count, dtype=torch.bool))
    assert normalised.abs().max().item() < 1e-3  # the mean of equal floats need not be that float


@law
@given(st.lists(st.tuples(reals(), st.booleans()), min_size=2, max_size=20), st.sampled_from([1e9, math.inf, math.nan]))
def test_what_is_not_valid_does_not_influence_what_is(decisions, padding):
    advantages = torch.tensor([advantage for advantage, _ in decisions])
    valid = torch.tensor([valid for _, valid in decisions])
    padded = torch.where(valid, advantages, padding)
    assert torch.equal(normalize(advantages, valid)[valid], normalize(padded, valid)[valid])


@law
@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=20, unique=True), reals(), st.floats(0.1, 100.0))
def test_normalised_advantages_have_mean_0_and_deviation_1_whatever_the_scale(advantages, shift, scale):
    normalised = normalize(shift + scale * numbers(*advantages), torch.ones(len(advantages), dtype=torch.bool))
    assert normalised.mean().item() == pytest.approx(0.0, abs=1e-9)
    assert normalised.std().item() == pytest.approx(1.0, rel=1e-6)


# --- ppo_policy_loss


def surrogate(
    ratio: float, advantage: float, low: float = 0.25, high: float = 0.25, dual_clip: float | None = None
) -> dict[str, float]:
    """The terms for one decision."""
    terms = ppo_policy_loss(
        torch.log(numbers(ratio)),
        numbers(0),
        numbers(advantage),
        clip_ratio_low=low,
        clip_ratio_high=high,
        dual_clip=dual_clip,
    )
    return {name: term.item() for name, term in terms._asdict().items()}


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "low", "high"),
    [
        (1.0, 2.0, -2.0, 0, 0),  # the first minibatch: nothing has moved
        (1.5, 2.0, -2.5, 0, 1),  # already likelier and good: no more than 1.25 is asked for
        (1.5, -2.0, 3.0, 0, 0),  # likelier but bad: the full gradient pulls it back
        (0.5, -2.0, 1.5, 1, 0),  # already rarer and bad: no less than 0.75 is asked for
        (0.5, 2.0, -1.0, 0, 0),  # rarer but good: the full gradient pulls it back
    ],
)
def test_the_clip_cuts_only_what_goes_further_in_the_wanted_direction(ratio, advantage, loss, low, high):
    terms = surrogate(ratio, advantage)
    assert terms["loss"] == pytest.approx(loss, rel=1e-15)
    assert (terms["clipped_low"], terms["clipped_high"]) == (low, high)


@pytest.mark.parametrize(("ratio", "advantage"), [(0.75, -1.0), (1.25, 1.0)])
def test_a_ratio_exactly_on_a_bound_is_not_clipped(ratio, advantage):
    terms = surrogate(ratio, advantage)
    assert (terms["clipped_low"], terms["clipped_high"], terms["ratio_outside"]) == (0, 0, 0)


@pytest.mark.parametrize("ratio", [0.5, 3.0])
def test_a_zero_advantage_is_never_clipped_but_its_ratio_is_outside(ratio):
    terms = surrogate(ratio, 0.0)
    assert (terms["clipped_low"], terms["clipped_high"], terms["ratio_outside"]) == (0, 0, 1)


def test_the_two_bounds_are_separate():
    assert surrogate(1.375, 1.0, low=0.25, high=0.5)["clipped_high"] == 0
    assert surrogate(1.375, 1.0, low=0.5, high=0.25)["clipped_high"] == 1
    assert surrogate(0.625, -1.0, low=0.5, high=0.25)["clipped_low"] == 0
    assert surrogate(0.625, -1.0, low=0.25, high=0.5)["clipped_low"] == 1


def test_the_clipped_ratio_is_a_ratio_and_not_a_share():
    assert [surrogate(ratio, 1.0)["clipped_ratio"] for ratio in (0.5, 1.0, 3.0)] == [0.75, 1.0, 1.25]


def test_a_decision_weighs_as_much_as_the_policy_before_the_update_prefers_it_and_none_beyond_the_limit():
    found = behaviour_weights(numbers(0.5, 0.25, 0.75).log(), numbers(0.25, 0.5, 0.25).log(), limit=2.0)
    assert found.weights.tolist() == pytest.approx([2.0, 0.5, 0.0])
    assert found.kept.tolist() == [1.0, 1.0, 0.0]


@law
@given(st.lists(st.tuples(st.floats(0.1, 0.9), st.floats(0.1, 0.9), st.floats(0.1, 0.9)), min_size=1, max_size=8))
def test_without_clips_a_corrected_decision_weighs_as_much_as_its_ratio_to_the_policy_that_acted(probabilities):
    new, proximal, acted = (numbers(*column).log() for column in zip(*probabilities, strict=True))
    ones = torch.ones_like(new)
    plain = ppo_policy_loss(new, acted, -ones, clip_ratio_low=0.999, clip_ratio_high=100.0)
    corrected = ppo_policy_loss(new, proximal, -ones, clip_ratio_low=0.999, clip_ratio_high=100.0)
    weights = behaviour_weights(proximal, acted, limit=10.0).weights
    assert torch.allclose(weights * corrected.loss, plain.loss)


def test_the_dual_clip_bounds_the_loss_of_a_bad_action_that_became_much_likelier():
    assert surrogate(5.0, -2.0)["loss"] == pytest.approx(10.0, rel=1e-15)
    terms = surrogate(5.0, -2.0, dual_clip=3.0)
    assert (terms["loss"], terms["dual_clipped"]) == (6.0, 1.0)


@pytest.mark.parametrize(("ratio", "advantage"), [(2.0, -2.0), (5.0, 2.0), (5.0, 0.0), (0.5, -2.0)])
def test_the_dual_clip_leaves_everything_else_alone(ratio, advantage):
    assert surrogate(ratio, advantage, dual_clip=3.0) == surrogate(ratio, advantage)


def test_inputs_of_different_shapes_are_refused_with_their_shapes():
    column = torch.zeros(64, 1)
    with pytest.raises(ValueError, match=r"log_probs has \(64, 1\), old_log_probs \(64,\) and advantages \(64,\)"):
        ppo_policy_loss(column, column.squeeze(), column.squeeze(), clip_ratio_low=0.2, clip_ratio_high=0.2)


def test_only_the_loss_carries_gradients():
    terms = ppo_policy_loss(
        numbers(0.1).requires_grad_(), numbers(0), numbers(1), clip_ratio_low=0.2, clip_ratio_high=0.2, dual_clip=3.0
    )
    assert [name for name, term in terms._asdict().items() if term.requires_grad] == ["loss"]


# where two branches of the loss are equal, each gets half of the gradient; half of a smaller number would lose a digit
halves_exactly = reals(10.0).filter(lambda value: value == 0 or abs(value) > 1e-300)
decisions = st.lists(st.tuples(reals(3.0), halves_exactly), min_size=1, max_size=8)


def surrogate_with_gradient(decisions: list[tuple[float, float]]) -> tuple[PolicyLoss, Tensor, Tensor, Tensor]:
    """Terms for (log-ratio, advantage) decisions, with the gradient to log_prob, the log-ratios and the advantages."""
    log_ratios, advantages = numbers(*(d[0] for d in decisions)), numbers(*(d[1] for d in decisions))
    log_probs = log_ratios.clone().requires_grad_()
    terms = ppo_policy_loss(
        log_probs, torch.zeros_like(log_probs), advantages, clip_ratio_low=0.2, clip_ratio_high=0.3, dual_clip=3.0
    )
    (gradient,) = torch.autograd.grad(terms.loss.sum(), log_probs)
    return terms, gradient, log_ratios, advantages


@law
@given(decisions)
def test_a_decision_counts_as_clipped_exactly_where_the_gradient_is_cut(decisions):
    terms, gradient, log_ratios, advantages = surrogate_with_gradient(decisions)
    cut = (clip_fraction(terms.clipped_low, terms.clipped_high) + terms.dual_clipped).bool()
    assert torch.equal(gradient, torch.where(cut, 0.0, -advantages * log_ratios.exp()))


@law
@given(decisions)
def test_the_two_clips_and_the_dual_clip_exclude_each_other(decisions):
    terms, *_ = surrogate_with_gradient(decisions)
    assert (terms.clipped_low + terms.clipped_high + terms.dual_clipped).max() <= 1
    assert torch.all(clip_fraction(terms.clipped_low, terms.clipped_high) <= terms.ratio_outside)


@law
@given(decisions)
def test_the_clip_never_makes_the_objective_more_optimistic(decisions):
    log_ratios, advantages = numbers(*(d[0] for d in decisions)), numbers(*(d[1] for d in decisions))
    terms = ppo_policy_loss(
        log_ratios, torch.zeros_like(log_ratios), advantages, clip_ratio_low=0.2, clip_ratio_high=0.3
    )
    assert torch.all(terms.loss >= -advantages * terms.ratio)


# --- clipped_value_loss


def value_loss(value: float, old_value: float, target: float, value_clip: float | None = None) -> tuple[float, ...]:
    """Loss, whether the value moved further than the clip, and whether the loss takes the clipped value."""
    return tuple(
        term.item()
        for term in clipped_value_loss(numbers(value), numbers(old_value), numbers(target), value_clip=value_clip)
    )


def test_without_a_clip_the_value_loss_is_half_the_squared_error():
    assert value_loss(1, 100, 4) == (0.5 * 3**2, 0, 0)


def test_a_value_that_moved_too_far_towards_its_target_pays_as_if_it_had_stopped_at_the_clip():
    assert value_loss(3, 0, 4, value_clip=1) == (0.5 * 3**2, 1, 1)


def test_a_value_that_moved_too_far_away_from_its_target_pays_in_full():
    assert value_loss(-3, 0, 4, value_clip=1) == (0.5 * 7**2, 1, 0)


def test_a_value_that_moved_by_exactly_the_clip_is_not_clipped():
    assert value_loss(0.25, 0, 4, value_clip=0.25) == (0.5 * 3.75**2, 0, 0)


@law
@given(reals(), reals(), reals(), st.floats(0.01, 10.0))
def test_the_value_clip_is_active_exactly_where_it_cuts_the_gradient(value, old_value, target, value_clip):
    now = numbers(value).requires_grad_()
    terms = clipped_value_loss(now, numbers(old_value), numbers(target), value_clip=value_clip)
    (gradient,) = torch.autograd.grad(terms.loss.sum(), now)
    if terms.clip_active.item():
        assert (gradient.item(), terms.clipped.item()) == (0, 1)
    elif not terms.clipped.item():
        assert gradient.item() == pytest.approx(value - target, rel=1e-12, abs=1e-12)


@law
@given(reals(), reals(), reals(), st.floats(0.01, 10.0))
def test_the_value_clip_never_lowers_the_loss(value, old_value, target, value_clip):
    assert value_loss(value, old_value, target, value_clip)[0] >= value_loss(value, old_value, target)[0]


# --- diagnostics


def test_the_same_policy_has_no_divergence():
    assert approx_kl(numbers(-1.5, 0, 3), numbers(-1.5, 0, 3)).tolist() == [0, 0, 0]


def test_divergence_by_hand():
    # r = 2: (2 - 1) - ln 2
    assert approx_kl(torch.log(numbers(2)), numbers(0)).item() == pytest.approx(1 - math.log(2), rel=1e-15)


def test_the_signed_and_the_squared_estimate_by_hand():
    log_probs, old_log_probs = numbers(math.log(2)), numbers(0)
    assert approx_kl_k1(log_probs, old_log_probs).item() == -math.log(2)
    assert approx_kl_k2(log_probs, old_log_probs).item() == 0.5 * math.log(2) ** 2


@law
@given(st.lists(reals(3.0), min_size=1, max_size=20))
def test_the_divergence_is_its_signed_estimate_plus_what_the_ratios_miss_to_1(log_ratios):
    log_probs, old_log_probs = numbers(*log_ratios), torch.zeros(len(log_ratios), dtype=torch.float64)
    signed = approx_kl_k1(log_probs, old_log_probs)
    assert torch.allclose(approx_kl(log_probs, old_log_probs), log_probs.exp() - 1 + signed, rtol=0, atol=1e-13)


def test_a_tiny_divergence_in_float32_is_not_lost_to_cancellation():
    step = 1e-5  # r - 1 - ln r is step^2 / 2, far below float32's resolution of r
    divergence = approx_kl(torch.tensor([step]), torch.tensor([0.0])).item()
    assert divergence == pytest.approx(0.5 * step**2, rel=1e-4, abs=0.0)


@law
@given(
    st.lists(st.floats(-50, 50), min_size=1, max_size=20),
    st.floats(-50, 50),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_the_divergence_is_never_negative(log_probs, old_log_prob, dtype):
    new = torch.tensor(log_probs, dtype=dtype)
    assert torch.all(approx_kl(new, torch.full_like(new, old_log_prob)) >= 0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1, 2, 3, 4), 1.0),
        ((11, 12, 13, 14), 1.0),  # blind to a constant offset
        ((2.5, 2.5, 2.5, 2.5), 0.0),  # no better than a constant
        ((0.5, 1, 1.5, 2), 0.75),
        ((-1, -2, -3, -4), -3.0),
    ],
)
def test_explained_variance_by_hand(values, expected):
    assert explained_variance(numbers(*values), numbers(1, 2, 3, 4)) == expected


@pytest.mark.parametrize("count", [0, 1])
def test_explained_variance_needs_two_returns(count):
    assert explained_variance(torch.ones(count), torch.ones(count)) is None


@pytest.mark.parametrize("constant", [0.0, 1.0, 0.1, 33.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_explained_variance_is_undefined_where_returns_do_not_vary(constant, dtype):
    for count in range(2, 20):  # the mean of equal floats need not be that float
        returns = torch.full((count,), constant, dtype=dtype)
        assert explained_variance(torch.arange(count, dtype=dtype), returns) is None


@law
@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=2, max_size=20), reals())
def test_explained_variance_is_at_most_1_and_blind_to_an_offset(pairs, offset):
    values, returns = numbers(*(v for v, _ in pairs)), numbers(*(r for _, r in pairs))
    plain, shifted = explained_variance(values, returns), explained_variance(values + offset, returns)
    if plain is None:
        assert shifted is None
    else:
        assert plain <= 1
        assert shifted == pytest.approx(plain, rel=1e-9, abs=1e-9)


# --- groups


def grouped(*groups: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Scores, and the numbers of their groups."""
    of = [number for number, group in enumerate(groups) for _ in group]
    return numbers(*(score for group in groups for score in group)), torch.tensor(of)


def test_an_episode_is_measured_by_its_own_group():
    # means 1 and 10, deviations sqrt((1 + 1) / (2 - 1)) = sqrt 2 and 0
    advantages = group_advantages(*grouped((0, 2), (10, 10)), eps=0.0)
    assert advantages.tolist() == pytest.approx([-1 / math.sqrt(2), 1 / math.sqrt(2), 0, 0], rel=1e-15)


def test_the_deviation_of_a_group_divides_by_one_less_than_its_size():
    assert group_deviations(*grouped((0, 2, 4), (5, 5))).tolist() == [2, 0]


def test_one_episode_alone_has_no_advantage_and_no_deviation():
    assert group_advantages(*grouped((7,), (0, 2)), eps=0.0)[0].item() == 0
    assert group_deviations(*grouped((7,), (0, 2))).tolist() == pytest.approx([math.sqrt(2)])


def test_a_group_that_scored_alike_is_named():
    assert equal_groups(*grouped((0, 0), (0, 1), (5,))).tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("score", [0.0, 1.0, 0.1, 33.3, -1e8 / 3])
def test_equal_scores_have_no_advantage_whatever_rounding_makes_of_their_mean(score, dtype):
    for size in range(1, 20):
        scores, groups = torch.full((size,), score, dtype=dtype), torch.zeros(size, dtype=torch.int64)
        assert group_advantages(scores, groups).tolist() == [0.0] * size
        assert equal_groups(scores, groups).tolist() == [True]


def test_the_order_and_the_numbers_of_groups_do_not_matter():
    scores, groups = grouped((0, 1, 1), (3, 5), (2, 2))
    order = torch.tensor([5, 0, 3, 6, 1, 4, 2])
    shuffled = group_advantages(scores[order], (100 - 7 * groups)[order])
    assert torch.equal(shuffled, group_advantages(scores, groups)[order])


@law
@given(st.lists(st.lists(st.integers(-100, 100), min_size=2, max_size=6), min_size=1, max_size=4))
def test_advantages_of_a_group_have_mean_0_and_deviation_1(scores):
    values, groups = grouped(*map(tuple, scores))
    advantages = group_advantages(values, groups, eps=0.0)
    for number, equal in enumerate(equal_groups(values, groups).tolist()):
        own = advantages[groups == number]
        assert own.mean().item() == pytest.approx(0, abs=1e-12)
        assert own.std().item() == pytest.approx(0 if equal else 1, rel=1e-12)


def test_no_scores_have_no_advantages():
    assert group_advantages(numbers(), torch.tensor([], dtype=torch.int64)).tolist() == []


def test_every_score_needs_its_group():
    with pytest.raises(ValueError, match=r"scores have shape \(3,\) and groups \(2,\)"):
        group_advantages(numbers(1, 2, 3), torch.tensor([0, 1]))


# --- the reference policy


def test_a_policy_that_is_its_reference_pays_nothing():
    log_probs, valid = numbers(-1, -2), torch.tensor([True, True])
    assert reference_kl(log_probs, log_probs).tolist() == [0, 0]
    assert kl_rewards(log_probs, log_probs, valid, kl_coef=0.1).abs().tolist() == [0, 0]


def test_the_divergence_from_the_reference_by_hand():
    # the reference finds the action twice as likely: r = 2, (2 - 1) - ln 2, and ln 1 - ln 2
    log_probs, ref_log_probs = numbers(0), torch.log(numbers(2))
    assert reference_kl(log_probs, ref_log_probs).item() == pytest.approx(1 - math.log(2), rel=1e-15)
    assert reference_kl_k1(log_probs, ref_log_probs).item() == -math.log(2)


def test_an_action_the_reference_finds_unlikely_costs_and_one_it_prefers_pays():
    rewards = kl_rewards(numbers(-1, -1), numbers(-3, -0.5), torch.tensor([True, True]), kl_coef=0.1)
    assert rewards.tolist() == pytest.approx([-0.2, 0.05], rel=1e-15)


def test_where_no_decision_was_made_nothing_is_paid():
    rewards = kl_rewards(numbers(-1, math.nan), numbers(-3, 0), torch.tensor([True, False]), kl_coef=0.5)
    assert rewards.tolist() == [-1, 0]


# --- wilson_interval


@pytest.mark.parametrize(
    ("successes", "episodes", "low", "high"),
    [  # with z = 2: (k + 2 -+ 2 sqrt(k (n - k) / n + 1)) / (n + 4)
        (0, 4, 0.0, 0.5),
        (2, 4, (4 - 2 * math.sqrt(2)) / 8, (4 + 2 * math.sqrt(2)) / 8),
        (4, 4, 0.5, 1.0),
    ],
)
def test_wilson_by_hand(successes, episodes, low, high):
    assert wilson_interval(successes, episodes, z=2.0) == pytest.approx((low, high), rel=1e-14)


def test_wilson_is_at_95_percent_unless_told():
    assert wilson_interval(50, 100) == pytest.approx((0.4038315, 0.5961685), abs=1e-7)


@law
@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.sampled_from([0, n]) | st.integers(0, n), st.just(n))))
def test_wilson_contains_the_rate_and_stays_between_0_and_1(outcome):
    successes, episodes = outcome
    low, high = wilson_interval(successes, episodes)
    assert 0 <= low <= successes / episodes <= high <= 1


@law
@given(st.integers(1, 1000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_treats_failures_as_it_treats_successes(outcome):
    successes, episodes = outcome
    low, high = wilson_interval(successes, episodes)
    assert wilson_interval(episodes - successes, episodes) == pytest.approx((1 - high, 1 - low), abs=1e-12)


@law
@given(st.integers(1, 100).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_narrows_with_more_episodes(outcome):
    successes, episodes = outcome
    low, high = wilson_interval(successes, episodes)
    longer_low, longer_high = wilson_interval(10 * successes, 10 * episodes)
    assert longer_high - longer_low < high - low


@pytest.mark.parametrize(("successes", "episodes"), [(0, 0), (5, 4), (-1, 4)])
def test_wilson_refuses_what_is_no_rate(successes, episodes):
    with pytest.raises(ValueError, match=f"got {successes}/{episodes}"):
        wilson_interval(successes, episodes)


def test_a_decision_that_lasts_longer_discounts_what_follows_by_more():
    rewards, values = torch.zeros(2, 1), torch.zeros(2, 1)
    following = torch.tensor([[0.0], [8.0]])
    never = torch.zeros(2, 1, dtype=torch.bool)
    discount = 0.5 ** torch.tensor([[2], [3]])
    found = gae(rewards, values, following, never, never, discount=discount, gae_lambda=1.0)
    assert found.tolist() == [[0.25], [1.0]]  # 8 / 2^5, 8 / 2^3
