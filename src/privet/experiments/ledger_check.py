"""What a ledger says, held against the plan it belongs to. Needs no torch and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from privet.accounting.guarantee import Guarantee
from privet.accounting.ledger import Ledger
from privet.accounting.witness import confirmed
from privet.errors import LedgerMismatch, PrivetError
from privet.experiments.resuming import stored_recipe
from privet.experiments.run_files import RunFiles
from privet.mechanism.events import DpEvent
from privet.plan import Plan

SEEDED = "its random streams were seeded by the user"


@dataclass(frozen=True, kw_only=True)
class LedgerCheck:
    """The result of reading a ledger whose chain is intact; a broken one is an error.

    Attributes:
        plan: The plan in the ledger's first row.
        event: What everything charged amounts to, for the release that the plan describes.
        spent: The guarantee of everything charged.
        rounds_charged: Rounds charged.
        rounds_planned: Rounds of the plan.
        num_rows: Rows in the chain.
        num_voids: Charged rounds that were given up.
        num_mismatches: Rounds that ran as something else than was reserved.
        head: SHA-256 of the newest row.
        plan_hash: The hash that every row names.
        mismatch: Why the ledger does not agree with its plan, or None if it does.
    """

    plan: Plan
    event: DpEvent
    spent: Guarantee
    rounds_charged: int
    rounds_planned: int
    num_rows: int
    num_voids: int
    num_mismatches: int
    head: str
    plan_hash: str
    mismatch: str | None


def check_ledger(run_or_ledger: Path) -> LedgerCheck:
    """Read the ledger of a run folder, or a ledger file, and compare it with its plan.

    Raises:
        LedgerError: there is no ledger, or its chain is broken.
    """
    files = RunFiles(folder=run_or_ledger) if run_or_ledger.is_dir() else None
    view = Ledger.read(run_or_ledger if files is None else files.ledger)
    plan = Plan.from_dict(view.plan, where="ledger")
    try:
        if plan.hash != view.plan_hash:
            raise LedgerMismatch("The plan in the ledger's first row is not the one its rows were charged under.")
        view.verify(plan.segments)
        mismatch = None
    except LedgerMismatch as error:
        mismatch = str(error)
    event = plan.spent_event(view.charged)
    return LedgerCheck(
        plan=plan,
        event=event,
        spent=confirmed(
            plan.account(
                view.charged,
                not_private_because=(SEEDED,) if files is not None and _is_seeded(files) else (),
            ),
            event,
        ),
        rounds_charged=view.charged_rounds,
        rounds_planned=plan.num_rounds,
        num_rows=view.num_rows,
        num_voids=view.num_voids,
        num_mismatches=view.num_mismatches,
        head=view.head.sha256,
        plan_hash=view.plan_hash,
        mismatch=mismatch,
    )


def _is_seeded(files: RunFiles) -> bool:
    try:
        return stored_recipe(files).training.seed is not None
    except PrivetError:
        # A ledger can be read without its recipe; the recipe alone knows of a seed.
        return False
