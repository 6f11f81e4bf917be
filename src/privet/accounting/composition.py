"""Composition of the rounds of a plan, with one proof for each kind of release.

Every round has a cost. The cost of several rounds depends on the release (every iterate, or only the last one) and on
the noise (independent in each round, or reused).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from privet.accounting.calibration import epsilon_table
from privet.accounting.charges import Charges
from privet.accounting.guarantee import Guarantee
from privet.mechanism.events import DpEvent, compose
from privet.vocabulary import Adjacency, Release


class Composition(Protocol):
    """The composition of the rounds of a run. Plan, ledger checks, audits and reports use only this interface.

    Attributes:
        released: The models that an attacker is assumed to see.
        assumptions: Assumptions of this composition about a run, in addition to those of each round.
        needs_completion: Whether the proof covers only completed runs.
    """

    @property
    def released(self) -> Release: ...
    @property
    def assumptions(self) -> tuple[str, ...]: ...
    @property
    def needs_completion(self) -> bool: ...

    def event(self, round_event: DpEvent, rounds: int) -> DpEvent:
        """Return the event of this many rounds, given the event of one round."""
        ...

    def covers(self, ledger: Charges, round_event: DpEvent, rounds: int) -> bool:
        """Whether the proof covers a run with this ledger that was planned for this many rounds."""
        ...

    def charged(self, ledger: Charges, round_event: DpEvent) -> DpEvent:
        """Return the event of a covered run, from its ledger."""
        ...

    def stated(self, found: Guarantee) -> Guarantee:
        """Return the guarantee with the name of this proof as its accountant."""
        ...

    def epsilon_table(
        self, round_event: DpEvent, rounds: int, *, delta: float, adjacency: Adjacency
    ) -> list[tuple[int, float]]:
        """Return a short table of (number of rounds, upper bound on epsilon)."""
        ...


@dataclass(frozen=True, kw_only=True)
class EveryIterate:
    """Every round is released and has independent noise: the events of all rounds compose adaptively.

    Guarantee: covers every ledger, with any charges and any end of its run.
    """

    @property
    def released(self) -> Release:
        return Release.EVERY_ITERATE

    @property
    def assumptions(self) -> tuple[str, ...]:
        return ()

    @property
    def needs_completion(self) -> bool:
        return False

    def event(self, round_event: DpEvent, rounds: int) -> DpEvent:
        return compose(((round_event, rounds),))

    def covers(self, ledger: Charges, round_event: DpEvent, rounds: int) -> bool:
        return True

    def charged(self, ledger: Charges, round_event: DpEvent) -> DpEvent:
        return compose(ledger.charged)

    def stated(self, found: Guarantee) -> Guarantee:
        return found

    def epsilon_table(
        self, round_event: DpEvent, rounds: int, *, delta: float, adjacency: Adjacency
    ) -> list[tuple[int, float]]:
        return epsilon_table(round_event, rounds, delta=delta, adjacency=adjacency)
