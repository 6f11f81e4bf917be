"""Results that are stored as JSON and read back by the types of their fields."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Annotated, Any

import pytest

from privet import checks
from privet.errors import ArgumentError
from privet.records import Count, Size, read_record


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Point:
    x: float
    y: Size


@dataclass(frozen=True, kw_only=True)
class Shape:
    name: str
    corners: tuple[Point, ...]
    number: Count
    holes: int
    centre: tuple[float, float]
    share: Annotated[float, checks.probability] | None
    colour: Colour | None = None


SHAPE = Shape(name="a", corners=(Point(x=-1.0, y=0.0),), number=1, holes=0, centre=(0.5, 1.0), share=None)
STORED: dict[str, Any] = json.loads(json.dumps(asdict(SHAPE)))


def read(**changes: Any) -> Shape:
    return read_record(Shape, {**STORED, **changes}, what="a shape")


def test_a_record_is_read_as_it_was_stored() -> None:
    assert read() == SHAPE
    assert read(share=0.5, colour="red") == replace(SHAPE, share=0.5, colour=Colour.RED)


def test_an_entry_that_may_be_none_by_default_may_be_missing_and_no_other() -> None:
    without = {name: value for name, value in STORED.items() if name != "colour"}
    assert read_record(Shape, without, what="a shape") == SHAPE
    for name in without:
        with pytest.raises(ArgumentError, match=f"not a shape: '{name}'"):
            read_record(Shape, {key: value for key, value in STORED.items() if key != name}, what="a shape")


@pytest.mark.parametrize(
    "changes",
    [
        {"corners": [{"x": 1.0, "y": -1.0}]},
        {"corners": [{"x": "1", "y": 1.0}]},
        {"corners": {"x": 1.0, "y": 1.0}},
        {"corners": [3]},
        {"number": 0},
        {"holes": -1},
        {"holes": 1.0},
        {"centre": [1.0]},
        {"share": 2.0},
        {"colour": "blue"},
    ],
    ids=str,
)
def test_an_entry_of_the_wrong_type_or_size_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        read(**changes)


@pytest.mark.parametrize("data", [None, [], "text"], ids=str)
def test_values_that_are_no_object_are_refused(data: Any) -> None:
    with pytest.raises(ArgumentError, match="not a shape"):
        read_record(Shape, data, what="a shape")
