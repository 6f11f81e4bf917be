"""A plan that releases the last iterate is accounted by its proof, and refused as soon as the proof does not hold."""

from __future__ import annotations

import itertools
import json
import math
import tomllib
from dataclasses import replace
from typing import Any

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.accounting.charges import HypotheticalCharges
from privet.accounting.gaussian_dp import gdp_epsilon
from privet.accounting.hidden_state import cyclic_ratio
from privet.errors import ArgumentError, PlanError, RecipeError
from privet.mechanism.clipping import Automatic, KeepOrDrop, Threshold
from privet.mechanism.epoch_sampling import Cyclic, Shuffle
from privet.mechanism.grouping import PerLayer
from privet.mechanism.masking import FrozenMask
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import FullBatch, Poisson
from privet.mechanism.strong_convexity import StronglyConvexDescent
from privet.plan import Plan
from privet.vocabulary import Adjacency, Release, Unit

ROOT_TWO = math.sqrt(2)


def descent(**changes: float) -> StronglyConvexDescent:
    constants = {"learning_rate": 0.54, "ridge": 1e-4, "gradient_bound": ROOT_TWO, "smoothness": 0.5}
    return StronglyConvexDescent(**(constants | changes))


def plan(**changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "sampling": Cyclic(batches=60, epochs=400, expected_batch_size=1000),
        "clipping": Threshold(norm=ROOT_TWO),
        "noise": Gaussian(noise_multiplier=5.0),
        "delta": 1e-5,
        "adjacency": Adjacency.REPLACE_ONE,
        "unit": Unit.RECORD,
        "release": Release.LAST_ITERATE,
        "descent": descent(),
    }
    return Plan(**(fields | changes))


# -------------------------------------------------------------------------------------------------------- the answer


@pytest.mark.parametrize(("epsilon", "multiplier"), [(1.33, 15.06), (4.76, 4.87)])
def test_the_published_setting_needs_this_much_noise(epsilon: float, multiplier: float) -> None:
    calibrated = plan(noise=Gaussian()).calibrated(epsilon=epsilon)
    assert calibrated.noise.noise_multiplier == pytest.approx(multiplier, abs=5e-3)  # type: ignore[attr-defined]
    assert epsilon * (1 - 1e-3) <= calibrated.guarantee().epsilon <= epsilon


@pytest.mark.parametrize(
    ("adjacency", "factor"), [(Adjacency.REPLACE_ONE, 2), (Adjacency.ZERO_OUT, 1)], ids=["replace", "blank"]
)
def test_the_guarantee_is_the_closed_form(adjacency: Adjacency, factor: int) -> None:
    found = plan(adjacency=adjacency).guarantee()
    mu = factor / 5 * cyclic_ratio(contraction=1 - 5.4e-5, batches=60, epochs=400)
    assert found.mu == pytest.approx(mu, rel=1e-9)
    assert found.epsilon == pytest.approx(gdp_epsilon(mu, 1e-5), rel=1e-9)
    assert found.released is Release.LAST_ITERATE
    assert found.accountant == "hidden state"
    assert found.lower is None
    assert found.proven


def test_the_whole_batch_is_one_batch_per_epoch() -> None:
    everything = plan(sampling=FullBatch(steps=400, expected_batch_size=1000))
    one_batch = plan(sampling=Cyclic(batches=1, epochs=400, expected_batch_size=1000))
    assert everything.guarantee().epsilon == one_batch.guarantee().epsilon


@settings(max_examples=40)
@given(
    batches=st.integers(1, 80),
    epochs=st.integers(1, 60),
    multiplier=st.floats(0.5, 30),
    ridge=st.floats(0, 1e-1),
)
def test_hiding_iterates_never_costs_more_than_showing_them(
    batches: int, epochs: int, multiplier: float, ridge: float
) -> None:
    hidden = plan(
        sampling=Cyclic(batches=batches, epochs=epochs, expected_batch_size=1000),
        noise=Gaussian(noise_multiplier=multiplier),
        descent=descent(ridge=ridge),
    )
    shown = replace(hidden, release=Release.EVERY_ITERATE, descent=None)
    assert hidden.guarantee().epsilon <= shown.guarantee().epsilon * (1 + 1e-9)


def test_the_table_of_rounds_rises_to_the_guarantee() -> None:
    rows = plan().epsilon_by_round
    assert rows[0] == (0, 0.0)
    assert rows[-1] == (400, plan().guarantee().epsilon)
    assert all(left[1] <= right[1] for left, right in itertools.pairwise(rows))


# ------------------------------------------------------------------------------------------------- what a ledger says


def test_a_run_at_its_planned_end_has_the_guarantee_of_the_plan() -> None:
    made = plan()
    ended = HypotheticalCharges(planned=[(made.round_event, 400)], is_complete=True)
    assert made.account(ended) == made.guarantee()
    assert made.spent_event(ended) == made.event


