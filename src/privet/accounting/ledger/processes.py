"""Whether the processes that were started together are those that a ledger speaks for."""

from __future__ import annotations

import os
import sys

from privet.errors import LedgerError

_VARIABLE = "WORLD_SIZE"
_ALONE = ("", "0", "1")


def check_company(num_processes: int) -> None:
    """Refuse to spend privacy unless as many processes were started together as carry out the run.

    If others ran beside it, every process would draw its own batches, add its own noise and charge its own ledger, so
    that no ledger charges what leaves them together. A launcher tells of the others through the environment, before
    they meet; a process group tells of them once they have.

    Args:
        num_processes: How many processes carry out the run, which have met as its ranks.

    Guarantee: called whenever a ledger is taken into use and before every charge, so a group that is formed, changed or
    given up later is seen too.
    Edge cases: a group of one process is alone. Launchers that neither set the variable nor form a group are not seen.

    Raises:
        LedgerError: saying how many processes there are, and how to train with them or with one.
    """
    started = os.environ.get(_VARIABLE, "").strip()
    if started not in _ALONE and started != str(num_processes):
        raise LedgerError(
            _refusal(f"the environment variable {_VARIABLE} is {started!r}", unset=f"unset {_VARIABLE}, ")
        )
    # Accounting does without torch; where it was never imported there is no group.
    group = sys.modules.get("torch.distributed")
    found = group.get_world_size() if group is not None and group.is_available() and group.is_initialized() else 1
    if found != num_processes:
        if num_processes > 1:
            raise LedgerError(
                f"The process group changed during the run: {num_processes} ranks share its ledger, and now there are "
                f"{found}. Leave the group alone until the run is over; what was charged stays charged."
            )
        raise LedgerError(_refusal(f"torch.distributed is initialised with {found} processes", unset=""))


def _refusal(found: str, *, unset: str) -> str:
    return (
        f"This ledger speaks for one process, and {found}: each of them would train alone, with batches, noise and a "
        "ledger of its own, and no guarantee would speak of them together. Call torch.distributed.init_process_group() "
        "before privatize(), which then trains with all of them; or start one process with python instead of torchrun, "
        f"mpirun or accelerate launch, {unset}and form no process group. Runs of their own on the same data belong in "
        "folders of their own, and their guarantees add up."
    )


def new_process_word(num_processes: int) -> bytes:
    """Return a new word for this process, which must be one of as many as train together."""
    check_company(num_processes)
    return os.urandom(8).hex().encode()


def new_run_word() -> str:
    """Return a new word for a run."""
    return os.urandom(16).hex()
