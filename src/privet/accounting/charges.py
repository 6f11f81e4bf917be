"""The interface of a ledger to accounting: all inputs of a guarantee other than the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

from privet.mechanism.events import DpEvent


class Charges(Protocol):
    """A ledger, open or read from a file, as :meth:`privet.plan.Plan.account` uses it.

    Guarantee: every figure is computed from these properties and the plan, so two statements about one ledger cannot
    differ.

    Attributes:
        charged: Every charged event with its number of rounds.
        planned: The charges without the releases besides the plan.
        besides: The releases besides the plan.
        charged_rounds: The number of charged rounds of the plan.
        is_complete: Whether a row records that the plan was completed.
        is_seeded: Whether the user chose the seed of the random streams.
        assumptions: Assumptions of the guarantee other than those of the plan.
        why_not_private: Reasons, other than a seed, why there is no guarantee; empty if there is one.
        tried: Reasons why the isolation of examples was tested and not proven; empty if it was proven.
    """

    @property
    def charged(self) -> Sequence[tuple[DpEvent, int]]: ...
    @property
    def planned(self) -> Sequence[tuple[DpEvent, int]]: ...
    @property
    def besides(self) -> Sequence[tuple[DpEvent, int]]: ...
    @property
    def charged_rounds(self) -> int: ...
    @property
    def is_complete(self) -> bool: ...
    @property
    def is_seeded(self) -> bool: ...
    @property
    def assumptions(self) -> tuple[str, ...]: ...
    @property
    def why_not_private(self) -> tuple[str, ...]: ...
    @property
    def tried(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, kw_only=True)
class HypotheticalCharges:
    """Charges without a ledger, for the cost of a hypothetical run; the attributes are those of :class:`Charges`."""

    planned: Sequence[tuple[DpEvent, int]]
    besides: Sequence[tuple[DpEvent, int]] = ()
    is_complete: bool = False
    is_seeded: bool = False
    assumptions: tuple[str, ...] = ()
    why_not_private: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()

    @property
    def charged(self) -> Sequence[tuple[DpEvent, int]]:
        return (*self.planned, *self.besides)

    @property
    def charged_rounds(self) -> int:
        return sum(rounds for _, rounds in self.planned)


def without_besides(ledger: Charges) -> HypotheticalCharges:
    """Return the charges of a ledger for the rounds of its plan alone, as if nothing else had been released.

    Guarantee: every other fact of the ledger is taken over, also one that charges come to state later.
    """
    facts = {field.name: getattr(ledger, field.name) for field in fields(HypotheticalCharges)}
    return replace(HypotheticalCharges(**facts), besides=())
