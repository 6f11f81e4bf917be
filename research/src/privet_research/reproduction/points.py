"""The points of the five publications: every statement, formula, table and figure, with what shows it here."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from enum import Enum
from functools import cache
from importlib import resources
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from privet.errors import RecipeError
from privet.runs.recipes.training_settings import Table


class State(Enum):
    """How far a point has come.

    ``DONE``: shown or computed on the publication's own terms, whether the result agrees with it or not. ``PARTLY``:
    some of it is. ``STAND_IN``: other data or another network was used. ``NOT_RUN``: the code is there and the rows
    are not. ``LEFT_OUT``: it cannot be had here, for the reason given.
    """

    DONE = "done"
    PARTLY = "partly"
    STAND_IN = "stand-in"
    NOT_RUN = "not run"
    LEFT_OUT = "left out"


class Point(Table):
    """One point.

    Attributes:
        work: Authors and year.
        says: What the point is, in a few words.
        state: How far it has come.
        entries: Published tables and figures whose verdicts show it.
        code: Functions and classes that compute it, as ``module:name``.
        tests: Tests that show it, as ``path::name``.
        lacks: What is missing, and why; None for what is done.
        needs: What would settle it, with its cost; None for what is done or left out.
    """

    work: str
    says: str
    state: Annotated[State, Field(strict=False)]
    entries: list[str] = Field(default_factory=list)
    code: list[str] = Field(default_factory=list)
    tests: list[str] = Field(default_factory=list)
    lacks: str | None = None
    needs: str | None = None

    @model_validator(mode="after")
    def _shows_or_says_what_is_missing(self) -> Self:
        if self.state is State.DONE:
            if not (self.entries or self.code or self.tests):
                raise ValueError("a point that is done names an entry, code or a test that shows it")
            if self.lacks is not None or self.needs is not None:
                raise ValueError("a point that is done lacks nothing")
            return self
        if self.lacks is None:
            raise ValueError("a point that is not done says in lacks what is missing")
        if (self.needs is None) != (self.state is State.LEFT_OUT):
            raise ValueError("a point that is not done says in needs what would settle it, unless it is left out")
        return self


@cache
def points() -> Sequence[Point]:
    """Return all points, in the order of the publications.

    Raises:
        RecipeError: the packaged list contradicts itself.
    """
    return parse_points((resources.files("privet_research") / "recipes" / "points.toml").read_text("utf-8"))


def parse_points(text: str) -> Sequence[Point]:
    """Read a list of points.

    Raises:
        RecipeError: the text is not TOML, or a point has unknown keys or contradicts itself.
    """
    try:
        given = tomllib.loads(text)["points"]
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise RecipeError(f"The list of points is not TOML with a table 'points': {error}.") from None
    found = []
    for place, values in enumerate(given):
        try:
            found.append(Point.model_validate(values))
        except ValidationError as error:
            raise RecipeError(f"Point {place + 1}, {values.get('says')!r}: {error.errors()[0]['msg']}.") from None
    return tuple(found)


def counted_states(chosen: Sequence[Point]) -> dict[State, int]:
    """Return how many points are in each state; states that none is in are left out."""
    counts = {state: sum(point.state is state for point in chosen) for state in State}
    return {state: count for state, count in counts.items() if count}


def counts_in_words(chosen: Sequence[Point]) -> str:
    """Return the counts as text: ``119 points: 100 done, ...``."""
    counts = ", ".join(f"{count} {state.value}" for state, count in counted_states(chosen).items())
    return f"{len(chosen)} points: {counts}"
