"""A layout gives every parameter its own stretch of one vector, without gaps or overlaps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.errors import PlanError
from privet.mechanism.grouping import OneGroup, PerLayer, PerParameter
from privet.mechanism.layout import Layout

shapes = st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=6)


@given(shapes=shapes)
@settings(deadline=None, max_examples=80)
def test_stretches_cover_the_vector_once_and_in_order(shapes: list[list[int]]) -> None:
    layout = Layout.of([(f"p{i}", shape) for i, shape in enumerate(shapes)], PerParameter())
    covered = [index for where in layout.slices for index in range(where.start, where.stop)]
    assert covered == list(range(layout.num_coordinates))
    assert layout.sizes == tuple(math.prod(shape) for shape in shapes)
    assert layout.offsets == tuple(where.start for where in layout.slices)
    assert layout.shapes == tuple(tuple(shape) for shape in shapes)
    assert layout.num_groups == len(shapes)


def test_a_scalar_takes_one_coordinate() -> None:
    layout = Layout.of([("scale", ()), ("weight", (2, 3))], OneGroup())
    assert layout.slices == (slice(0, 1), slice(1, 7))


def test_groups_come_from_the_grouping() -> None:
    named = [("a.weight", (2,)), ("a.bias", (1,)), ("b.weight", (2,))]
    assert Layout.of(named, PerLayer()).groups == (0, 0, 1)
    assert Layout.of(named, PerLayer()).num_groups == 2


def test_a_model_with_nothing_to_train_is_refused_with_the_fix() -> None:
    with pytest.raises(PlanError, match="requires_grad"):
        Layout.of([], OneGroup())


@pytest.mark.parametrize("groups", [(0, 2), (1, 1), (0,), (0, 0, 0), (-1, 0)], ids=str)
def test_a_grouping_with_gaps_or_missing_parameters_is_refused_by_name(groups: tuple[int, ...]) -> None:
    @dataclass(frozen=True)
    class Broken:
        def groups_of(self, names: Sequence[str]) -> tuple[int, ...]:
            return groups

    with pytest.raises(PlanError, match="Broken"):
        Layout.of([("a", (1,)), ("b", (1,))], Broken())
