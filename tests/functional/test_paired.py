"""Two policies in the same episodes. The numbers can be checked by hand, or are counted over every outcome."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpipe.functional.intervals import wilson_interval
from rlpipe.functional.paired import (
    Z_95,
    anytime_interval,
    holm_adjusted,
    indistinguishable_from_best,
    log_evidence,
    mcnemar_test,
    pairs_needed,
    simultaneous_z,
    tail_of_fair_coin,
    tango_interval,
    wins_and_losses,
)

counts = st.integers(0, 60)


def test_mcnemar_counts_the_throws_of_a_coin_that_are_at_least_as_uneven():
    assert mcnemar_test(12, 3) == 2 * (455 + 105 + 15 + 1) / 2**15
    assert mcnemar_test(5, 0) == 0.0625
    assert mcnemar_test(6, 0) == 0.03125
    assert mcnemar_test(4, 4) == mcnemar_test(0, 0) == 1


@given(counts, counts)
def test_mcnemar_does_not_depend_on_which_policy_is_named_first(wins, losses):
    assert mcnemar_test(wins, losses) == mcnemar_test(losses, wins)


@pytest.mark.parametrize(
    ("pairs", "wins", "losses", "low", "high"),
    [(21, 1, 7, -0.517, -0.026), (50, 12, 3, 0.031, 0.330), (50, 0, 0, -0.0713, 0.0713), (100, 5, 0, 0.011, 0.112)],
)
def test_tangos_interval_equals_the_closed_form_of_its_quartic(pairs, wins, losses, low, high):
    assert tango_interval(pairs, wins, losses) == pytest.approx((low, high), abs=6e-4)


@given(counts, counts, counts)
def test_tangos_interval_is_mirrored_when_the_policies_change_places(wins, losses, ties):
    pairs = wins + losses + ties + 1
    low, high = tango_interval(pairs, wins, losses)
    assert tango_interval(pairs, losses, wins) == pytest.approx((-high, -low), abs=1e-9)
    assert -1 <= low <= (wins - losses) / pairs <= high <= 1


def test_an_interval_needs_pairs():
    with pytest.raises(ValueError, match=r"got 3 \+ 2 of 4"):
        tango_interval(4, 3, 2)


def test_holm_multiplies_the_smallest_p_value_by_the_number_of_tests():
    assert holm_adjusted([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def set_of_the_best(*outcomes: np.ndarray) -> list[int]:
    def beats(better: int, worse: int, chance: float) -> bool:
        return tail_of_fair_coin(*wins_and_losses(outcomes[better], outcomes[worse])) <= chance

    return indistinguishable_from_best(len(outcomes), beats)


def test_the_set_of_the_best_loses_those_that_another_beats():
    episodes = np.arange(100)
    best, equal, worse = episodes < 90, episodes >= 8, episodes < 60
    assert set_of_the_best(best, equal, worse) == [0, 1]
    assert set_of_the_best(worse) == [0]


def test_evidence_against_equal_policies_is_a_ratio_of_factorials():
    for wins, losses in ((8, 0), (7, 0), (15, 2), (12, 3)):
        both = wins + losses
        ratio = 2.0**both * math.factorial(wins) * math.factorial(losses) / math.factorial(both + 1)
        assert math.exp(log_evidence(both + 35, wins, losses)) == pytest.approx(ratio)
    assert math.exp(log_evidence(8, 8, 0)) == pytest.approx(28.4, abs=0.1)  # 256 / 9: eight wins and no loss decide
    assert math.exp(log_evidence(7, 7, 0)) == pytest.approx(16)  # below 20: seven do not


@given(counts, counts, counts)
def test_the_anytime_interval_excludes_no_difference_exactly_where_the_evidence_reaches_twenty(wins, losses, ties):
    low, high = anytime_interval(wins + losses + ties, wins, losses)
    assert (low > 0 or high < 0) == (log_evidence(wins + losses + ties, wins, losses) > math.log(20))


def test_a_sample_size_of_connor():
    assert pairs_needed(0.2, 0.1) == 155
    assert pairs_needed(0.5, 0.4) == 23
    assert pairs_needed(0.1, 0.05) == 312


def binomial(count: int, rate: np.ndarray) -> np.ndarray:
    """[rates, count + 1] probability of each number of successes."""
    successes = np.arange(count + 1)
    ways = np.array([math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) for k in successes])
    return np.exp(ways + successes * np.log(rate[:, None]) + (count - successes) * np.log1p(-rate[:, None]))


@pytest.mark.parametrize("episodes", [200, 400])
def test_wilsons_interval_covers_the_rate_as_often_as_it_says(episodes):
    rates = np.linspace(0.01, 0.99, 981)
    bounds = np.array([wilson_interval(successes, episodes) for successes in range(episodes + 1)])
    covers = (bounds[:, 0] <= rates[:, None]) & (rates[:, None] <= bounds[:, 1])
    coverage = (binomial(episodes, rates) * covers).sum(1)
    assert 0.94 <= coverage.mean() <= 0.96
    assert coverage.min() >= 0.93


def tango_coverage(pairs: int, differing: float, differences: np.ndarray) -> np.ndarray:
    """Probability that Tango's interval holds each difference, where a given share of the pairs differ."""
    coverage = np.zeros(len(differences))
    share = binomial(pairs, np.array([differing]))[0]
    for discordant in range(pairs + 1):
        bounds = np.array([tango_interval(pairs, wins, discordant - wins) for wins in range(discordant + 1)])
        covers = (bounds[:, 0] <= differences[:, None]) & (differences[:, None] <= bounds[:, 1])
        wins = binomial(discordant, (1 + differences / differing) / 2)
        coverage += share[discordant] * (wins * covers).sum(1)
    return coverage


