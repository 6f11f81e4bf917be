"""The run folder: ledger and checkpoints side by side, and the rules for taking them up again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn
from torch.optim import Optimizer

from privet.accounting.ledger import Ledger
from privet.accounting.ledger.heads import UserHeads
from privet.errors import CheckpointError, LedgerError, LedgerMismatch, LoopError
from privet.mechanism.clipping import ClippingRun
from privet.mechanism.noise import NoiseRun
from privet.plan import Plan
from privet.training.averaging import RunningAverage
from privet.training.batching import MapDataset
from privet.training.checkpoint import Checkpoint, as_bytes, contents, load_checkpoint, write_checkpoint
from privet.training.data_seal import DataSeal
from privet.training.last_iterate import LastIterateChain
from privet.training.loop_events import Observer
from privet.training.shard_files import INDEX_NAME
from privet.training.weight_watch.guard import LoopGuard

_LOG = logging.getLogger("privet")

LEDGER_NAME = "ledger.jsonl"
CHECKPOINT_NAME = "checkpoint.safetensors"


@dataclass(kw_only=True, eq=False)
class RunState:
    """All that a run carries from step to step besides its ledger: the content of a checkpoint.

    Attributes:
        model: Trained.
        optimizer: Updates it.
        clipping: The clipping piece at work.
        noise: The noise piece at work.
        average: The running average of the weights, if one is kept.
        position: Which step of the plan comes next.
        steps_taken: How many steps are in the model; fewer than ``position`` if some were lost with an earlier process.
    """

    model: nn.Module
    optimizer: Optimizer
    clipping: ClippingRun
    noise: NoiseRun
    average: RunningAverage | None = None
    position: int = 0
    steps_taken: int = 0

    def take(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint that belongs to the run."""
        checkpoint.restore(self.model, self.optimizer)
        self.position, self.steps_taken = checkpoint.step, checkpoint.steps_taken
        self.clipping.restore(checkpoint.clipping)
        self.noise.restore(checkpoint.noise)
        if self.average is not None:
            self.average.restore(checkpoint.average)

    def contents(self, ledger: Ledger) -> tuple[str, dict[str, Tensor]]:
        """Return the contents of a checkpoint of the run as it stands."""
        return contents(
            model=self.model, optimizer=self.optimizer,
            step=self.position, steps_taken=self.steps_taken, head=ledger.head, plan_hash=ledger.plan_hash,
            clipping=self.clipping.state(), noise=self.noise.state(),
            average={} if self.average is None else self.average.tensors(),
        )  # fmt: skip

    def to_bytes(self, ledger: Ledger) -> bytes:
        """Return a checkpoint of the run as it stands."""
        return as_bytes(*self.contents(ledger))


