"""Choosing between time and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.errors import ArgumentError
from privet.gradients.norms.budgets import Balanced, Fast, Layers, Lean, Tried
from privet.gradients.norms.strategies import Gram, NormOnly, Store


def tried(seconds: float, kept_bytes: float) -> Tried:
    return Tried(strategy=Gram(), seconds=seconds, kept_bytes=kept_bytes)


STORED = Tried(strategy=Store(), seconds=1.0, kept_bytes=30.0)
FACTORS = Tried(strategy=NormOnly(), seconds=3.0, kept_bytes=10.0)


def layers(order: Sequence[int], options: Sequence[Sequence[Tried]], *, plain_bytes: float) -> Layers:
    return Layers(order=order, options=options, factor_bytes=[10.0] * len(options), plain_bytes=plain_bytes)


def test_fast_takes_the_least_time_whatever_it_keeps() -> None:
    assert list(Fast().choose(layers([0], [[FACTORS, STORED]], plain_bytes=10))) == [STORED]


def test_lean_stores_only_where_that_keeps_no_more_than_the_factors() -> None:
    small = Tried(strategy=Store(), seconds=1.0, kept_bytes=9.0)
    assert list(Lean().choose(layers([0, 1], [[FACTORS, STORED], [FACTORS, small]], plain_bytes=20))) == [
        FACTORS,
        small,
    ]


def test_lean_takes_the_smallest_where_nothing_is_as_small_as_the_factors() -> None:
    options = [tried(1, 50), tried(2, 40)]
    assert list(Lean().choose(layers([0], [options], plain_bytes=20))) == [options[1]]


def test_balanced_gives_up_the_exchange_that_loses_least_time_for_each_byte() -> None:
    cheap = [tried(1.0, 30), tried(1.5, 10)]
    dear = [tried(1.0, 30), tried(9.0, 10)]
    chosen = Balanced(share=2.0).choose(layers([0, 1], [dear, cheap], plain_bytes=20))
    assert list(chosen) == [dear[0], cheap[1]]


def test_balanced_keeps_the_fastest_while_the_peak_is_within_the_share() -> None:
    assert list(Balanced(share=3.0).choose(layers([0], [[FACTORS, STORED]], plain_bytes=10))) == [STORED]
    assert list(Balanced(share=2.9).choose(layers([0], [[FACTORS, STORED]], plain_bytes=10))) == [FACTORS]


def test_balanced_allows_a_processor_its_own_share() -> None:
    found = layers([0], [[FACTORS, STORED]], plain_bytes=10)
    on_processor = replace(found, on_processor=True)
    assert list(Balanced(share=2.9, processor_share=3.0).choose(on_processor)) == [STORED]
    assert list(Balanced(share=2.9, processor_share=3.0).choose(found)) == [FACTORS]
    assert list(Balanced(share=3.0, processor_share=2.9).choose(on_processor)) == [FACTORS]
    with pytest.raises(ArgumentError, match="processor_share"):
        Balanced(processor_share=0.0)


def test_balanced_ignores_layers_that_gradients_reach_after_the_peak() -> None:
    """The last layer's gradients are smaller than what is let go there, so exchanging them would lower no peak."""
    late = [tried(1.0, 5), tried(1.1, 1)]
    chosen = Balanced(share=1.0).choose(layers([0, 1], [[STORED, FACTORS], late], plain_bytes=20))
    assert list(chosen) == [FACTORS, late[0]]


def test_a_strategy_that_failed_is_never_exchanged_for() -> None:
    failed = Tried(strategy=Gram(), seconds=math.inf, kept_bytes=1.0, failure="RuntimeError: no")
    assert list(Balanced(share=1.0).choose(layers([0], [[STORED, failed]], plain_bytes=1))) == [STORED]
    assert list(Lean().choose(layers([0], [[STORED, failed]], plain_bytes=1))) == [STORED]


@pytest.mark.parametrize("share", [0.0, -1.0, math.inf, "1.25"], ids=str)
def test_a_share_must_be_a_positive_number(share: float) -> None:
    with pytest.raises(ArgumentError, match="share"):
        Balanced(share=share)


_option = st.builds(tried, st.floats(0.01, 10), st.floats(0.1, 100))
_options = st.lists(st.lists(_option, min_size=1, max_size=4), min_size=1, max_size=4)


@settings(deadline=None, max_examples=100)
@given(options=_options, share=st.floats(1, 4), data=st.data())
def test_balanced_is_within_its_share_or_as_small_as_it_can_be_up_to_the_peak(
    options: list[list[Tried]], share: float, data: st.DataObject
) -> None:
    order = data.draw(st.lists(st.integers(0, len(options) - 1), min_size=1, max_size=6))
    given_layers = layers(order, options, plain_bytes=10.0 * len(order))
    chosen = Balanced(share=share).choose(given_layers)
    peak, where = given_layers.peak(chosen)
    smallest = all(
        chosen[shape].kept_bytes <= min(option.kept_bytes for option in options[shape]) for shape in order[: where + 1]
    )
    assert peak <= share * given_layers.plain_bytes or smallest
    fastest = Fast().choose(given_layers)
    assert peak <= max(given_layers.peak(fastest)[0], given_layers.plain_bytes)


def test_the_peak_is_never_below_what_plain_training_holds() -> None:
    assert layers([0], [[tried(1, 0.0)]], plain_bytes=40).peak([tried(1, 0.0)]) == (40, -1)
