"""Private selection: a search with a random number of runs that releases one of them, at a fixed cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from dp_accounting import dp_event

from privet import checks
from privet.accounting.renyi_composition import log_stopping_probability
from privet.errors import ArgumentError
from privet.mechanism.events import DpEvent

_MOST_RUNS = 10**7
# A negative binomial number of runs is zero with probability exp(-shape * u), which is negligible above this.
_NEVER_EMPTY = 100.0


@dataclass(frozen=True, kw_only=True)
class RandomSearch:
    """Try a random number of settings, each drawn independently, and release only the best run.

    The number of runs is drawn once, before the first run, from a public distribution and is not released. Runs must
    not depend on each other. The score that chooses is part of what a run releases: computed without private data, or
    with noise that is charged to the run.

    Attributes:
        mean: Expected number of runs, at least 1.
        shape: Shape of the truncated negative binomial distribution: 1 is geometric (the usual choice), 0 logarithmic,
            infinity Poisson. A Poisson search may have no run.
    """

    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        checks.fields(self, checks.positive, "mean")
        checks.fields(self, checks.number, "shape")
        if self.mean < 1:
            raise ArgumentError(f"mean is {self.mean!r}: a search makes at least one run on average. Use 1 or more.")
        if self.shape < 0:
            raise ArgumentError(
                f"shape is {self.shape!r}: it must be at least 0. 0 is logarithmic, 1 geometric, infinity Poisson "
                "(--length of privet account search)."
            )

    def event(self, one_run: DpEvent) -> DpEvent:
        """Return the event of a search that releases one of its runs and nothing else.

        Guarantee: Papernot and Steinke (2022), Theorems 2 and 6; accounted by Renyi divergences.
        """
        return dp_event.RepeatAndSelectDpEvent(event=one_run, mean=self.mean, shape=self.shape)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions under which the cost is correct."""
        return (
            "the number of runs was drawn once, before the first, from the stated distribution, and is not released",
            "nothing but the best run is released, and no run depends on another",
            "the score that chose it reads no private data, or its noise is charged to the run",
        )

    def draw_num_runs(self, rng: np.random.Generator) -> int:
        """Draw the number of runs; the number is secret. Zero is possible for a Poisson search only.

        Edge cases: a mean of one is one run, whatever the shape, unless the search is Poisson.
        """
        if math.isinf(self.shape):
            return int(rng.poisson(self.mean))
        if self.mean == 1:
            return 1
        if self.shape == 1:
            return int(rng.geometric(1 / self.mean))
        u = -log_stopping_probability(self.mean, self.shape)
        if self.shape * u > _NEVER_EMPTY:
            return max(1, int(rng.negative_binomial(self.shape, math.exp(-u))))
        # Inversion of the distribution function, term by term: Papernot and Steinke (2022), Definition 1.
        stay = -math.expm1(-u)
        first = stay / u if self.shape == 0 else self.shape * stay / math.expm1(self.shape * u)
        left, term, runs = float(rng.random()), first, 1
        while left > term and runs < _MOST_RUNS:
            left -= term
            term *= stay * (runs + self.shape) / (runs + 1)
            runs += 1
        return runs
