"""How the trials of a search are charged: together, if they are drawn independently, or each by composition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from privet import checks
from privet.accounting.private_selection import RandomSearch
from privet.mechanism.events import DpEvent, compose


class TrialCharges(Protocol):
    """The charge of a search.

    Attributes:
        may_adapt: Whether the settings of a trial may depend on the results of earlier ones.
        assumptions: What the charge rests on, in words.
    """

    may_adapt: ClassVar[bool]

    @property
    def assumptions(self) -> tuple[str, ...]: ...

    def at_start(self, one_run: DpEvent) -> DpEvent | None:
        """Return what is charged before the first trial; None if trials are charged one by one."""
        ...

    def total(self, one_run: DpEvent) -> DpEvent:
        """Return the event of the whole search, as planned."""
        ...

    def num_trials(self, rng: np.random.Generator) -> int:
        """Return the number of trials, drawn once if it is random."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, to be compared when a search is resumed."""
        ...


@dataclass(frozen=True, kw_only=True)
class IndependentTrials:
    """Trials from a fixed law, of a random number, of which only the best is released; charged once, together.

    Guarantee: Papernot and Steinke (2022): the best of a random number of independent runs costs a little more than
    one run, whatever their number turns out to be.

    Attributes:
        search: The law of the number of trials.
    """

    search: RandomSearch

    may_adapt: ClassVar[bool] = False

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (
            *self.search.assumptions,
            "trials were compared by figures of public data, and nothing of the other trials is shown",
        )

    def at_start(self, one_run: DpEvent) -> DpEvent | None:
        return self.search.event(one_run)

    def total(self, one_run: DpEvent) -> DpEvent:
        return self.search.event(one_run)

    def num_trials(self, rng: np.random.Generator) -> int:
        return self.search.draw_num_runs(rng)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "independent", "mean": self.search.mean, "shape": str(self.search.shape)}


@dataclass(frozen=True, kw_only=True)
class EveryTrial:
    """A fixed number of trials, each charged in full: settings may follow results, and all trials may be shown.

    Attributes:
        count: The number of trials.
    """

    count: int

    may_adapt: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.fields(self, checks.count, "count")

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (
            "the settings of later trials followed the results of earlier ones, so every trial is charged in full",
            "trials were compared by figures of public data",
        )

    def at_start(self, one_run: DpEvent) -> DpEvent | None:
        return None

    def total(self, one_run: DpEvent) -> DpEvent:
        return compose([(one_run, self.count)])

    def num_trials(self, rng: np.random.Generator) -> int:
        return self.count

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "every_trial", "count": self.count}
