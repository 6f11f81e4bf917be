"""A plan is complete, immutable and accounted before any data; its cost depends on nothing else."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
import tomllib
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.accounting.charges import HypotheticalCharges
from privet.errors import ArgumentError, PlanError, PrivetError, RecipeError
from privet.mechanism.clipping import Threshold
from privet.mechanism.epoch_sampling import Shuffle
from privet.mechanism.events import decode_event, encode_event, same_event
from privet.mechanism.grouping import ByName, OneGroup, PerLayer, PerParameter
from privet.mechanism.masking import NoMask
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import FullBatch, Poisson
from privet.mechanism.sensitivity import Norm
from privet.plan import Plan
from privet.vocabulary import Adjacency, Release, Unit

POISSON = Poisson(rate=0.05, steps=40, expected_batch_size=50)


def plan(**changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "sampling": POISSON,
        "clipping": Threshold(norm=1.0),
        "noise": Gaussian(noise_multiplier=1.1),
        "delta": 1e-5,
        "adjacency": Adjacency.ADD_REMOVE,
        "unit": Unit.RECORD,
    }
    return Plan(**(fields | changes))


samplings = st.one_of(
    st.builds(Poisson, rate=st.floats(1e-4, 1), steps=st.integers(1, 100), expected_batch_size=st.floats(0.1, 1e5)),
    st.builds(FullBatch, steps=st.integers(1, 100), expected_batch_size=st.floats(0.1, 1e5)),
    st.builds(Shuffle, batches=st.integers(1, 50), epochs=st.integers(1, 50), expected_batch_size=st.floats(0.1, 1e5)),
)
plans = st.builds(
    plan,
    sampling=samplings,
    clipping=st.builds(Threshold, norm=st.one_of(st.floats(1e-3, 1e3), st.just((0.5, 2.0)))),
    noise=st.builds(Gaussian, noise_multiplier=st.one_of(st.none(), st.floats(0.1, 100))),
    delta=st.floats(1e-12, 0.5),
    adjacency=st.sampled_from([Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT]),
    unit=st.sampled_from(Unit),
    grouping=st.sampled_from([OneGroup(), PerLayer(), PerParameter(), ByName(parts=(("a",), ("b", "c")))]),
)


# --------------------------------------------------------------------------------------------------------- files


@given(original=plans)
@settings(deadline=None, max_examples=100)
def test_a_plan_survives_json_and_toml_with_its_fingerprint(original: Plan) -> None:
    written = original.to_dict()
    for read in (json.loads(json.dumps(written)), tomllib.loads(tomli_w.dumps(written))):
        found = Plan.from_dict(read)
        assert found == original
        assert found.hash == original.hash


@pytest.mark.parametrize("missing", ["sampling", "clipping", "noise", "adjacency", "unit", "delta"])
def test_a_plan_without_one_of_its_terms_has_no_meaning(missing: str) -> None:
    written = plan().to_dict()
    del written[missing]
    with pytest.raises(RecipeError, match=f"plan lacks {missing}"):
        Plan.from_dict(written)


@pytest.mark.parametrize("optional", ["grouping", "mask", "release"])
def test_grouping_mask_and_release_have_defaults(optional: str) -> None:
    written = plan().to_dict()
    del written[optional]
    assert Plan.from_dict(written) == plan()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("deltaa",), 1, r"plan\.deltaa is not part of a plan. Did you mean 'delta'"),
        (("adjacency",), "add_remove", r"plan\.adjacency is 'add_remove'. Did you mean 'add_or_remove'"),
        (("unit",), "galaxy", r"plan\.unit is 'galaxy'. Known: client, person, record"),
        (("release",), None, r"plan\.release is None"),
        (("adjacency",), ["add_or_remove"], r"plan\.adjacency"),
        (("sampling", "rate"), 2, r"plan\.sampling \('poisson'\): rate must lie in \(0, 1\]"),
        (("noise", "kind"), "gausian", r"plan\.noise\.kind is 'gausian'. Did you mean 'gaussian'"),
        (("clipping",), "threshold", r"plan\.clipping must be a table"),
        (("delta",), 2, r"plan\.delta"),
        (("delta",), "small", r"plan\.delta"),
    ],
)
def test_mistakes_in_a_file_are_refused_with_their_dotted_path(
    path: tuple[str, ...], value: object, message: str
) -> None:
    written = plan().to_dict()
    inner = written
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(RecipeError, match=message):
        Plan.from_dict(written)


# --------------------------------------------------------------------------------------------------- combinations


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling": Threshold(norm=1.0)}, "sampling must be a Sampling piece"),
        ({"clipping": 1.0}, "clipping must be a Clipping piece"),
        ({"noise": None}, "noise must be a Noise piece"),
        ({"grouping": "per_layer"}, "grouping must be a Grouping piece"),
        ({"mask": Ellipsis}, "mask must be a Mask piece"),
        ({"noise": Gaussian}, "noise must be a Noise piece"),
        ({"sampling": Poisson}, "sampling must be a Sampling piece"),
        ({"grouping": PerLayer}, "grouping must be a Grouping piece"),
        ({"adjacency": "add_or_remove"}, "adjacency must be one of Adjacency.ADD_REMOVE"),
        ({"unit": Adjacency.ADD_REMOVE}, "unit must be one of Unit.RECORD"),
        ({"release": None}, "release must be one of Release.EVERY_ITERATE"),
    ],
    ids=str,
)
def test_pieces_of_the_wrong_kind_are_refused_by_field(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(**changes)


@pytest.mark.parametrize("delta", [0, 1, -1e-5, math.nan, "1e-5", None], ids=str)
def test_delta_is_a_probability(delta: object) -> None:
    with pytest.raises(ArgumentError, match="delta"):
        plan(delta=delta)


def test_a_sampler_without_a_proof_for_the_adjacency_is_refused_with_the_alternatives() -> None:
    shuffle = Shuffle(batches=4, epochs=2, expected_batch_size=10)
    with pytest.raises(PlanError, match=r"Adjacency\.ZERO_OUT or Adjacency\.REPLACE_ONE"):
        plan(sampling=shuffle)
    plan(sampling=shuffle, adjacency=Adjacency.ZERO_OUT)


def test_hiding_intermediate_models_earns_nothing_without_a_proof() -> None:
    with pytest.raises(PlanError, match="EVERY_ITERATE"):
        plan(release=Release.LAST_ITERATE)


def test_noise_must_fit_the_norm_that_clipping_bounds() -> None:
    class Taxicab(Threshold):
        """Bounds the sum of absolute values."""

        @property
        def norm_kind(self) -> Norm:
            return Norm.L1

    with pytest.raises(PlanError, match="bounded in L2, but Taxicab bounds them in L1"):
        plan(clipping=Taxicab(norm=1.0))


def test_a_plan_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan().delta = 0.5  # type: ignore[misc]


# ---------------------------------------------------------------------------------------------------------- cost


@given(original=plans.filter(lambda found: found.noise != Gaussian()))
@settings(deadline=None, max_examples=60)
def test_the_whole_event_is_the_round_event_as_often_as_there_are_rounds(original: Plan) -> None:
    expected = original.sampling.amplify(original.noise.event())
    ((event, count),) = original.segments
    assert same_event(event, expected, rel_tol=0)
    assert count == original.num_rounds
    assert original.num_steps == original.num_rounds * original.sampling.steps_per_round
    assert decode_event(json.loads(json.dumps(encode_event(original.event)))) == original.event


@pytest.mark.parametrize(
    "changes",
    [
        {"clipping": Threshold(norm=37.0)},
        {"clipping": Threshold(norm=(1.0, 2.0))},
        {"grouping": PerLayer()},
        {"mask": NoMask()},
        {"sampling": dataclasses.replace(POISSON, expected_batch_size=999.0)},
    ],
    ids=str,
)
def test_bounds_groups_masks_and_the_divisor_cost_nothing(changes: dict[str, object]) -> None:
    assert plan(**changes).guarantee().epsilon == plan().guarantee().epsilon


@pytest.mark.parametrize(
    "cheaper",
    [
        {"noise": Gaussian(noise_multiplier=1.5)},
        {"sampling": dataclasses.replace(POISSON, rate=0.02)},
        {"sampling": dataclasses.replace(POISSON, steps=20)},
        {"delta": 1e-3},
    ],
    ids=str,
)
def test_more_noise_fewer_examples_fewer_steps_and_a_larger_delta_cost_less(cheaper: dict[str, object]) -> None:
    assert plan(**cheaper).guarantee().epsilon < plan().guarantee().epsilon


def test_replacing_costs_more_than_adding_or_removing() -> None:
    assert plan(adjacency=Adjacency.REPLACE_ONE).guarantee().epsilon > plan().guarantee().epsilon


def test_an_epoch_of_shuffled_batches_costs_one_unamplified_release() -> None:
    shuffle = plan(
        sampling=Shuffle(batches=10, epochs=3, expected_batch_size=10), adjacency=Adjacency.ZERO_OUT
    ).guarantee()
    full = plan(sampling=FullBatch(steps=3, expected_batch_size=100), adjacency=Adjacency.ZERO_OUT).guarantee()
    assert shuffle.epsilon == full.epsilon


def test_the_guarantee_carries_every_term_of_the_plan() -> None:
    found = plan(unit=Unit.PERSON).guarantee()
    assert (found.delta, found.adjacency, found.unit) == (1e-5, Adjacency.ADD_REMOVE, Unit.PERSON)
    assert found.released is Release.EVERY_ITERATE
    assert found.proven
    assert found.is_upper_bound
    assert found.not_private_because == ()
    assert set(POISSON.assumptions) <= set(found.assumptions)


def test_a_plan_without_noise_has_no_cost_yet_and_says_how_to_find_one() -> None:
    with pytest.raises(PlanError, match="calibrated"):
        plan(noise=Gaussian()).guarantee()


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 8.0])
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_calibration_reaches_the_target_and_no_further(epsilon: float, adjacency: Adjacency) -> None:
    found = plan(noise=Gaussian(), adjacency=adjacency).calibrated(epsilon=epsilon)
    assert 0.99 * epsilon <= found.guarantee().epsilon <= epsilon
    assert dataclasses.replace(found, noise=Gaussian()) == plan(noise=Gaussian(), adjacency=adjacency)


@pytest.mark.parametrize("epsilon", [0, -1.0, math.nan, "1", None], ids=str)
def test_a_target_that_is_no_positive_number_is_refused(epsilon: object) -> None:
    with pytest.raises(PrivetError):
        plan(noise=Gaussian()).calibrated(epsilon=epsilon)  # type: ignore[arg-type]


def test_the_table_of_spending_rises_to_the_guarantee() -> None:
    original = plan()
    table = original.epsilon_by_round
    rounds = [count for count, _ in table]
    spent = [epsilon for _, epsilon in table]
    assert rounds == sorted(set(rounds))
    assert spent == sorted(spent)
    assert rounds[-1] == original.num_rounds
    assert spent[-1] == pytest.approx(original.guarantee().epsilon, rel=1e-2)
    assert spent[-1] >= original.guarantee().epsilon * (1 - 1e-9), "a progress display never promises too much"


# ---------------------------------------------------------------------------------------------------- fingerprint


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": dataclasses.replace(POISSON, rate=0.05000000001)},
        {"sampling": dataclasses.replace(POISSON, steps=41)},
        {"sampling": dataclasses.replace(POISSON, expected_batch_size=51)},
        {"clipping": Threshold(norm=1.0000001)},
        {"clipping": Threshold(norm=(1.0,))},
        {"noise": Gaussian(noise_multiplier=1.1000001)},
        {"delta": 2e-5},
        {"adjacency": Adjacency.REPLACE_ONE},
        {"unit": Unit.PERSON},
        {"grouping": PerLayer()},
    ],
    ids=str,
)
def test_every_field_is_in_the_fingerprint(changes: dict[str, object]) -> None:
    assert plan(**changes).hash != plan().hash


def test_equal_plans_have_equal_fingerprints_whatever_numbers_they_were_written_with() -> None:
    same = plan(
        sampling=Poisson(rate=np.float64(0.05), steps=np.int32(40), expected_batch_size=50.0),  # type: ignore[arg-type]
        clipping=Threshold(norm=1),
        delta=np.float64(1e-5),
    )
    assert same == plan()
    assert same.hash == plan().hash


def test_a_fingerprint_is_the_same_in_another_process_and_after_accounting() -> None:
    original = plan()
    before = original.hash
    original.guarantee()
    assert original.hash == before
    code = (
        "import json, sys\nfrom privet.plan import Plan\n"
        "assert 'torch' not in sys.modules, 'a plan is made without torch'\n"
        "sys.stdout.write(Plan.from_dict(json.loads(sys.argv[1])).hash)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(original.to_dict())],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "7"},
    )
    assert done.stdout == before


@pytest.mark.parametrize("unit", list(Unit), ids=lambda unit: unit.value)
def test_every_guarantee_says_what_it_rests_on(unit: Unit) -> None:
    found = plan(unit=unit)
    for promise in (found.guarantee(), found.account(HypotheticalCharges(planned=found.segments[:1]))):
        for word in ("learning rates", "stopping", "public changes only", f"one {unit.value} is one"):
            assert sum(word in each for each in promise.assumptions) == 1
            assert word in promise.statement()


SHORT: dict[str, Any] = {"dataset_size": 10_000, "batch_size": 100, "delta": 1e-5}


def test_the_short_way_to_a_plan_gives_the_plan_of_the_long_way() -> None:
    long = plan(
        sampling=Poisson.for_dataset(dataset_size=10_000, batch_size=100, epochs=2),
        clipping=Threshold(norm=0.5),
        noise=Gaussian(),
    )
    assert Plan.dpsgd(**SHORT, epochs=2, epsilon=3.0, clip_norm=0.5) == long.calibrated(epsilon=3.0)
    fixed = Plan.dpsgd(**SHORT, steps=200, noise_multiplier=1.1, clip_norm=0.5)
    assert fixed == dataclasses.replace(long, noise=Gaussian(noise_multiplier=1.1))


def test_the_guarantee_of_the_short_way_names_unit_and_adjacency() -> None:
    assert "add-or-remove one record" in str(Plan.dpsgd(**SHORT, steps=10, noise_multiplier=1.1).guarantee())
    other = Plan.dpsgd(
        **SHORT, steps=10, noise_multiplier=1.1, adjacency=Adjacency.REPLACE_ONE, unit=Unit.PERSON
    ).guarantee()
    assert "replace one person" in str(other)


@pytest.mark.parametrize("amount", [{}, {"epsilon": 3.0, "noise_multiplier": 1.1}], ids=["neither", "both"])
def test_the_short_way_asks_for_one_amount_of_noise(amount: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match="one of epsilon and noise_multiplier"):
        Plan.dpsgd(**SHORT, steps=10, **amount)
