"""One wording for one kind of mistake, and plain numbers out."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privet import checks
from privet.errors import ArgumentError

NOT_NUMBERS = [
    None,
    "1",
    b"1",
    True,
    False,
    [1.0],
    math.nan,
    1j,
    np.array([1.0, 2.0]),
    torch.tensor([1.0, 2.0]),
]


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=lambda value: f"{type(value).__name__} {value}"[:12])
@pytest.mark.parametrize(
    "check",
    [checks.number, checks.positive, checks.non_negative, checks.probability, checks.count],
    ids=lambda c: c.__name__,
)
def test_what_is_not_one_number_is_refused_by_name_everywhere(check: object, value: object) -> None:
    with pytest.raises(ArgumentError, match=r"^size must be"):
        check("size", value)  # type: ignore[operator]


@pytest.mark.parametrize("value", [3, np.float32(3), np.int8(3), torch.tensor(3.0), Fraction(3), Decimal(3)], ids=repr)
def test_numbers_of_every_kind_become_floats(value: object) -> None:
    found = checks.number("size", value)
    assert type(found) is float
    assert found == 3.0


def test_numbers_too_large_for_a_float_are_refused() -> None:
    with pytest.raises(ArgumentError, match="size"):
        checks.number("size", 10**400)


@given(st.floats(allow_nan=False))
@settings(deadline=None)
def test_ranges_accept_exactly_their_numbers(value: float) -> None:
    def accepts(check: object, **options: bool) -> bool:
        try:
            return bool(check("x", value, **options) == value)  # type: ignore[operator]
        except ArgumentError:
            return False

    assert accepts(checks.positive) == (0 < value < math.inf)
    assert accepts(checks.positive, allow_infinite=True) == (value > 0)
    assert accepts(checks.non_negative) == (0 <= value < math.inf)
    assert accepts(checks.probability) == (0 < value < 1)
    assert accepts(checks.probability, allow_zero=True) == (0 <= value < 1)
    assert accepts(checks.probability, allow_one=True) == (0 < value <= 1)
    assert accepts(checks.probability, allow_zero=True, allow_one=True) == (0 <= value <= 1)


@given(value=st.integers(), minimum=st.integers(-5, 5))
@settings(deadline=None)
def test_counts_accept_whole_numbers_from_their_minimum(value: int, minimum: int) -> None:
    if value >= minimum:
        assert checks.count("steps", value, minimum=minimum) == value
    else:
        with pytest.raises(ArgumentError, match=f"steps must be at least {minimum}, got {value}"):
            checks.count("steps", value, minimum=minimum)


@pytest.mark.parametrize("value", [2.0, np.float64(2), Fraction(4, 2), torch.tensor(2)], ids=repr)
def test_a_count_is_never_a_fraction_even_when_it_is_whole(value: object) -> None:
    with pytest.raises(ArgumentError, match="whole number"):
        checks.count("steps", value)


def test_counts_of_other_libraries_become_plain_integers() -> None:
    assert type(checks.count("steps", np.int64(3))) is int


def test_messages_name_the_open_and_closed_ends() -> None:
    with pytest.raises(ArgumentError, match=r"rate must lie in \(0, 1\], got 1\.5"):
        checks.probability("rate", 1.5, allow_one=True)
    with pytest.raises(ArgumentError, match=r"rate must lie in \[0, 1\), got -0\.5"):
        checks.probability("rate", -0.5, allow_zero=True)
