"""Laws of every grouping: each parameter in exactly one group, groups numbered without gaps, order as given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.mechanism.codec import GROUPING, decode_piece, encode_piece
from privet.mechanism.grouping import ByName, Grouping, OneGroup, PerLayer, PerParameter
from privet.mechanism.layout import Layout

GROUPINGS: Mapping[type, Sequence[Grouping]] = {
    OneGroup: [OneGroup()],
    PerLayer: [PerLayer()],
    PerParameter: [PerParameter()],
    ByName: [ByName(parts=(("a", "c"), ("b", "d")))],
}
each_member = pytest.mark.parametrize(
    "grouping", [piece for pieces in GROUPINGS.values() for piece in pieces], ids=repr
)
ALL_NAMES = [f"{first}.x.{last}" for first in "abcd" for last in ("weight", "bias")]
names = st.lists(
    st.builds(
        ".".join, st.tuples(st.sampled_from("abcd"), st.sampled_from("xyz"), st.sampled_from(["weight", "bias"]))
    ),
    min_size=1,
    max_size=12,
    unique=True,
)


@each_member
@given(names=names)
@settings(deadline=None, max_examples=60)
def test_every_parameter_gets_one_known_group(grouping: Grouping, names: list[str]) -> None:
    groups = grouping.groups_of(names)
    assert len(groups) == len(names)
    assert all(isinstance(group, int) and group >= 0 for group in groups)
    if not isinstance(grouping, ByName) or len(set(groups)) == len(grouping.parts):
        layout = Layout.of([(name, (2,)) for name in names], grouping)
        assert layout.num_groups == len(set(groups))


@each_member
def test_a_layout_gives_every_coordinate_to_one_group_whatever_the_order_of_its_parameters(grouping: Grouping) -> None:
    for names in (ALL_NAMES, ALL_NAMES[::-1]):
        layout = Layout.of([(name, (2, 3)) for name in names], grouping)
        owners = [0] * layout.num_coordinates
        for where in layout.slices:
            for place in range(where.start, where.stop):
                owners[place] += 1
        assert owners == [1] * layout.num_coordinates
        assert set(layout.groups) == set(range(layout.num_groups))


@each_member
def test_who_shares_a_norm_does_not_depend_on_who_else_is_there(grouping: Grouping) -> None:
    together = dict(zip(ALL_NAMES, grouping.groups_of(ALL_NAMES), strict=True))
    pair = ["a.x.weight", "a.x.bias"]
    alone = grouping.groups_of(pair)
    assert (alone[0] == alone[1]) == (together[pair[0]] == together[pair[1]])


@each_member
def test_is_a_grouping_by_protocol_and_survives_json(grouping: Grouping) -> None:
    assert isinstance(grouping, Grouping)
    written = json.loads(json.dumps(encode_piece(grouping, GROUPING, where="grouping")))
    assert decode_piece(written, GROUPING, where="grouping") == grouping
