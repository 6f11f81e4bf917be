"""One published table or figure: a TOML file with its claims, read strictly, without torch."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from enum import Enum
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from privet.errors import ArgumentError, RecipeError
from privet.mechanism.codec import suggestion
from privet.runs.recipes.training_settings import Count, NotNegative, Table

Fact = str | int | float | bool
# By key the value that a row must have, or a list of values of which it must have one.
Filter = dict[str, Fact | list[Fact]]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Profile(Enum):
    """The size of a reproduction."""

    FULL = "full"
    QUICK = "quick"


class Claim(Table):
    """One statement of a publication that rows can confirm or deny.

    The quantity is the mean over seeds of ``scale * measure`` over the rows that match ``of``, less that over the rows
    that match ``minus``, seed by seed; of several settings those that both sides have.

    Attributes:
        says: The statement, in words.
        measure: Key of the rows.
        of: Facts of the rows that count.
        minus: Facts of the rows that are compared with, if any.
        scale: Factor for display, such as 100 for percent.
        chosen_by: Of several rows of one seed take the one in which this key is largest, as a tuned run is reported.
        chosen_smallest: Take the smallest instead.
        paper: The published figure, in the units of the quantity.
        tolerance: The statement holds if the 95 % interval of the quantity is this near to ``paper``.
        because: Why the tolerance is as large as it is; a wrong result must not fit into it.
        at_least: The statement holds if the 95 % interval of the quantity lies at or above this.
        at_most: The same for at or below.
        exact: Whether the quantity is computed and not sampled, so that one value decides.
        stand_in: Which data or network stand for the publication's in this claim; None if they are its own.
        quick: Whether the quick profile can test the claim too. Shortened training cannot repeat a published figure.
    """

    says: str
    measure: str
    of: Filter = Field(default_factory=dict)
    minus: Filter | None = None
    scale: Finite = 1.0
    chosen_by: str | None = None
    chosen_smallest: bool = False
    paper: Finite | None = None
    tolerance: NotNegative | None = None
    because: str | None = None
    at_least: Finite | None = None
    at_most: Finite | None = None
    exact: bool = False
    stand_in: str | None = None
    quick: bool = False

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        rules = [value is not None for value in (self.tolerance, self.at_least, self.at_most)]
        if sum(rules) != 1:
            raise ValueError("a claim has exactly one of tolerance, at_least and at_most")
        if self.tolerance is not None and self.paper is None:
            raise ValueError("a claim with a tolerance needs the paper's figure to compare with")
        if (self.tolerance is not None) != (self.because is not None):
            raise ValueError("a claim with a tolerance says in because why it is as large, and no other claim does")
        return self

    @property
    def compared_with(self) -> float:
        """The number that the quantity is compared with: the paper's figure, or the bound."""
        numbers = (self.paper if self.tolerance is not None else None, self.at_least, self.at_most)
        return next(number for number in numbers if number is not None)

    @property
    def accepted(self) -> tuple[float, float]:
        """The least and the largest quantity for which the statement is true."""
        if self.tolerance is not None:
            return self.compared_with - self.tolerance, self.compared_with + self.tolerance
        return (self.compared_with, math.inf) if self.at_least is not None else (-math.inf, self.compared_with)

    @property
    def rule(self) -> str:
        """The condition as text."""
        if self.tolerance is not None:
            return f"within {self.tolerance:g}"
        return f"at least {self.at_least:g}" if self.at_least is not None else f"at most {self.at_most:g}"


class Lines(Table):
    """A line plot of rows.

    Attributes:
        x: Key along the horizontal axis.
        y: Key along the vertical axis; means over seeds are drawn, with standard errors.
        line: Key of the lines; None for one line.
        panel: Key of the panels; None for one panel.
        log_x: Whether the horizontal axis is logarithmic.
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.
    """

    x: str
    y: str
    line: str | None = None
    panel: str | None = None
    log_x: bool = False
    x_label: str
    y_label: str


