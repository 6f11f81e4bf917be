"""All that a trainer of another library must be told about privacy, as one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from privet.isolation.watch import Waiver
from privet.plan import Plan
from privet.training.averaging import ExponentialAverage
from privet.training.batching import Collate, MapDataset
from privet.training.folder import RunFolder
from privet.training.performance import Performance
from privet.training.session import Session
from privet.training.start import privatize
from privet.training.telemetry import Receiver


class Evaluation(Enum):
    """Where the numbers come from that a trainer may decide by: the best model, an early stop, a falling rate."""

    UNDECLARED = "undeclared"
    """Nobody said. They are shown, and nothing is decided by them."""
    PUBLIC = "public"
    """The evaluation data are public, as their owner declares."""
    CHARGED = "charged"
    """``compute_metrics`` returns numbers that were made private and charged elsewhere, as their owner declares."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The sentence in every guarantee of a run that decides by evaluations."""
        words = {
            Evaluation.PUBLIC: "the evaluation data by which the trainer decides are public, as was declared",
            Evaluation.CHARGED: "the metrics by which the trainer decides were charged elsewhere, as was declared",
        }
        return (words[self],) if self in words else ()


@dataclass(frozen=True, kw_only=True)
class PrivateRun:
    """The private half of a training job.

    Attributes:
        plan: The accounted plan. It decides the number of steps, the batches, the clipping and the noise.
        performance: How a step is computed. By default the trainer's arguments say how many examples go through the
            model at once (``per_device_train_batch_size``) and how many workers read the data.
        folder: Where ledger and checkpoints are kept; ``privet`` in the trainer's output folder by default.
        evaluation: Whether the trainer may decide by its evaluations.
        telemetry: Receives exact losses, clipped shares and batch sizes. They are not private.
        log_unprotected: Whether the exact training loss goes to the trainer's logs, as ``unprotected_loss``. It is not
            private.
        averaging: Keeps a moving average of the weights beside them, for ``trainer.session.averaged()``.
        waive: Checks that you answer for where they cannot be held; they stand in the guarantee.
        seed: Makes the run repeatable and NOT PRIVATE; for tests and benchmarks on public data.
    """

    plan: Plan
    performance: Performance | None = None
    folder: str | Path | None = None
    evaluation: Evaluation = Evaluation.UNDECLARED
    telemetry: Receiver | None = None
    log_unprotected: bool = False
    averaging: ExponentialAverage | None = None
    waive: Sequence[Waiver] = ()
    seed: int | None = None

    def session(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        dataset: MapDataset,
        *,
        collate_fn: Collate | None,
        folder: str | Path | RunFolder | None,
    ) -> Session:
        """Return the session of the run in a folder; it is not open yet."""
        return privatize(
            model,
            optimizer,
            dataset,
            self.plan,
            performance=self.performance,
            folder=folder,
            collate_fn=collate_fn,
            telemetry=self.telemetry,
            averaging=self.averaging,
            waive=self.waive,
            seed=self.seed,
        )
