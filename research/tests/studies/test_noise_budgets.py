"""Noise of a step by published rules: known figures, what they really keep, and a sound reading that keeps its word."""

from __future__ import annotations

import math

import pytest
import torch
from dp_accounting import dp_event

from privet.accounting.calibration import spent_epsilon
from privet.errors import ArgumentError, CalibrationError
from privet.vocabulary import Adjacency
from privet_research.studies import noise_budgets as budgets
from privet_research.studies.noise_arms import PROCEDURE_ARMS, Charge, multiplier
from privet_research.studies.noise_budgets import MNIST
from privet_research.studies.noise_terms import Terms


def kept(noise: float, terms: Terms = MNIST) -> float:
    event = terms.sampled(dp_event.GaussianDpEvent(noise))
    return spent_epsilon(event, delta=terms.delta, adjacency=Adjacency.ADD_REMOVE)


@pytest.mark.parametrize(
    ("epsilon", "split", "published", "thumb"),
    [(0.1, 248, 5.33, 48.6), (0.5, 53.8, 2.23, 9.71), (1.0, 27.8, 1.58, 4.86), (8.0, 3.85, 0.575, 0.607)],
)
def test_the_noise_of_the_published_rules_is_known(
    epsilon: float, split: float, published: float, thumb: float
) -> None:
    budget = budgets.published_budget(MNIST, epsilon)
    assert budgets.moment_multiplier(budget) == pytest.approx(split, rel=0.01)
    assert budgets.step_multiplier(budget) < budgets.moment_multiplier(budget), "the bound is valid, and not tight"
    assert budgets.published_multiplier(MNIST, epsilon) == pytest.approx(published, rel=0.01)
    assert budgets.moments_formula(MNIST, epsilon) == pytest.approx(thumb, rel=0.01)


def test_the_published_bound_breaks_its_promise() -> None:
    assert kept(budgets.published_multiplier(MNIST, 1.0)) == pytest.approx(2.05, rel=0.01)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_a_sound_split_keeps_its_word_and_costs_more_noise_than_tight_accounting(epsilon: float) -> None:
    sound, tight = budgets.sound_multiplier(MNIST, epsilon), budgets.tight_multiplier(MNIST, epsilon)
    assert kept(sound) < epsilon
    assert kept(tight) == pytest.approx(epsilon, rel=1e-3)
    assert sound > 2 * tight


def test_a_sound_split_uses_up_its_theorem() -> None:
    budget = budgets.sound_budget(MNIST, 1.0)
    sampled = math.log1p(MNIST.rate * math.expm1(budget.epsilon))
    slack = MNIST.delta / 2
    whole = math.sqrt(2 * MNIST.steps * math.log(1 / slack)) * sampled + MNIST.steps * sampled * math.expm1(sampled)
    assert whole <= 1.0
    assert whole == pytest.approx(1.0, rel=1e-6)
    assert MNIST.steps * MNIST.rate * budget.delta + slack == pytest.approx(MNIST.delta)


def test_the_arms_of_the_procedure_are_its_three_budgets_and_only_the_published_one_breaks_its_word() -> None:
    terms = Terms(rate=0.1, steps=300, delta=1e-4)
    found = {arm.charge: kept(multiplier(terms, arm.charge, 3.0, 650), terms) for arm in PROCEDURE_ARMS}
    assert set(found) == {Charge.GAUSSIAN, Charge.ADVANCED, Charge.PUBLISHED}
    assert found[Charge.GAUSSIAN] == pytest.approx(3.0, rel=1e-3)
    assert found[Charge.ADVANCED] < 1
    assert found[Charge.PUBLISHED] > 6
    assert [arm.name for arm in PROCEDURE_ARMS if "NOT PRIVATE" in arm.name] == [
        arm.name for arm in PROCEDURE_ARMS if arm.charge is Charge.PUBLISHED
    ]


def test_budgets_out_of_range_are_refused() -> None:
    for rule in (budgets.published_budget, budgets.sound_budget, budgets.moments_formula):
        with pytest.raises(ArgumentError):
            rule(MNIST, 0.0)
    with pytest.raises(CalibrationError, match="right side"):
        budgets.published_multiplier(Terms(rate=1.0, steps=10**6, delta=1e-5), 0.01)


def test_the_table_shows_noise_and_what_it_keeps() -> None:
    terms = Terms(rate=0.1, steps=20, delta=1e-4)
    rows = list(budgets.run_budget_study(seeds=[0], device=torch.device("cpu"), epsilons=(1.0,), terms=terms))
    text = budgets.budget_table(rows)
    assert len(rows) == 6
    tight = rows[-1]
    assert f"| tight | {tight['noise_multiplier']:.3g} (1) |" in text