class Entry(Table):
    """One table or figure of a publication.

    Attributes:
        paper: Authors and year.
        title: What the publication calls it, such as ``Table 1``.
        shows: One line.
        studies: Names of the studies that make its rows; none if it cannot be had.
        where: Facts of the studies' rows that belong to it; all rows if empty.
        data: Data sets under PRIVET_DATA that it reads.
        extras: Optional parts of this package that it needs.
        stand_in: Which data or network stand for the publication's in all claims; None if they are its own.
        quick_stand_in: The same for the quick profile alone.
        reconstructed: What differs from the publication, or is not known any more, and what stands for it.
        chosen_on_test: What was chosen by results on test data; None if nothing was.
        unavailable: What cannot be had, and why; the whole of it if there are no studies.
        full_seeds: Runs per arm of the full profile.
        quick_seeds: Runs per arm of the quick profile.
        lines: How its picture is drawn; None takes the studies' own pictures, if they have any.
        claims: What the publication says of it.
    """

    paper: str
    title: str
    shows: str
    studies: list[str] = Field(default_factory=list)
    where: Filter = Field(default_factory=dict)
    data: list[str] = Field(default_factory=list)
    extras: list[str] = Field(default_factory=list)
    stand_in: str | None = None
    quick_stand_in: str | None = None
    reconstructed: str | None = None
    chosen_on_test: str | None = None
    unavailable: str | None = None
    full_seeds: Count = 3
    quick_seeds: Count = 1
    lines: Lines | None = None
    claims: list[Claim] = Field(default_factory=list)

    @model_validator(mode="after")
    def _runs_or_says_why_not(self) -> Self:
        if self.studies and not self.claims:
            raise ValueError("an entry with studies needs claims to judge")
        if not self.studies and (self.unavailable is None or self.claims):
            raise ValueError("an entry without studies says in unavailable why, and has no claims")
        return self

    @property
    def remarks(self) -> list[str]:
        """Whatever is not as in the publication, a sentence or more each."""
        given = {
            "Stand-in": self.stand_in,
            "Stand-in of the quick version": self.quick_stand_in,
            "Reconstructed": self.reconstructed,
            "Chosen on test data": self.chosen_on_test,
            "Not available": self.unavailable,
        }
        return [f"{name}: {text}" for name, text in given.items() if text is not None]

    def replaced(self, profile: Profile) -> str | None:
        """Return which data or network stand for the publication's at a profile; None if they are its own."""
        return self.stand_in or (self.quick_stand_in if profile is Profile.QUICK else None)

    def num_seeds(self, profile: Profile) -> int:
        """Return the runs per arm of a profile."""
        return self.quick_seeds if profile is Profile.QUICK else self.full_seeds


@cache
def entries() -> Mapping[str, Entry]:
    """Return every published table and figure by name, in the order of the names and of the numbers in them."""
    folder = resources.files("privet_research") / "recipes" / "reproduce"
    found = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: _order(file.name)
    )
    return MappingProxyType(
        {file.name.removesuffix(".toml"): parse_entry(file.read_text("utf-8"), where=file.name) for file in found}
    )


def _order(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


def parse_entry(text: str, *, where: str) -> Entry:
    """Read one entry.

    Raises:
        RecipeError: the text is not TOML, has unknown keys or values of another type, or contradicts itself.
    """
    try:
        values: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{where} is not valid TOML: {error}.") from None
    try:
        return Entry.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RecipeError(f"{where}: {f'{place}: ' if place else ''}{first['msg']}.") from None


def find_entry(name: str) -> Entry:
    """Return the entry of this name.

    Raises:
        ArgumentError: there is none; the message suggests the nearest names.
    """
    known = entries()
    if name not in known:
        raise ArgumentError(
            f"There is no published table or figure {name!r}. {suggestion(name, list(known))} "
            "See all with: privet reproduce --list."
        )
    return known[name]
