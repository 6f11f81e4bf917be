"""What the rounds of a plan cost together: one proof for each way in which a run may be released.

A round has a price of its own. What several rounds cost depends on what is released of them: every iterate, or the
last one alone; and on the noise, if that of one round is used again in another.
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
    """How the rounds of a run compose. Plan, ledger checks, audits and reports ask it, and nothing else."""

    @property
    def released(self) -> Release:
        """What an attacker is assumed to see."""
        ...

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must hold of a run for the rounds to compose so, besides what each round needs."""
        ...

    @property
    def needs_completion(self) -> bool:
        """Whether a run must have come to its planned end to be covered."""
        ...

    def event(self, round_event: DpEvent, rounds: int) -> DpEvent:
        """Return what this many rounds reveal together, given what one of them costs."""
        ...

    def covers(self, ledger: Charges, round_event: DpEvent, rounds: int) -> bool:
        """Whether a run with this ledger, planned for this many rounds, is one that the proof is about."""
        ...

    def charged(self, ledger: Charges, round_event: DpEvent) -> DpEvent:
        """Return what a run that is covered has revealed, by its ledger."""
        ...

    def stated(self, found: Guarantee) -> Guarantee:
        """Return a guarantee that names the proof it rests on."""
        ...

    def epsilon_table(
        self, round_event: DpEvent, rounds: int, *, delta: float, adjacency: Adjacency
    ) -> list[tuple[int, float]]:
        """Return a short table of (rounds run, epsilon spent at most)."""
        ...


@dataclass(frozen=True, kw_only=True)
class EveryIterate:
    """Every round is released and has noise of its own: the events of all rounds compose adaptively.

    Guarantee: holds for every ledger, whatever it charges and however its run ended.
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