def test_tangos_interval_covers_the_difference_as_often_as_it_says():
    coverages = np.concatenate(
        [tango_coverage(50, share, np.linspace(-0.95 * share, 0.95 * share, 39)) for share in (0.1, 0.2, 0.4, 0.6)]
    )
    assert coverages.mean() >= 0.94
    assert coverages.min() >= 0.93  # 0.935, where a fifth of the pairs differ


def stopped_after(outcomes: np.ndarray) -> np.ndarray:
    """Number of pairs after which the evidence against equal policies reaches twenty; 0 where it never does.

    Args:
        outcomes: [comparisons, pairs] 1 for a win, -1 for a loss, 0 for neither.
    """
    wins, losses = np.cumsum(outcomes == 1, axis=1), np.cumsum(outcomes == -1, axis=1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, outcomes.shape[1] + 2)))])  # log of each factorial
    both = wins + losses
    decided = both * math.log(2) + logs[wins] + logs[losses] - logs[both + 1] >= math.log(20)
    return np.where(decided.any(axis=1), decided.argmax(axis=1) + 1, 0)


def drawn_outcomes(comparisons: int, pairs: int, discordant: float, difference: float) -> np.ndarray:
    draws = np.random.default_rng(0).random((comparisons, pairs))
    return np.where(draws < (discordant + difference) / 2, 1, np.where(draws < discordant, -1, 0)).astype(np.int8)


def test_looking_after_every_pair_errs_in_at_most_one_of_twenty_comparisons_of_equal_policies():
    assert (stopped_after(drawn_outcomes(4_000, 1_000, 0.4, 0.0)) > 0).mean() <= 0.05


@pytest.mark.parametrize("discordant", [0.2, 0.5])
def test_looking_after_every_pair_needs_fewer_of_them_than_one_test_at_the_end(discordant):
    fixed = pairs_needed(discordant, 0.2, power=0.95)
    stopped = stopped_after(drawn_outcomes(1_000, 2_000, discordant, 0.2))
    assert (stopped > 0).all()
    assert stopped.mean() <= 0.7 * fixed


# --- several comparisons


def test_the_intervals_of_several_comparisons_are_wider_each():
    assert simultaneous_z(1) == simultaneous_z(0) == pytest.approx(Z_95)
    assert simultaneous_z(10) == pytest.approx(2.807, abs=1e-3)  # that of 0.0025 above it
    assert simultaneous_z(2, level=0.9) == pytest.approx(Z_95)


def simultaneous_coverage(tables: int, episodes: int, comparisons: int = 25) -> float:
    """Share of planted tables in which the intervals of all differences from the clean arm hold their true values.

    Success without variations is 0.5 to 1. Of its successes each arm loses between none and all, a third of them none
    or few, and it wins a tenth of its failures at most.
    """
    generator, z, bounds = np.random.default_rng(0), simultaneous_z(comparisons), {}
    held = 0
    for _ in range(tables):
        clean = generator.uniform(0.5, 1.0)
        lost = clean * generator.uniform(0, 1, comparisons) ** generator.integers(1, 6, comparisons)
        gained = (1 - clean) * generator.uniform(0, 0.1, comparisons)
        successes = generator.binomial(episodes, clean)  # of the clean arm, which all comparisons share
        losses = generator.binomial(successes, lost / clean)
        wins = generator.binomial(episodes - successes, gained / (1 - clean))
        for truth, *counts in zip(gained - lost, wins.tolist(), losses.tolist(), strict=True):
            key = tuple(counts)
            if key not in bounds:
                bounds[key] = tango_interval(episodes, *key, z=z)
            if not bounds[key][0] <= truth <= bounds[key][1]:
                break
        else:
            held += 1
    return held / tables


def test_corrected_intervals_hold_together_in_planted_tables():
    """Of 200 tables, 0.92 lies two standard errors below 0.95."""
    assert simultaneous_coverage(200, 200) >= 0.92


@pytest.mark.soak
@pytest.mark.parametrize("episodes", [50, 200, 1000])
def test_corrected_intervals_hold_together_in_095_of_planted_tables(episodes):
    assert simultaneous_coverage(1000, episodes) >= 0.95
