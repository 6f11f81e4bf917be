"""Checks of a ledger against its plan. Needs no torch and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError, safe_open

from privet import checks
from privet.accounting.charges import without_besides
from privet.accounting.guarantee import Guarantee
from privet.accounting.ledger.rollback import read_newest
from privet.accounting.ledger.rows import Further
from privet.accounting.ledger.tally import LedgerHead
from privet.accounting.ledger.views import LedgerView
from privet.accounting.library_check import confirmed
from privet.errors import LedgerCorrupt, LedgerMismatch, PrivetError
from privet.mechanism.events import DpEvent
from privet.plan import Plan
from privet.runs.resuming import stored_recipe
from privet.runs.run_files import RunFiles, read_json
from privet.vocabulary import Release


@dataclass(frozen=True, kw_only=True)
class LedgerCheck:
    """The result of reading a ledger whose chain is intact; a broken one is an error.

    Attributes:
        plan: The plan in the ledger's first row.
        event: The composition of all charges, for the release that the plan describes.
        spent: The guarantee of all charges.
        trained: The guarantee of the rounds of the plan alone, which is that of the model.
        further: The releases besides the plan, such as private evaluations.
        rounds_charged: Rounds charged.
        rounds_planned: Rounds of the plan.
        is_finished: Whether the plan is used up and, where only the last model is released, its end was reached.
        num_rows: Rows in the chain.
        num_voids: Charged rounds that an error or an interrupt ended.
        num_mismatches: Rounds that ran with another event than the reserved one.
        head: SHA-256 of the newest row.
        plan_hash: The hash that every row names.
        mismatch: Why the ledger does not agree with its plan, or None if it does.
        steps_kept: Steps in the model of the folder's newest checkpoint; None without a checkpoint.
    """

    plan: Plan
    event: DpEvent
    spent: Guarantee
    trained: Guarantee
    further: tuple[Further, ...]
    rounds_charged: int
    rounds_planned: int
    is_finished: bool
    num_rows: int
    num_voids: int
    num_mismatches: int
    head: str
    plan_hash: str
    mismatch: str | None
    steps_kept: int | None = None

    @property
    def steps_charged(self) -> int:
        """Steps that the charged rounds pay for."""
        return self.rounds_charged * self.plan.sampling.steps_per_round

    @property
    def steps_lost(self) -> int | None:
        """Charged steps that are not in the model because their process ended first; None if unknown."""
        return None if self.steps_kept is None else max(0, self.steps_charged - self.steps_kept)


def check_ledger(run_or_ledger: Path) -> LedgerCheck:
    """Read the ledger of a run folder, or a ledger file, and compare it with its plan.

    Raises:
        LedgerError: there is no ledger, its chain is broken, or other files of the folder show that it was rolled back.
    """
    files = RunFiles(folder=run_or_ledger) if run_or_ledger.is_dir() else None
    # Before the ledger is read: a live run writes rows first, and the checkpoints that name them afterwards.
    others = None if files is None else _OtherFiles.of(files)
    view = read_newest(run_or_ledger if files is None else files.ledger, where=run_or_ledger)
    plan = Plan.from_dict(view.plan, where="ledger")
    if others is not None:
        others.check(view, view.charged_rounds * plan.sampling.steps_per_round, run_or_ledger)
    try:
        if not plan.matches_hash(view.plan_hash):
            raise LedgerMismatch("The plan in the ledger's first row is not the one its rows were charged under.")
        view.verify(plan.segments)
        if files is not None:
            _refuse_unrecorded_seed(view, files)
        mismatch = None
    except LedgerMismatch as error:
        mismatch = str(error)
    event = plan.spent_event(view)
    spent = confirmed(plan.account(view), event)
    return LedgerCheck(
        plan=plan,
        event=event,
        spent=spent,
        trained=plan.account(without_besides(view)) if view.further else spent,
        further=view.further,
        rounds_charged=view.charged_rounds,
        rounds_planned=plan.num_rounds,
        is_finished=plan.is_finished(view),
        num_rows=view.num_rows,
        num_voids=view.num_voids,
        num_mismatches=view.num_mismatches,
        head=view.head.sha256,
        plan_hash=view.plan_hash,
        mismatch=mismatch,
        steps_kept=None if others is None else others.steps_kept,
    )


def plan_end_text(check: LedgerCheck) -> str:
    """Say whether the run reached the end of its plan, and the consequence for a bound on the last model."""
    if check.is_finished:
        return "reached"
    if check.plan.release is Release.EVERY_ITERATE:
        return "not reached"
    return "not reached: the bound on the last model does not apply, and every iterate is charged"


def lost_steps_text(check: LedgerCheck) -> str:
    """Say how many charged steps are not in the model."""
    if check.steps_lost is None:
        return "not known: there is no checkpoint"
    if check.is_finished or check.steps_lost == 0:
        return f"{check.steps_lost:,}"
    return f"{check.steps_lost:,}, unless the run is still active"


def steps_in_checkpoint(path: Path) -> int | None:
    """Return the number of steps in the model of a checkpoint; None if it is missing or not written by privet."""
    facts = _facts_in_checkpoint(path)
    try:
        return checks.count("steps_taken", facts.get("steps_taken", facts.get("step")), minimum=0)
    except PrivetError:
        return None


def _facts_in_checkpoint(path: Path) -> Mapping[str, Any]:
    if path.is_symlink() or not path.is_file():
        return {}
    try:
        with safe_open(str(path), "numpy") as tensors:
            facts = json.loads((tensors.metadata() or {})["privet"])
    except (OSError, SafetensorError, KeyError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


@dataclass(frozen=True, kw_only=True)
class _OtherFiles:
    """Facts about the ledger in other files of a run folder.

    Attributes:
        steps_kept: Steps in the model of the newest checkpoint.
        head: The newest ledger row when the checkpoint was written.
        steps_done: Steps done, according to the status file.
    """

    steps_kept: int | None
    head: LedgerHead | None
    steps_done: int

    @classmethod
    def of(cls, files: RunFiles) -> Self:
        """Read them; a missing or damaged file contributes nothing."""
        head = _facts_in_checkpoint(files.checkpoint).get("head")
        try:
            named = LedgerHead(seq=head["seq"], sha256=head["sha256"]) if isinstance(head, dict) else None
        except (PrivetError, KeyError, TypeError, ValueError):
            named = None
        try:
            done = checks.count("steps_done", read_json(files.status).get("steps_done"), minimum=0)
        except (PrivetError, OSError):
            done = 0
        return cls(steps_kept=steps_in_checkpoint(files.checkpoint), head=named, steps_done=done)

    def check(self, view: LedgerView, steps_charged: int, folder: Path) -> None:
        """Refuse a ledger that lacks rows or steps: its epsilon would be smaller than the epsilon spent."""
        if self.head is not None and not view.contains(self.head):
            found = f"The checkpoint in {folder} names row {self.head.seq}, which the ledger does not have"
        elif self.steps_done > steps_charged:
            done, charged = f"{self.steps_done:,}", f"{steps_charged:,}"
            found = f"{folder} says that {done} steps were done, and its ledger that {charged} were charged"
        else:
            return
        raise LedgerCorrupt(
            f"{found}: the ledger was rolled back, or belongs to another run. Restore the newest ledger; an older one "
            "understates the privacy that was spent."
        )


def _refuse_unrecorded_seed(view: LedgerView, files: RunFiles) -> None:
    """Raise ``LedgerMismatch`` where the recipe names a seed that the ledger does not record."""
    try:
        seed = stored_recipe(files).training.seed
    except PrivetError:
        return  # a ledger can be read without its recipe
    if seed is not None and not view.is_seeded:
        raise LedgerMismatch(
            "The recipe names a seed, and the ledger does not say that the run was seeded: the recipe was changed, or "
            "the run is not private."
        )


def finished_ledger(files: RunFiles, plan: Plan) -> LedgerCheck | None:
    """Return the checked ledger of a finished run, or None for an unfinished one.

    Guarantee:
        Nothing is written: the newest row of the ledger stays the one that certificates name.
    Edge cases: a run that ended between its last step and its model, a ledger that disagrees with its plan, and a
    missing checkpoint count as unfinished. Resuming such a run repairs it, or reports the fault.

    Raises:
        LedgerError: the ledger's chain is broken.
    """
    if not files.model.exists() or not files.status.exists() or read_json(files.status).get("state") != "finished":
        return None
    found = check_ledger(files.folder)
    agrees = found.mismatch is None and plan.matches_hash(found.plan_hash)
    return found if agrees and found.is_finished and found.steps_kept is not None else None
