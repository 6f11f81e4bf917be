"""The run folder: ledger and checkpoints side by side, and the rules for taking them up again."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from privet.accounting.ledger import Ledger
from privet.accounting.ledger.heads import UserHeads
from privet.errors import CheckpointError, LedgerError
from privet.plan import Plan
from privet.training.checkpoint import load_checkpoint, save_checkpoint
from privet.training.data_seal import DataSeal

if TYPE_CHECKING:
    from privet.training.session import Session

_LOG = logging.getLogger("privet")

LEDGER_NAME = "ledger.jsonl"
CHECKPOINT_NAME = "checkpoint.safetensors"


@dataclass(frozen=True)
class RunFolder:
    """Where a session keeps what must survive it.

    Attributes:
        path: The folder.
        every: Steps between checkpoints.
        reserve_ahead: Steps charged per durable write, in whole rounds. A crash loses at most this many unused steps,
            or the rest of one round if that is longer; each write costs a few milliseconds.
        assumptions: What guarantees of the run rest on besides what follows from the plan; written into a new ledger.
    """

    path: Path
    every: int = 100
    reserve_ahead: int = 10
    assumptions: tuple[str, ...] = ()

    @property
    def ledger_path(self) -> Path:
        """The ledger's file."""
        return self.path / LEDGER_NAME

    @property
    def checkpoint_path(self) -> Path:
        """The newest checkpoint's file."""
        return self.path / CHECKPOINT_NAME

    def open_ledger(self, plan: Plan, *, is_seeded: bool) -> Ledger:
        """Open the folder's ledger, or create it for a new run, whose first row says whether the user chose its seed.

        Raises:
            LedgerError: if checkpoints lie here without a ledger, so that what they cost is unknown, or if a seed is
                given to a run that was begun without one: its ledger could not say that it is not private any more.
        """
        if self.ledger_path.exists():
            ledger = Ledger.open(
                self.ledger_path, plan_hash=plan.hash, former_hashes=plan.former_hashes, heads=UserHeads()
            )
            if is_seeded and not ledger.is_seeded:
                ledger.close()
                raise LedgerError(
                    f"The run in {self.path} was begun without a seed, and seed= would make it NOT PRIVATE from here "
                    "on, which its ledger does not say. Leave out the seed to resume it, or start in a new folder."
                )
            return ledger
        if self.checkpoint_path.exists():
            raise LedgerError(
                f"{self.path} holds a checkpoint but no {LEDGER_NAME}, so what was spent on it is unknown. Restore the "
                "ledger from a backup, or start in a new folder."
            )
        self.path.mkdir(parents=True, exist_ok=True)
        return Ledger.create(
            self.ledger_path,
            plan=plan.to_dict(),
            plan_hash=plan.hash,
            is_seeded=is_seeded,
            assumptions=self.assumptions,
            heads=UserHeads(),
        )

    def restore(self, session: Session) -> None:
        """Load the newest intact checkpoint, if there is one and it belongs to this ledger.

        What an earlier process charged after that checkpoint is lost; how much is said on the log, in public numbers.
        """
        ledger, plan = session.ledger, session.plan
        DataSeal.of_run(self.ledger_path).check(session._dataset)
        checkpoint = load_checkpoint(self.checkpoint_path)
        charged = ledger.charged_rounds * plan.sampling.steps_per_round
        if checkpoint is None:
            if charged:
                _LOG.warning(
                    "Resuming %s from the start: %d steps were charged, but there is no checkpoint of them. They stay "
                    "paid for; %d steps are left.", self.path, charged, plan.num_steps - charged,
                )  # fmt: skip
            return
        if not plan.is_named(checkpoint.plan_hash):
            raise CheckpointError(f"The checkpoint in {self.path} was made under another plan. Start in a new folder.")
        if not ledger.contains(checkpoint.head):
            raise CheckpointError(
                f"The checkpoint in {self.path} names a ledger row that the ledger does not have: the ledger was "
                "rolled back or belongs to another run. Restore the newest ledger; never an older one."
            )
        checkpoint.restore(session.model, session.optimizer)
        session._position, session.steps_taken = checkpoint.step, checkpoint.steps_taken
        session._clipping.restore(checkpoint.clipping)
        session._noise.restore(checkpoint.noise)
        if session._average is not None:
            session._average.restore(checkpoint.average)
        if checkpoint.step < plan.num_steps:
            _LOG.warning(
                "Resuming %s from the checkpoint of step %d; %d steps charged after it are lost, %d steps are left.",
                self.path, checkpoint.step, max(0, charged - checkpoint.step), plan.num_steps - charged,
            )  # fmt: skip

    def checkpoint(self, session: Session) -> None:
        """Write a checkpoint of the session as it stands."""
        save_checkpoint(
            self.checkpoint_path,
            model=session.model,
            optimizer=session.optimizer,
            step=session._position,
            steps_taken=session.steps_taken,
            head=session.ledger.head,
            plan_hash=session.ledger.plan_hash,
            clipping=session._clipping.state(),
            noise=session._noise.state(),
            average={} if session._average is None else session._average.tensors(),
        )
