"""Groupings put together what belongs together, and refuse what they cannot place."""

from __future__ import annotations

import pytest

from privet.errors import ArgumentError, PlanError
from privet.mechanism.grouping import ByName, OneGroup, PerLayer, PerParameter

NAMES = ["embed.weight", "block.0.weight", "block.0.bias", "head.weight", "head.bias", "scale"]


def test_one_group_holds_everything() -> None:
    assert OneGroup().groups_of(NAMES) == (0, 0, 0, 0, 0, 0)


def test_layers_hold_their_weight_and_bias_together() -> None:
    assert PerLayer().groups_of(NAMES) == (0, 1, 1, 2, 2, 3)


def test_a_layer_seen_again_keeps_its_group() -> None:
    assert PerLayer().groups_of(["a.weight", "b.weight", "a.bias"]) == (0, 1, 0)


def test_every_parameter_can_have_its_own_group() -> None:
    assert PerParameter().groups_of(NAMES) == (0, 1, 2, 3, 4, 5)


def test_parts_are_found_by_whole_components_of_the_name() -> None:
    grouping = ByName(parts=(("embed", "block"), ("head", "scale")))
    assert grouping.groups_of(NAMES) == (0, 0, 0, 1, 1, 1)
    with pytest.raises(PlanError, match=r"'header\.weight' belongs to no group"):
        grouping.groups_of(["header.weight"])


def test_a_parameter_in_two_parts_is_refused() -> None:
    with pytest.raises(PlanError, match=r"groups \[0, 1\]"):
        ByName(parts=(("block",), ("block.0",))).groups_of(["block.0.weight"])


@pytest.mark.parametrize("parts", [(), ((),), (("a",), ()), (("",),), (("a",), ("a",))], ids=str)
def test_empty_or_repeated_prefixes_are_refused(parts: tuple[tuple[str, ...], ...]) -> None:
    with pytest.raises(ArgumentError, match="parts"):
        ByName(parts=parts)


@pytest.mark.parametrize("parts", [("ab", "cd"), ("ab", ("cd",)), "ab"], ids=str)
def test_a_name_where_a_group_of_names_belongs_is_refused_and_not_read_letter_by_letter(parts: object) -> None:
    with pytest.raises(ArgumentError, match="parts"):
        ByName(parts=parts)  # type: ignore[arg-type]


def test_lists_mean_the_same_as_tuples() -> None:
    lists = ByName(parts=[["a"], ["b", "c"]])  # type: ignore[arg-type]
    tuples = ByName(parts=(("a",), ("b", "c")))
    assert lists == tuples
    assert repr(lists) == repr(tuples), "a plan's fingerprint is made of it"
