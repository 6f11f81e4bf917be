"""The guarantee of all runs of a project together. Needs no torch and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from privet.accounting.composition import EveryIterate
from privet.accounting.guarantee import Guarantee, guarantee
from privet.errors import ArgumentError
from privet.mechanism.events import DpEvent, compose
from privet.runs.ledger_check import LedgerCheck, check_ledger
from privet.runs.recipes.table_settings import ReleasedSettings
from privet.vocabulary import Release

_SAME_DATA = "the listed runs are all that was ever released about the data, which all of them used"

_TWICE = "One ledger was named twice. A run is charged once: name every run once."


@dataclass(frozen=True, kw_only=True)
class ProjectTotal:
    """The ledgers of several runs, composed.

    Attributes:
        guarantee: The guarantee of all runs together.
        runs: The result of each run, by its given path.
        mismatch: Why a ledger does not agree with its plan, or None if all agree.
    """

    guarantee: Guarantee
    runs: Mapping[str, LedgerCheck]
    mismatch: str | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "guarantee": self.guarantee.to_dict(),
            "agrees_with_plans": self.mismatch is None,
            "runs": {
                name: {
                    "guarantee": check.spent.to_dict(),
                    "rounds_charged": check.rounds_charged,
                    "mismatch": check.mismatch,
                    "head": check.head,
                }
                for name, check in self.runs.items()
            },
        }


def total_of_runs(paths: Sequence[Path], *, delta: float | None = None) -> ProjectTotal:
    """Compose everything that the ledgers of several runs charged.

    Guarantee: an upper bound for someone who sees the released models of all runs; runs may have been planned after
    looking at earlier ones. It holds for data sets that overlap in any way, because every run is charged in full.
    Edge cases: one run gives its own guarantee; the same ledger named twice, runs of different adjacency or unit, and
    runs of different delta without a ``delta`` of the total raise ``ArgumentError``.
    """
    if not paths:
        raise ArgumentError("A total needs at least one run.")
    if len({path.resolve() for path in paths}) < len(paths):
        raise ArgumentError(_TWICE)
    runs = {str(path): check_ledger(path) for path in paths}
    checks = list(runs.values())
    if len({check.head for check in checks}) < len(paths):
        raise ArgumentError(_TWICE)
    for name, values in (
        ("adjacency", {check.plan.adjacency.value for check in checks}),
        ("unit", {check.plan.unit.value for check in checks}),
    ):
        if len(values) > 1:
            raise ArgumentError(f"Runs of different {name} have no common guarantee: {', '.join(sorted(values))}.")
    deltas = {check.plan.delta for check in checks}
    if delta is None and len(deltas) > 1:
        raise ArgumentError("The runs were planned for different deltas. Give the delta of the total.")
    return ProjectTotal(
        guarantee=_guarantee(
            checks, compose([(check.event, 1) for check in checks]), deltas.pop() if delta is None else delta
        ),
        runs=runs,
        mismatch=next((f"{name}: {check.mismatch}" for name, check in runs.items() if check.mismatch), None),
    )


@dataclass(frozen=True, kw_only=True)
class WithSchema:
    """What a run and the release of its schema spent together.

    Attributes:
        event: All charges of both.
        guarantee: Their guarantee.
        schema_epsilon: The epsilon of the schema alone.
    """

    event: DpEvent
    guarantee: Guarantee
    schema_epsilon: float


def with_schema(check: LedgerCheck, released: ReleasedSettings | None) -> WithSchema | None:
    """Return what a run and the release of its schema spent together; None without such a release, or any promise.

    Guarantee: all rounds and evaluations of the ledger are composed with the release, whose ledger is another one, so
    that the figure is that of ``total_of_runs`` for both.
    """
    if released is None or check.spent.not_private_because:
        return None
    event = compose([(check.event, 1), (released.event, 1)])
    total = _guarantee([check], event, check.spent.delta)
    return WithSchema(event=event, guarantee=total, schema_epsilon=released.spent_epsilon)


def _guarantee(checks: Sequence[LedgerCheck], event: DpEvent, delta: float) -> Guarantee:
    # Where some runs release every iterate and others only the last one, the total is stated as for the latter.
    of_last = [check.plan.composition for check in checks if check.spent.released is Release.LAST_ITERATE]
    composition = of_last[0] if of_last else EveryIterate()
    found = guarantee(
        event,
        delta=delta,
        adjacency=checks[0].plan.adjacency,
        unit=checks[0].plan.unit,
        released=composition.released,
        assumptions=(_SAME_DATA, *dict.fromkeys(word for check in checks for word in check.spent.assumptions)),
        of_unit=(),  # each run says its own, with the others
        not_private_because=tuple(dict.fromkeys(word for check in checks for word in check.spent.not_private_because)),
    )
    found = replace(found, tried=tuple(dict.fromkeys(word for check in checks for word in check.spent.tried)))
    return composition.stated(found)
