"""Whether this process trains alone: a ledger knows of one process, and so does its guarantee."""

from __future__ import annotations

import os
import sys

from privet.errors import LedgerError

_VARIABLE = "WORLD_SIZE"
_ALONE = ("", "0", "1")


def check_alone() -> None:
    """Refuse to spend privacy in one process of several that were started together.

    Every process would draw its own batches, add its own noise and charge its own ledger, so that no ledger charges
    what leaves them together. A launcher tells of the others through the environment, before they meet; a process group
    tells of them once they have.

    Guarantee: called whenever a ledger is taken into use and before every charge, so a group that is formed later is
    seen too.
    Edge cases: a group of one process is alone. Launchers that neither set the variable nor form a group are not seen.

    Raises:
        LedgerError: saying how many processes there are, and how to train with one.
    """
    started = os.environ.get(_VARIABLE, "").strip()
    if started not in _ALONE:
        raise LedgerError(_told(f"the environment variable {_VARIABLE} is {started!r}", unset=f"unset {_VARIABLE}, "))
    # Accounting does without torch; where it was never imported there is no group.
    group = sys.modules.get("torch.distributed")
    if group is not None and group.is_available() and group.is_initialized() and group.get_world_size() > 1:
        raise LedgerError(_told(f"torch.distributed is initialised with {group.get_world_size()} processes", unset=""))


def _told(found: str, *, unset: str) -> str:
    return (
        f"Private training runs in one process, and {found}: each of them would train alone, with batches, noise and "
        f"a ledger of its own, and no guarantee would speak of them together. Start one process with python instead of "
        f"torchrun, mpirun or accelerate launch, {unset}and form no process group. Runs of their own on the same data "
        "belong in folders of their own, and their guarantees add up."
    )
