from __future__ import annotations

import ast
import importlib
from functools import cache
from pathlib import Path

import pytest

from privet.errors import RecipeError
from privet_research.reproduction.entry import Profile, entries
from privet_research.reproduction.points import Point, State, counted_states, parse_points, points
from privet_research.reproduction.publications import PUBLICATIONS
from privet_research.reproduction.running import Choices, judged, stored_studies
from privet_research.reproduction.verdicts import Verdict

ROOT = Path(__file__).resolve().parents[3]
EACH = [pytest.param(point, id=f"{point.work.split()[0]}, {point.says}") for point in points()]
GOOD = '[[points]]\nwork = "w"\nsays = "s"\n'


@cache
def functions_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@cache
def verdict_from_stored_rows(name: str) -> Verdict:
    entry, source = entries()[name], ROOT / "research" / "results"
    choices = Choices(folder=source, profile=Profile.FULL, source=source)
    return judged(name, entry, stored_studies(entry, source, Profile.FULL), choices, ()).verdict[0]


@pytest.mark.parametrize("point", EACH)
def test_what_shows_a_point_exists(point: Point) -> None:
    assert point.work in PUBLICATIONS
    assert set(point.entries) <= set(entries())
    for name in point.entries:
        assert entries()[name].paper == point.work
    for place in point.code:
        module, name = place.split(":")
        assert callable(getattr(importlib.import_module(module), name))
    for place in point.tests:
        path, name = place.split("::")
        assert name in functions_in(path)


@pytest.mark.parametrize(
    "point", [each for each in EACH if each.values[0].state is State.DONE and each.values[0].entries]
)
def test_an_entry_that_shows_a_point_has_rows_of_the_publications_own_data_and_network(point: Point) -> None:
    for name in point.entries:
        assert verdict_from_stored_rows(name) not in (Verdict.NOT_RUN, Verdict.STAND_IN)


def test_every_entry_belongs_to_a_point_or_says_in_one_what_it_lacks() -> None:
    named = {name for point in points() for name in point.entries}
    # Pictures without a printed figure: code and a test show them.
    assert set(entries()) - named == {"feature-noise-figure-3"}


def test_no_point_is_listed_twice() -> None:
    assert sum(counted_states(points()).values()) == len(points())
    assert len({(point.work, point.says) for point in points()}) == len(points())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + 'state = "done"\n', "shows it"),
        (GOOD + 'state = "done"\ncode = ["a:b"]\nlacks = "x"\n', "lacks nothing"),
        (GOOD + 'state = "partly"\nneeds = "x"\n', "says in lacks"),
        (GOOD + 'state = "not run"\nlacks = "x"\n', "says in needs"),
        (GOOD + 'state = "left out"\nlacks = "x"\nneeds = "y"\n', "unless it is left out"),
        (GOOD + 'state = "finished"\ncode = ["a:b"]\n', "done"),
        (GOOD + 'state = "done"\ncode = ["a:b"]\nproof = "x"\n', "not permitted"),
        ("points = ", "not TOML"),
    ],
    ids=[
        "shown by nothing",
        "done and lacking",
        "no gap",
        "no remedy",
        "remedy of what is left",
        "state",
        "key",
        "toml",
    ],
)
def test_a_point_that_contradicts_itself_is_refused(text: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        parse_points(text)
