"""The law that settings of trials are drawn from: independent choices and ranges, fixed before the first trial."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from privet.errors import RecipeError

# What may vary: none of it changes the charge of a run, which every trial compares with that of the search.
_MAY_VARY = ("model", "normalisation", "training.", "privacy.clipping.", "privacy.grouping.")
_FIXED = ("training.seed",)
_FORMS = "NAME=0.1,0.5,2 for choices, NAME=0.01:1 for a range, NAME=0.01:1:log for one on a logarithmic scale"


class Setting(Protocol):
    """One setting that varies."""

    @property
    def path(self) -> str: ...

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw a value, independent of everything else."""
        ...

    def words(self) -> str:
        """Return the form in which the setting was written."""
        ...


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One of several values, all equally likely."""

    path: str
    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        return self.values[int(rng.integers(len(self.values)))]

    def words(self) -> str:
        return f"{self.path}={','.join(map(str, self.values))}"


@dataclass(frozen=True, kw_only=True)
class Range:
    """A number between two ends, uniform on a plain or a logarithmic scale."""

    path: str
    low: float
    high: float
    is_log: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise RecipeError(f"--vary {self.path}: the range must begin below its end, got {self.low} to {self.high}.")
        if self.is_log and self.low <= 0:
            raise RecipeError(f"--vary {self.path}: a logarithmic scale needs positive ends, got {self.low}.")

    def draw(self, rng: np.random.Generator) -> Any:
        if self.is_log:
            return float(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        return float(rng.uniform(self.low, self.high))

    def words(self) -> str:
        return f"{self.path}={self.low!r}:{self.high!r}{':log' if self.is_log else ''}"


@dataclass(frozen=True, kw_only=True)
class SearchLaw:
    """The settings that vary. Public: it is fixed before the first trial and does not follow results.

    Attributes:
        settings: Each is drawn independently.
    """

    settings: tuple[Setting, ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Self:
        """Read the law from the words of the command line.

        Raises:
            RecipeError: a text has none of the forms, or names a setting that must not vary.
        """
        if not texts:
            raise RecipeError(f"A search needs settings to vary: --vary {_FORMS}.")
        found = tuple(_setting(text) for text in texts)
        twice = next((one.path for one in found if sum(other.path == one.path for other in found) > 1), None)
        if twice is not None:
            raise RecipeError(f"--vary {twice} is given twice. Give each setting once.")
        return cls(settings=found)

    def draw(self, rng: np.random.Generator) -> dict[str, Any]:
        """Draw the settings of one trial."""
        return {setting.path: setting.draw(rng) for setting in self.settings}

    def words(self) -> list[str]:
        return [setting.words() for setting in self.settings]


def overrides_of(values: Mapping[str, Any]) -> list[str]:
    """Return drawn values as overrides of a recipe."""
    return [f"{path}={_toml(value)}" for path, value in values.items()]


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _setting(text: str) -> Setting:
    path, sign, form = text.partition("=")
    path = path.strip()
    if not sign or not form.strip():
        raise RecipeError(f"--vary {text!r} has none of the known forms: {_FORMS}.")
    if path in _FIXED or not any(path == name or (name.endswith(".") and path.startswith(name)) for name in _MAY_VARY):
        raise RecipeError(
            f"--vary {path}: this setting cannot vary. Every trial of a search costs the same, so what decides the "
            f"charge (sampling, noise, steps, data) is fixed. It can be: {', '.join(_MAY_VARY)}."
        )
    parts = form.split(":")
    if len(parts) == 2 or (len(parts) == 3 and parts[2].strip() == "log"):
        try:
            return Range(path=path, low=float(parts[0]), high=float(parts[1]), is_log=len(parts) == 3)
        except ValueError:
            raise RecipeError(f"--vary {text!r}: the ends of a range are numbers. Forms: {_FORMS}.") from None
    return Choice(path=path, values=tuple(_value(word.strip()) for word in form.split(",")))


def _value(word: str) -> Any:
    try:
        return tomllib.loads(f"value = {word}")["value"]
    except tomllib.TOMLDecodeError:
        return word
