"""Events: their JSON form is exact and strict, and adding them up loses and invents nothing."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.errors import AccountingError, ArgumentError
from privet.mechanism.events import (
    MAX_DEPTH,
    PureDpEvent,
    TotalVariationDpEvent,
    compose,
    decode_event,
    encode_event,
    flatten,
    fuse_gaussians,
    gaussian_event,
    same_event,
)

multipliers = st.floats(min_value=0, allow_nan=False, allow_infinity=True)
leaves = st.one_of(
    st.just(dp_event.NoOpDpEvent()),
    st.just(dp_event.NonPrivateDpEvent()),
    st.builds(dp_event.GaussianDpEvent, multipliers),
    st.builds(dp_event.LaplaceDpEvent, multipliers),
    st.builds(PureDpEvent, epsilon=multipliers),
    st.builds(TotalVariationDpEvent, distance=st.floats(0, 1)),
    st.builds(
        dp_event.TruncatedSubsampledGaussianDpEvent,
        st.integers(1, 10**9),
        st.floats(0, 1),
        st.integers(1, 10**6),
        multipliers,
    ),
)
events = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(dp_event.PoissonSampledDpEvent, st.floats(0, 1), inner),
        st.builds(dp_event.SampledWithoutReplacementDpEvent, st.integers(1, 10**9), st.integers(1, 10**9), inner),
        st.builds(dp_event.RepeatAndSelectDpEvent, inner, multipliers, multipliers),
        st.builds(dp_event.SelfComposedDpEvent, inner, st.integers(0, 10**6)),
        st.builds(dp_event.ComposedDpEvent, st.lists(inner, max_size=3)),
    ),
    max_leaves=6,
)
GAUSSIAN = dp_event.GaussianDpEvent(1.5)
SAMPLED = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0))


@settings(deadline=None, max_examples=100)
@given(events)
def test_every_event_survives_a_trip_through_json_text(event: Any) -> None:
    text = json.dumps(encode_event(event), allow_nan=False)
    assert decode_event(json.loads(text)) == event


@settings(deadline=None, max_examples=50)
@given(events)
def test_every_event_is_the_same_as_itself(event: Any) -> None:
    assert same_event(event, event)


@pytest.mark.parametrize(
    "data",
    [
        {"type": "gaussian"},
        {"type": "gaussian", "noise_multiplier": 1.0, "extra": 0},
        {"type": "gaussian", "noise_multiplier": math.nan},
        {"type": "gaussian", "noise_multiplier": -1.0},
        {"type": "gaussian", "noise_multiplier": "1.0"},
        {"type": "gaussian", "noise_multiplier": True},
        {"type": "gaussian", "noise_multiplier": None},
        {"type": "gaussian", "noise_multiplier": [1.0]},
        {"type": "poisson_sampled", "sampling_probability": 1.5, "event": {"type": "no_op"}},
        {"type": "poisson_sampled", "sampling_probability": "infinity", "event": {"type": "no_op"}},
        {"type": "poisson_sampled", "sampling_probability": 0.5, "event": 3},
        {"type": "self_composed", "event": {"type": "no_op"}, "count": 1.0},
        {"type": "self_composed", "event": {"type": "no_op"}, "count": -1},
        {"type": "self_composed", "event": {"type": "no_op"}, "count": 2**60},
        {"type": "self_composed", "event": {"type": "no_op"}, "count": True},
        {"type": "composed", "events": {"type": "no_op"}},
        {"type": "composed", "events": "no_op"},
        [],
        "gaussian",
        None,
    ],
)
def test_damaged_json_is_refused(data: Any) -> None:
    with pytest.raises(ArgumentError):
        decode_event(data)


@pytest.mark.parametrize("name", ["GaussianDpEvent", "zcdp", None, 3, ["gaussian"], ""])
def test_an_unknown_type_is_refused_by_name(name: Any) -> None:
    with pytest.raises(AccountingError, match="Unknown event type"):
        decode_event({"type": name, "noise_multiplier": 1.0})


def test_an_event_class_outside_the_table_is_refused() -> None:
    with pytest.raises(AccountingError, match="ZCDpEvent"):
        encode_event(dp_event.ZCDpEvent(0.5))
    with pytest.raises(AccountingError, match="str"):
        encode_event("gaussian")


@pytest.mark.parametrize("value", [math.nan, -1.0, "1", True, None])
def test_an_event_built_with_a_wrong_number_is_not_written(value: Any) -> None:
    with pytest.raises(ArgumentError):
        encode_event(dp_event.GaussianDpEvent(value))


def test_nesting_beyond_the_limit_is_refused_both_ways() -> None:
    data: dict[str, Any] = {"type": "no_op"}
    event: Any = dp_event.NoOpDpEvent()
    for _ in range(MAX_DEPTH - 1):
        data = {"type": "self_composed", "event": data, "count": 1}
        event = dp_event.SelfComposedDpEvent(event, 1)
    assert decode_event(data) == event
    with pytest.raises(ArgumentError, match="deep"):
        decode_event({"type": "self_composed", "event": data, "count": 1})
    with pytest.raises(ArgumentError, match="deep"):
        encode_event(dp_event.SelfComposedDpEvent(event, 1))


def test_extreme_nesting_never_exhausts_the_stack() -> None:
    data: dict[str, Any] = {"type": "no_op"}
    for _ in range(100_000):
        data = {"type": "self_composed", "event": data, "count": 1}
    try:
        with pytest.raises(ArgumentError):
            decode_event(data)
    finally:
        # Taken apart by hand: freeing so deep a chain at once would recurse in the interpreter itself.
        while "event" in data:
            data = data.pop("event")


def test_joint_gaussians_add_their_inverse_squares() -> None:
    assert fuse_gaussians([3.0, 4.0]) == pytest.approx(12 / 5)
    assert fuse_gaussians([2.0] * 4) == pytest.approx(1.0)


def test_one_multiplier_is_kept_to_the_last_bit() -> None:
    assert fuse_gaussians([1.1]) == 1.1
    assert fuse_gaussians([math.inf, 1.1]) == 1.1


def test_zero_noise_anywhere_hides_nothing_and_infinite_noise_reveals_nothing() -> None:
    assert fuse_gaussians([5.0, 0.0]) == 0.0
    assert fuse_gaussians([0.0]) == 0.0
    assert fuse_gaussians([math.inf, math.inf]) == math.inf
    assert fuse_gaussians([]) == math.inf


@pytest.mark.parametrize("bad", [math.nan, -1.0, "1", None, True])
def test_a_wrong_multiplier_is_refused(bad: Any) -> None:
    with pytest.raises(ArgumentError):
        fuse_gaussians([1.0, bad])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=1, max_size=6))
def test_groups_with_one_std_cost_as_much_as_one_group_with_the_joint_bound(groups: list[tuple[float, float]]) -> None:
    bounds = tuple(bound for bound, _ in groups)
    std = groups[0][1]
    event = gaussian_event(bounds, (std,) * len(bounds))
    assert event.noise_multiplier == pytest.approx(std / math.hypot(*bounds), rel=1e-12)


def test_noise_in_proportion_to_the_bounds_costs_the_root_of_the_number_of_groups() -> None:
    assert gaussian_event((1.0, 2.0, 4.0, 8.0), (3.0, 6.0, 12.0, 24.0)).noise_multiplier == pytest.approx(1.5)


def test_a_group_without_a_bound_reveals_nothing_and_one_without_noise_everything() -> None:
    assert gaussian_event((1.0, 0.0), (2.0, 0.0)).noise_multiplier == 2.0
    assert gaussian_event((0.0,), (0.0,)).noise_multiplier == math.inf
    assert gaussian_event((1.0, 1.0), (2.0, 0.0)).noise_multiplier == 0.0


@pytest.mark.parametrize(
    ("bounds", "stds"),
    [((), ()), ((1.0,), ()), ((1.0,), (1.0, 2.0)), ((math.inf,), (1.0,)), ((-1.0,), (1.0,)), ((1.0,), (math.nan,))],
)
def test_groups_that_do_not_fit_are_refused(bounds: tuple[float, ...], stds: tuple[float, ...]) -> None:
    with pytest.raises(ArgumentError):
        gaussian_event(bounds, stds)


def test_equal_events_are_merged_and_the_order_does_not_matter() -> None:
    one = compose([(SAMPLED, 3), (GAUSSIAN, 1), (SAMPLED, 4)])
    other = compose([(GAUSSIAN, 1), (SAMPLED, 7)])
    assert one == other
    assert sorted(count for _, count in flatten(one)) == [1, 7]


def test_nested_compositions_are_opened_and_multiplied() -> None:
    epoch = dp_event.SelfComposedDpEvent(dp_event.ComposedDpEvent([SAMPLED, GAUSSIAN, SAMPLED]), 5)
    assert {type(event).__name__: count for event, count in flatten(compose([(epoch, 2)]))} == {
        "PoissonSampledDpEvent": 20,
        "GaussianDpEvent": 10,
    }


def test_composing_nothing_gives_the_empty_event() -> None:
    assert compose([]) == dp_event.NoOpDpEvent()
    assert compose([(SAMPLED, 0), (dp_event.NoOpDpEvent(), 9)]) == dp_event.NoOpDpEvent()


def test_one_event_once_stays_bare() -> None:
    assert compose([(SAMPLED, 1)]) == SAMPLED
    assert compose([(SAMPLED, 2)]) == dp_event.SelfComposedDpEvent(SAMPLED, 2)


@pytest.mark.parametrize("count", [-1, 1.0, True, "3", None])
def test_a_wrong_count_is_refused(count: Any) -> None:
    with pytest.raises(ArgumentError):
        compose([(SAMPLED, count)])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(events, st.integers(0, 50)), max_size=4), st.randoms(use_true_random=False))
def test_composition_keeps_every_release_whatever_the_order(parts: list[tuple[Any, int]], random: Any) -> None:
    shuffled = list(parts)
    random.shuffle(shuffled)
    composed = compose(parts)
    assert composed == compose(shuffled)
    released = sum(times * sum(count for _, count in flatten(event)) for event, times in parts)
    assert sum(count for _, count in flatten(composed)) == released


def test_sameness_forgives_rounding_and_nothing_else() -> None:
    def sampled(rate: float, multiplier: float) -> Any:
        return dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(multiplier))

    assert same_event(sampled(0.01, 1.0), sampled(0.01, 1.0 + 1e-12))
    assert not same_event(sampled(0.01, 1.0), sampled(0.01, 1.0 + 1e-6))
    assert same_event(sampled(0.01, 1.0), sampled(0.01, 1.0 + 1e-6), rel_tol=1e-5)
    assert not same_event(sampled(0.01, 1.0), sampled(0.011, 1.0))
    assert not same_event(sampled(0.01, 0.0), sampled(0.01, 1e-300))
    assert same_event(sampled(0.01, math.inf), sampled(0.01, math.inf))
    assert not same_event(sampled(0.01, 1.0), dp_event.GaussianDpEvent(1.0))
    assert not same_event(dp_event.GaussianDpEvent(1.0), dp_event.LaplaceDpEvent(1.0))
    assert not same_event(dp_event.SelfComposedDpEvent(GAUSSIAN, 2), dp_event.SelfComposedDpEvent(GAUSSIAN, 3))
    assert not same_event(dp_event.ComposedDpEvent([GAUSSIAN]), dp_event.ComposedDpEvent([GAUSSIAN, GAUSSIAN]))


def test_sameness_of_nonsense_is_an_error_not_an_answer() -> None:
    with pytest.raises(ArgumentError):
        same_event(dp_event.GaussianDpEvent(math.nan), dp_event.GaussianDpEvent(1.0))
    with pytest.raises(ArgumentError):
        same_event(GAUSSIAN, GAUSSIAN, rel_tol=-1.0)
