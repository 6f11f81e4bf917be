"""The words of a guarantee say what changes and for whom."""

from __future__ import annotations

import pytest

from privet.vocabulary import Adjacency, Unit


@pytest.mark.parametrize("unit", list(Unit))
def test_every_adjacency_has_its_own_words_and_names_the_unit(unit: Unit) -> None:
    words = {adjacency.words(unit) for adjacency in Adjacency}
    assert len(words) == len(Adjacency)
    assert all(unit.value in sentence for sentence in words)