@pytest.mark.parametrize("rounds", [1, 399, 401])
def test_a_run_of_another_length_is_charged_every_iterate(rounds: int) -> None:
    made = plan()
    found = made.account(HypotheticalCharges(planned=[(made.round_event, rounds)], is_complete=True))
    assert found.released is Release.EVERY_ITERATE
    assert found.mu == pytest.approx(2 / 5 * math.sqrt(rounds))
    assert not any("after the last step" in assumption for assumption in found.assumptions)


def test_a_run_that_broke_off_is_charged_every_iterate_even_when_all_rounds_are_charged() -> None:
    made = plan()
    assert made.account(HypotheticalCharges(planned=[(made.round_event, 400)])).released is Release.EVERY_ITERATE


def test_a_round_that_was_something_else_takes_the_proof_away() -> None:
    made = plan()
    other = plan(noise=Gaussian(noise_multiplier=0.1)).round_event
    found = made.account(HypotheticalCharges(planned=[(made.round_event, 400), (other, 1)], is_complete=True))
    assert found.released is Release.EVERY_ITERATE
    assert found.mu is not None
    assert found.mu > 20


# ------------------------------------------------------------------------------------------------------------- files


def test_a_plan_with_a_descent_survives_files_with_its_fingerprint() -> None:
    made = plan()
    for read in (json.loads(json.dumps(made.to_dict())), tomllib.loads(tomli_w.dumps(made.to_dict()))):
        assert Plan.from_dict(read) == made
        assert Plan.from_dict(read).hash == made.hash


def test_the_constants_of_the_descent_are_part_of_the_fingerprint() -> None:
    assert len({plan(descent=descent(ridge=ridge)).hash for ridge in (0.0, 1e-4, 2e-4)}) == 3


def test_a_fingerprint_without_descent_is_that_of_its_pieces_alone() -> None:
    shown = plan(release=Release.EVERY_ITERATE, descent=None)
    assert "descent" not in repr(shown)
    assert "descent" not in shown.to_dict()


def test_an_unknown_constant_in_a_file_is_refused_with_its_path() -> None:
    written = plan().to_dict()
    written["descent"]["momentum"] = 0.9
    with pytest.raises(RecipeError, match=r"plan\.descent\.momentum"):
        Plan.from_dict(written)


# ---------------------------------------------------------------------------------------------------------- refusals

REFUSED = {
    "no-constants": ({"descent": None}, "no constants of a convex loss"),
    "poisson": ({"sampling": Poisson(rate=0.1, steps=5, expected_batch_size=10)}, "Poisson draws batches at random"),
    "shuffle": ({"sampling": Shuffle(batches=5, epochs=5, expected_batch_size=10)}, "Shuffle draws batches at random"),
    "add-or-remove": (
        {"sampling": FullBatch(steps=5, expected_batch_size=9), "adjacency": Adjacency.ADD_REMOVE},
        "number of records is secret",
    ),
    "per-layer": ({"grouping": PerLayer()}, "PerLayer clips groups separately"),
    "bounds-per-group": ({"clipping": Threshold(norm=(2.0,))}, "not proven to keep a loss convex"),
    "automatic": ({"clipping": Automatic(norm=2.0)}, "Automatic changes gradients"),
    "keep-or-drop": ({"clipping": KeepOrDrop(norm=2.0, cutoff=4.0)}, "KeepOrDrop changes gradients"),
    "clipped-softmax": ({"clipping": Threshold(norm=1.0)}, r"counterexample.*cosine -0\.377"),
}


@pytest.mark.parametrize(("changes", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_plan_without_a_proof_is_refused_with_the_assumption_that_fails(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanError, match=reason) as refusal:
        plan(**changes)
    assert "Release.EVERY_ITERATE" in str(refusal.value)


def test_a_mask_is_refused() -> None:
    with pytest.raises(PlanError, match="FrozenMask leaves coordinates without noise"):
        plan(mask=FrozenMask(rate=0.5))


def test_constants_that_nobody_reads_are_refused() -> None:
    with pytest.raises(PlanError, match="contraction hides nothing"):
        plan(release=Release.EVERY_ITERATE)


def test_a_descent_must_be_a_piece() -> None:
    with pytest.raises(PlanError, match="descent must be"):
        plan(descent=0.1)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_a_step_too_long_to_contract_is_refused(ridge: float) -> None:
    longest = 2 / (2 * ridge + 0.5)
    assert descent(learning_rate=longest, ridge=ridge).contraction == pytest.approx(max(0, 1 - longest * ridge))
    with pytest.raises(ArgumentError, match="need not bring two models closer"):
        descent(learning_rate=longest * 1.001, ridge=ridge)


@pytest.mark.parametrize("name", ["learning_rate", "ridge", "gradient_bound", "smoothness"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf], ids=["negative", "nan", "infinite"])
def test_impossible_constants_are_refused(name: str, value: float) -> None:
    with pytest.raises(ArgumentError, match=name):
        descent(**{name: value})