@dataclass(frozen=True)
class RunFolder:
    """The folder in which a session keeps its ledger and its checkpoints.

    Attributes:
        path: The folder.
        every: Steps between checkpoints.
        reserve_ahead: Steps charged per durable write, in whole rounds. A crash loses at most this many unused steps,
            or the rest of one round if that is longer; each write costs a few milliseconds.
        assumptions: Assumptions of the run's guarantees besides those of the plan; written into a new ledger.
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

    def open_ledger(self, plan: Plan, *, is_seeded: bool, num_processes: int = 1) -> Ledger:
        """Open the folder's ledger, or create it for a new run, whose first row says whether the user chose its seed.

        Args:
            plan: The run's.
            is_seeded: Whether the user chose the seed.
            num_processes: How many ranks carry out the run.

        Raises:
            LedgerError: if checkpoints lie here without a ledger, so that what they cost is unknown, or if a seed is
                given to a run that was begun without one: its ledger could not say that it is not private any more.
        """
        if self.ledger_path.exists():
            ledger = Ledger.open(
                self.ledger_path,
                plan_hash=plan.hash,
                former_hashes=plan.former_hashes,
                heads=UserHeads(),
                num_processes=num_processes,
            )
            if is_seeded and not ledger.is_seeded:
                ledger.close()
                raise LedgerError(
                    f"The run in {self.path} was begun without a seed, and seed= would make it NOT PRIVATE from here "
                    "on, which its ledger does not say. Leave out the seed to resume it, or start in a new folder."
                )
            return ledger
        if self.checkpoint_path.exists() or (self.path / INDEX_NAME).exists():
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
            num_processes=num_processes,
        )

    def restore(self, state: RunState, *, plan: Plan, ledger: Ledger, dataset: MapDataset | None) -> bool:
        """Load the newest intact checkpoint, if there is one and it belongs to this ledger; say whether there was.

        Steps that an earlier process charged after that checkpoint are lost; how many is logged, in public numbers.
        Another rank compares the data with the seal where ``dataset`` is None.
        """
        if dataset is not None:
            DataSeal.of_run(self.ledger_path).check(dataset)
        checkpoint = load_checkpoint(self.checkpoint_path)
        charged = ledger.charged_rounds * plan.sampling.steps_per_round
        if checkpoint is None:
            if charged:
                _LOG.warning(
                    "Resuming %s from the start: %d steps were charged, but there is no checkpoint of them. They stay "
                    "paid for; %d steps are left.", self.path, charged, plan.num_steps - charged,
                )  # fmt: skip
            return False
        if not plan.matches_hash(checkpoint.plan_hash):
            raise CheckpointError(f"The checkpoint in {self.path} was made under another plan. Start in a new folder.")
        if not ledger.contains(checkpoint.head):
            raise CheckpointError(
                f"The checkpoint in {self.path} names a ledger row that the ledger does not have: the ledger was "
                "rolled back or belongs to another run. Restore the newest ledger; never an older one."
            )
        state.take(checkpoint)
        if checkpoint.step < plan.num_steps:
            _LOG.warning(
                "Resuming %s from the checkpoint of step %d; %d steps charged after it are lost, %d steps are left.",
                self.path, checkpoint.step, max(0, charged - checkpoint.step), plan.num_steps - charged,
            )  # fmt: skip
        return True

    def checkpoint(self, state: RunState, ledger: Ledger) -> None:
        """Write a checkpoint of the run as it stands."""
        write_checkpoint(self.checkpoint_path, state.to_bytes(ledger))


@dataclass(kw_only=True, eq=False)
class Checkpoints(Observer):
    """Writes checkpoints of a run into its folder, where they are due.

    Attributes:
        folder: The run's.
        state: The state that is written.
        ledger: The run's.
        guard: Compares the weights before they are written.
        chain: Decides where a run that hides its iterates may be taken up again; None for other runs.
        write_together: Writes the parts of all ranks of a sharded model, which all of them call; None for other runs.
    """

    folder: RunFolder
    state: RunState
    ledger: Ledger
    guard: LoopGuard
    chain: LastIterateChain | None
    write_together: Callable[[RunFolder, RunState, Ledger], None] | None = None

    def is_due(self, steps_ended: int) -> bool:
        """Whether a checkpoint is written after so many steps."""
        if self.chain is not None:
            return self.chain.is_due(steps_ended, self.folder.every)
        return steps_ended % self.folder.every == 0

    def run_begins(self, charged_rounds: int) -> None:
        # a run that breaks off in its first epoch goes on from the public beginning
        if self.chain is not None and not charged_rounds:
            self._write()

    def step_ends(self, steps_ended: int) -> None:
        if self.is_due(steps_ended):
            self.write()

    def write(self) -> None:
        """Compare the weights, and write them.

        Raises:
            LoopError: where a run that hides its iterates may not show one.
        """
        if self.chain is not None and not self.chain.may_checkpoint:
            raise LoopError("A run with Release.LAST_ITERATE writes checkpoints at the ends of its passes only.")
        self.guard.look(waits=True)
        self._write()

    def run_ends(self, error: BaseException | None) -> None:
        is_whole = self.chain is None or self.chain.may_checkpoint
        if error is not None and self.write_together is not None:
            return  # the other ranks may be anywhere
        if is_whole and not self.guard.is_broken and not isinstance(error, LedgerMismatch):
            with nullcontext() if error is None else suppress(Exception):
                self._write()

    def _write(self) -> None:
        if self.write_together is None:
            self.folder.checkpoint(self.state, self.ledger)
        else:
            self.write_together(self.folder, self.state, self.ledger)
