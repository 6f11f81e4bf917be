"""What one unit adds to the vector of a private evaluation is bounded, whatever a model says about its records."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.effects.noisy_counts.contributions import Evaluated, summed
from privet.effects.noisy_counts.terms import EvaluationTerms, Groups

GROUPS = (Groups(column="sex", categories=("f", "m")), Groups(column="town", categories=("a", "b", "c")))
TERMS = {
    "two classes": EvaluationTerms(class_names=("no", "yes"), groups=GROUPS),
    "four classes": EvaluationTerms(class_names=("a", "b", "c", "d"), groups=GROUPS[:1]),
    "many classes": EvaluationTerms(class_names=tuple(map(str, range(12)))),
    "numbers": EvaluationTerms(low=-3.0, high=7.0, error_clip=5.0, groups=GROUPS),
}
ODD = (0.0, -1.0, math.nan, math.inf, -math.inf, 1e300, 0.7)


def records(terms: EvaluationTerms, count: int, seed: int, *, odd: bool = False, weight: float = 1.0) -> Evaluated:
    rng = np.random.default_rng(seed)
    if terms.class_names:
        logits = rng.normal(size=(count, terms.num_classes)) * 3
        outputs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        targets = rng.integers(-1 if odd else 0, terms.num_classes + (3 if odd else 0), count)
    else:
        outputs, targets = rng.normal(size=count) * 4, rng.normal(size=count) * 4
    if odd:
        outputs = np.where(rng.random(outputs.shape) < 0.5, rng.choice(ODD, outputs.shape), outputs)
    groups = {each.column: rng.integers(0, len(each.categories) + 2 * odd, count) for each in terms.groups}
    return Evaluated(outputs=outputs, targets=targets, groups=groups, weights=np.full(count, weight))


@pytest.mark.parametrize("name", TERMS)
@given(seed=st.integers(0, 10_000), odd=st.booleans(), per_person=st.integers(1, 7))
@settings(max_examples=25, deadline=None)
def test_one_unit_moves_the_vector_by_at_most_one_in_the_joint_norm(
    name: str, seed: int, odd: bool, per_person: int
) -> None:
    terms = TERMS[name]
    unit = summed(records(terms, per_person, seed, odd=odd, weight=1 / per_person), terms)
    assert np.isfinite(unit).all()
    assert np.linalg.norm(unit * terms.weights()) <= 1 + 1e-12


@pytest.mark.parametrize("name", TERMS)
def test_the_bound_is_tight_up_to_the_losses_and_never_needed_to_shorten_a_plain_record(name: str) -> None:
    terms = TERMS[name]
    data = records(terms, 400, 1)
    assert (
        max(np.linalg.norm(summed(_only(data, [place]), terms) * terms.weights()) for place in range(50)) >= 0.7
        if terms.class_names
        else True
    )
    whole = summed(data, terms)
    parts = summed(_only(data, range(150)), terms) + summed(_only(data, range(150, 400)), terms)
    np.testing.assert_allclose(whole, parts, atol=1e-9)


def _only(data: Evaluated, places: range | list[int]) -> Evaluated:
    chosen = np.array(list(places))
    return Evaluated(
        outputs=data.outputs[chosen],
        targets=data.targets[chosen],
        groups={name: codes[chosen] for name, codes in data.groups.items()},
        weights=data.weights[chosen],
    )


def test_the_counts_are_those_of_the_records() -> None:
    terms = TERMS["two classes"]
    data = records(terms, 5_000, 3)
    vector, places = summed(data, terms), terms.slices()
    right = data.outputs.argmax(1) == data.targets
    table = vector[places["confusion"]].reshape(2, 2)
    assert np.trace(table) == pytest.approx(right.sum())
    assert table.sum() == pytest.approx(5_000)
    losses = np.minimum(-data.outputs[np.arange(5_000), data.targets], terms.loss_clip)
    assert vector[places["losses"]][0] * terms.loss_clip == pytest.approx(losses.sum())
    for group in (0, 1):
        counted = vector[places["group sex"]].reshape(2, 2)[group]
        assert counted[1] == pytest.approx((right & (data.groups["sex"] == group)).sum())
        assert counted.sum() == pytest.approx((data.groups["sex"] == group).sum())
    scores = vector[places["scores"]].reshape(2, -1)
    assert scores.sum(1) == pytest.approx([(data.targets == 0).sum(), (data.targets == 1).sum()])


def test_no_records_add_nothing_and_a_record_of_an_unknown_class_neither() -> None:
    terms = TERMS["two classes"]
    assert not summed(records(terms, 0, 0), terms).any()
    one = records(terms, 1, 0)
    stranger = Evaluated(outputs=one.outputs, targets=np.array([9]), groups=one.groups, weights=one.weights)
    assert not summed(stranger, terms).any()


def test_a_decision_that_is_given_counts_in_the_place_of_the_likeliest_class() -> None:
    terms = EvaluationTerms(class_names=("no", "yes"))
    outputs = np.log(np.array([[0.7, 0.3]]))
    told = Evaluated(outputs=outputs, targets=np.array([1]), decided=np.array([1]), weights=np.ones(1))
    assert summed(told, terms)[terms.slices()["confusion"]].tolist() == [0.0, 0.0, 0.0, 1.0]


def test_shares_of_the_budget_sum_up_to_one_and_the_noise_of_all_blocks_is_one_gaussian() -> None:
    for terms in TERMS.values():
        assert sum(block.share for block in terms.blocks) == pytest.approx(1.0)
        for block in terms.blocks:
            assert block.std(3.0) * block.weight == pytest.approx(3.0)
