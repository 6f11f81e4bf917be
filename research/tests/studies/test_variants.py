from __future__ import annotations

from dataclasses import dataclass

import pytest

from privet.errors import ArgumentError
from privet_research.studies.study import Study
from privet_research.studies.variants import variants


@dataclass(frozen=True, kw_only=True)
class Knobs:
    rank: int = 1
    rate: float = 0.5
    is_on: bool = True
    arms: tuple[str, ...] = ("a", "b")


def test_several_values_make_a_grid_and_no_change_makes_one_variant() -> None:
    found = variants(Knobs(), ["rank=2,4", "rate=1e-3,1"])
    assert [(each.rank, each.rate) for each in found] == [(2, 1e-3), (2, 1.0), (4, 1e-3), (4, 1.0)]
    assert variants(Knobs(), []) == [Knobs()]


def test_values_take_the_type_of_what_they_replace() -> None:
    assert variants(Knobs(), ["is_on=false", "arms=b", "rate=2"]) == [Knobs(is_on=False, arms=("b",), rate=2.0)]
    assert variants(Knobs(), ["arms=b+a"])[0].arms == ("b", "a")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("rank", "key=value"),
        ("rank=", "key=value"),
        ("rnak=2", "rank"),
        ("rank=1.5", "'1.5' is not a value of that type"),
        ("is_on=1", "'1' is not a value of that type"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(change: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        variants(Knobs(), [change])


def test_a_key_is_set_once() -> None:
    with pytest.raises(ArgumentError, match="set twice"):
        variants(Knobs(), ["rank=2", "rank=4"])


def test_a_study_without_settings_refuses_changes() -> None:
    study = Study(name="plain", description="", num_seeds=1, run=lambda *_: iter(()), table=lambda _: "")
    assert study.varied([]) is study.run
    with pytest.raises(ArgumentError, match="no settings that can be changed"):
        study.varied(["rank=2"])
