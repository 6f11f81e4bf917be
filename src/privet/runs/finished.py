"""Whether a run has come to its end, so that running it again has nothing left to do."""

from __future__ import annotations

from privet.plan import Plan
from privet.runs.ledger_check import LedgerCheck, check_ledger
from privet.runs.run_files import RunFiles, read_json


def finished_ledger(files: RunFiles, plan: Plan) -> LedgerCheck | None:
    """Return what the ledger of a finished run says, or None where something is left to do.

    Guarantee:
        Nothing is written: the newest row of the ledger stays the one that certificates name.
    Edge cases: a run that ended between its last step and its model, a ledger that disagrees with its plan, and a
    missing checkpoint count as unfinished. Going on with such a run puts it right, or says what is wrong.

    Raises:
        LedgerError: the ledger's chain is broken.
    """
    if not files.model.exists() or not files.status.exists() or read_json(files.status).get("state") != "finished":
        return None
    found = check_ledger(files.folder)
    agrees = found.mismatch is None and plan.is_named(found.plan_hash)
    return found if agrees and found.is_finished and found.steps_kept is not None else None
