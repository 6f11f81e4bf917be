"""Laws of every grouping: each parameter in exactly one group, groups numbered without gaps, order as given."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.mechanism.codec import GROUPING, decode_piece, encode_piece
from privet.mechanism.grouping import ByName, Grouping, OneGroup, PerLayer, PerParameter
from privet.mechanism.layout import Layout

MEMBERS: list[Grouping] = [
    OneGroup(),
    PerLayer(),
    PerParameter(),
    ByName(parts=(("a", "c"), ("b", "d"))),
]
each_member = pytest.mark.parametrize("grouping", MEMBERS, ids=repr)
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
def test_is_a_grouping_by_protocol_and_survives_json(grouping: Grouping) -> None:
    assert isinstance(grouping, Grouping)
    written = json.loads(json.dumps(encode_piece(grouping, GROUPING, where="grouping")))
    assert decode_piece(written, GROUPING, where="grouping") == grouping
