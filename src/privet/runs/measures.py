"""Measured results as rows: each number with its count of examples and its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from scipy.special import betaincinv, ndtri

from privet import checks
from privet.errors import ArgumentError
from privet.html_tables import facts_table
from privet.records import Record

CONFIDENCE = 0.95
# The epsilon of a run without privacy; JSON has no infinite number.
_INFINITY = "infinity"


@dataclass(frozen=True, kw_only=True)
class Measure(Record):
    """One measured number.

    Attributes:
        name: Name of the measure.
        value: The number.
        low: Lower end of the interval.
        high: Upper end of the interval.
        num_examples: Number of examples measured.
        interval: Level and method of the interval.
    """

    WHAT: ClassVar[str] = "a measure"

    name: str
    value: float
    low: float
    high: float
    num_examples: int
    interval: str


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """A measure after one step of a run."""

    step: int
    epsilon: float
    measure: Measure

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        if not isinstance(data, Mapping) or not {"step", "epsilon", "measure"} <= set(data):
            raise ArgumentError("This is not a point of a curve: it needs step, epsilon and measure.")
        return cls(
            step=checks.count("step", data["step"], minimum=0),
            epsilon=math.inf if data["epsilon"] == _INFINITY else checks.number("epsilon", data["epsilon"]),
            measure=Measure.from_dict(data["measure"]),
        )

    def to_dict(self) -> dict[str, Any]:
        epsilon = _INFINITY if math.isinf(self.epsilon) else self.epsilon
        return {"step": self.step, "epsilon": epsilon, "measure": self.measure.to_dict()}


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Measures of a model on the test split, at the end and during training.

    Not covered by the guarantee: these are exact functions of the test data.
    """

    measures: tuple[Measure, ...]
    curve: tuple[CurvePoint, ...] = ()
    split: str = "test"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        measures, curve = data.get("measures"), data.get("curve", [])
        if not isinstance(measures, list) or not isinstance(curve, list):
            raise ArgumentError("These are not metrics: they need a list of measures.")
        return cls(
            measures=tuple(Measure.from_dict(row) for row in measures),
            curve=tuple(CurvePoint.from_dict(row) for row in curve),
            split=str(data.get("split", "test")),
        )

    def _repr_html_(self) -> str:
        """Return the measures for a notebook."""
        rows = {
            each.name: f"{each.value:.4g} ({each.low:.4g} to {each.high:.4g}, {each.interval})"
            for each in self.measures
        }
        return facts_table(f"Measured on the {self.split} split, not covered by the guarantee", rows)

    def to_dict(self) -> dict[str, Any]:
        return {
            "split": self.split,
            "measures": [measure.to_dict() for measure in self.measures],
            "curve": [point.to_dict() for point in self.curve],
        }


def share(name: str, num_right: int, num_examples: int) -> Measure:
    """Return a share with its exact (Clopper and Pearson, 1934) interval.

    Edge cases: no examples give the share 0 with the interval from 0 to 1.
    """
    n = checks.count("num_examples", num_examples, minimum=0)
    k = checks.count("num_right", num_right, minimum=0)
    if k > n:
        raise ArgumentError(f"num_right ({k}) is larger than num_examples ({n}).")
    tail = (1 - CONFIDENCE) / 2
    low = float(betaincinv(k, n - k + 1, tail)) if k > 0 else 0.0
    high = float(betaincinv(k + 1, n - k, 1 - tail)) if k < n else 1.0
    return Measure(
        name=name,
        value=k / n if n else 0.0,
        low=low,
        high=high,
        num_examples=n,
        interval="95 % Clopper-Pearson",
    )


def mean(name: str, total: float, total_of_squares: float, num_examples: int) -> Measure:
    """Return a mean with its normal interval, from a sum and a sum of squares.

    Edge cases: with fewer than two examples the interval is the mean alone.
    """
    n = checks.count("num_examples", num_examples, minimum=0)
    value = total / n if n else 0.0
    variance = max(0.0, total_of_squares / n - value**2) * n / (n - 1) if n > 1 else 0.0
    half = float(ndtri((1 + CONFIDENCE) / 2)) * math.sqrt(variance / n) if n else 0.0
    return Measure(name=name, value=value, low=value - half, high=value + half, num_examples=n, interval="95 % normal")
