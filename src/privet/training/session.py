"""The private training loop: one visible order of events, from the charged round to the optimizer's step.

Reserve the round (durable), draw indices, cut physical batches, run the user's forward, add clipped sums, add noise
once, compare with the reserved round, write p.grad, step the optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext, suppress
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from privet import checks
from privet.accounting.guarantee import Guarantee, guarantee
from privet.accounting.ledger import Ledger, VoidReason
from privet.errors import LedgerMismatch, LoopError
from privet.gradients.bookkeeping import BookKeeping
from privet.gradients.capture import mark_batch
from privet.gradients.engine import Engine
from privet.gradients.support import check_model
from privet.mechanism.events import same_event
from privet.mechanism.layout import Layout
from privet.mechanism.sums import ClippedSum
from privet.plan import Plan
from privet.training.batching import Collate, MapDataset, check_dataset, fetch, split, tensors_of, with_gradients
from privet.training.folder import RunFolder
from privet.training.guards import BufferGuard, StepGuard, check_optimizer, trainable_parameters
from privet.training.randomness import Streams
from privet.training.telemetry import Receiver, Unprotected

LossFunction = Callable[..., Tensor]


def privatize(
    model: nn.Module,
    optimizer: Optimizer,
    dataset: MapDataset,
    plan: Plan,
    *,
    physical_batch_size: int = 256,
    folder: str | Path | None = None,
    checkpoint_every: int | None = None,
    engine: Engine | None = None,
    collate: Collate | None = None,
    telemetry: Receiver | None = None,
    seed: int | None = None,
) -> Session:
    """Prepare a model for private training; use the result in a ``with`` block.

    The model is not wrapped and keeps its class, keys and hooks. Engine, physical batch size, folder and telemetry are
    conveniences: none of them can change the guarantee.

    Args:
        model: Any module whose examples do not interact.
        optimizer: Any first-order torch optimizer over exactly the model's trainable parameters.
        dataset: A map-style data set; one item is one unit of privacy. Its length changes no constant of the plan.
        plan: The accounted plan.
        physical_batch_size: How many examples go through the model at once.
        folder: Where to keep the ledger and checkpoints; a folder that has them is resumed. None keeps the ledger in
            memory and writes nothing.
        checkpoint_every: Steps between checkpoints, when there is a folder; a tenth of the run, at most 100, by
            default. Steps after the last checkpoint are lost to a crash, and paid for.
        engine: How per-example gradients are computed; :class:`~privet.gradients.bookkeeping.BookKeeping` by default.
        collate: Turns a list of items into a batch; torch's default otherwise.
        telemetry: Receives exact losses, clipped shares and batch sizes. They are not private.
        seed: Makes the run repeatable and NOT PRIVATE; for tests and benchmarks on public data.

    Raises:
        UnsupportedModel, PlanError, DataError: before any data is read, saying what to change.
    """
    run_folder = None
    if folder is not None:
        every = min(100, max(1, plan.num_steps // 10)) if checkpoint_every is None else checkpoint_every
        run_folder = RunFolder(Path(folder), every=checks.count("checkpoint_every", every))
    return Session(
        model=model,
        optimizer=optimizer,
        dataset=check_dataset(dataset),
        plan=plan,
        physical_batch_size=checks.count("physical_batch_size", physical_batch_size),
        folder=run_folder,
        engine=engine or BookKeeping(),
        collate=collate,
        telemetry=telemetry,
        seed=seed if seed is None else checks.count("seed", seed, minimum=0),
    )


class Session:
    """One private training run of one model and optimizer. Made by :func:`privatize`.

    Guarantee:
        Everything that leaves the session through the model's weights is covered by ``guarantee()``, which is computed
        from the ledger's charged rounds. Rounds charged by an earlier process of the same run are never run again, so a
        resumed run ends at the planned cost with a few steps fewer.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        dataset: MapDataset,
        plan: Plan,
        physical_batch_size: int,
        folder: RunFolder | None,
        engine: Engine,
        collate: Collate | None,
        telemetry: Receiver | None,
        seed: int | None,
    ) -> None:
        """Check everything that can be checked without data, then open the ledger."""
        check_model(model)
        check_optimizer(model, optimizer)
        named = trainable_parameters(model)
        self.plan, self.model, self.optimizer = plan, model, optimizer
        self.physical_batch_size = physical_batch_size
        self._dataset, self._collate, self._telemetry, self._seed = dataset, collate, telemetry, seed
        self._parameters = [parameter for _, parameter in named]
        self._layout = Layout.of([(name, tuple(value.shape)) for name, value in named], plan.grouping)
        self._rule = plan.clipping.for_groups(self._layout.num_groups)
        self._device = self._parameters[0].device
        self._engine_choice, self._folder = engine, folder
        self._planned_round = plan.round_event  # raises for a plan without noise, before a ledger exists
        self.ledger = Ledger.in_memory(plan.hash) if folder is None else folder.open_ledger(plan)
        self._entered = self._is_open = False
        self._open_step: Step | None = None
        self._noise_words: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        """Attach to the optimizer and draw the run's keys; restore the newest checkpoint if there is one."""
        if self._entered:
            raise LoopError("A session can be entered once. Call privatize() again for another run.")
        self._entered = True
        with ExitStack() as undo:
            undo.callback(self.ledger.close)
            if self._folder is not None:
                self._folder.restore(self.ledger, self.plan, self.model, self.optimizer)
            self._guard = StepGuard(self.optimizer)
            undo.callback(self._guard.close)
            self._buffers = BufferGuard(self.model)
            self._engine = self._engine_choice.start(self.model, self._parameters, self._layout)
            undo.pop_all()
        self._is_open = True
        self._streams = Streams.new(self._device, seed=self._seed)
        self._noise_words = (f"noise came from {self._streams.noise.description}",)
        self._flat = torch.zeros(
            self._layout.num_coordinates,
            device=self._device,
            dtype=torch.promote_types(self._parameters[0].dtype, torch.float32),
        )
        for parameter in self._parameters:
            parameter.grad = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give everything back, verify what ran against the plan, and close the ledger."""
        self._engine.close()
        self._guard.close()
        self._is_open = False
        unfinished = self._open_step
        self._open_step = None
        try:
            if unfinished is not None and unfinished.is_charged_only:
                was_asked = error is None or isinstance(error, KeyboardInterrupt)
                self.ledger.void(VoidReason.INTERRUPTED if was_asked else VoidReason.STEP_FAILED)
            if self._folder is not None and not isinstance(error, LedgerMismatch):
                with suppress(Exception) if error is not None else nullcontext():
                    self._folder.checkpoint(self)
            if error is None:
                self.ledger.verify(self.plan.segments)
        finally:
            self.ledger.close()

    @property
    def steps_done(self) -> int:
        """How many steps have been charged, by this process and those before it."""
        return self.ledger.charged_rounds * self.plan.sampling.steps_per_round

    def steps(self) -> Iterator[Step]:
        """Yield one logical step after another until the plan is used up.

        Each step's round is charged, durably, before a single example is read. A loop body that does not call
        ``step.update()`` is an error: its round is paid for, so it must be used.
        """
        if not self._is_open:
            raise LoopError("session.steps() belongs inside the session's with block.")
        if self._open_step is not None and not self._open_step.is_done:
            raise LoopError(
                f"Step {self._open_step.index} is still open. Finish it with step.update() before asking for more "
                "steps; one walk over session.steps() at a time."
            )
        sampling, num_rounds = self.plan.sampling, self.plan.num_rounds
        done = self.ledger.charged_rounds - self.ledger.available
        while done < num_rounds:
            self._reserve(num_rounds - done)
            batches = sampling.round_batches(len(self._dataset), self._streams.sampling)
            for place, indices in enumerate(batches):
                step = Step(self, indices, index=done * sampling.steps_per_round + place, opens_round=place == 0)
                self._open_step = step
                yield step
                if not step.is_done:
                    raise LoopError(
                        f"Step {step.index} was not completed: call step.update() in every pass of the loop over "
                        "steps(). Its round stays charged."
                    )
                self._open_step = None
                if self._folder is not None and self._folder.is_due(step.index + 1):
                    self._folder.checkpoint(self)
            done += 1

    def _reserve(self, left: int) -> None:
        if self.ledger.available == 0:
            block = 1 if self._folder is None else self._folder.reserve_ahead
            self.ledger.reserve(self._planned_round, min(block, left))

    def guarantee(self) -> Guarantee:
        """Account what the ledger says was charged: the guarantee of everything released so far."""
        plan = self.plan
        return guarantee(
            self.ledger.event,
            delta=plan.delta,
            adjacency=plan.adjacency,
            unit=plan.unit,
            released=plan.release,
            assumptions=plan.assumptions + self._noise_words,
            not_private_because=() if self._seed is None else ("its random streams were seeded by the user",),
        )


class _Stage(Enum):
    """Where a step stands; it only moves forward."""

    FRESH = "fresh"
    WALKING = "walking"
    SUMMED = "summed"
    DONE = "done"


class Step:
    """One logical step: its physical batches, its one noisy update."""

    def __init__(self, session: Session, indices: NDArray[np.int64], *, index: int, opens_round: bool) -> None:
        """Start from an empty sum; the indices are secret and stay here."""
        self.index = index
        self._session, self._indices, self._opens_round = session, indices, opens_round
        self._stage = _Stage.FRESH
        self._awaits_losses = self._was_compared = False
        session._flat.zero_()
        self._sum = ClippedSum(
            flat=session._flat,
            layout=session._layout,
            sensitivity=session._rule.sensitivity,
            keep=session.plan.mask.keep(index, session._layout, session._streams.masks, session._flat),
        )
        self._loss_sum, self._clipped = 0.0, 0

    @property
    def is_done(self) -> bool:
        """Whether ``update()`` has run."""
        return self._stage is _Stage.DONE

    @property
    def is_charged_only(self) -> bool:
        """Whether the step's round was charged, begun, and never compared with what was done."""
        return self._opens_round and not self._was_compared

    def _check_open(self) -> None:
        if self._session._open_step is not self:
            raise LoopError(f"Step {self.index} is over. Only the step that steps() handed out last can be used.")

    def microbatches(self) -> Iterator[Any]:
        """Yield the step's examples in physical batches: none, one or many.

        An empty logical batch yields nothing, and its ``update()`` releases noise alone. Call ``backward`` once for
        each.
        """
        self._check_open()
        if self._stage is not _Stage.FRESH:
            raise LoopError("step.microbatches() can be walked through once per step.")
        self._stage = _Stage.WALKING
        yield from self._batches()
        self._stage = _Stage.SUMMED

    def _batches(self) -> Iterator[Any]:
        session = self._session
        try:
            for part in split(self._indices, session.physical_batch_size):
                batch = fetch(session._dataset, part, session._collate, session._device)
                leaves: Sequence[Tensor] = ()
                if session._engine.wants_input_gradients:
                    batch, leaves = with_gradients(batch, len(part))
                mark_batch(tensors_of(batch))
                session._buffers.accept()
                session._engine.begin(len(part), leaves)
                self._awaits_losses = True
                yield batch
                self._check_open()
                session._buffers.check()
                if self._awaits_losses:
                    raise LoopError("A physical batch was handed out but step.backward(losses) was not called for it.")
        finally:
            session._engine.abandon()

    def backward(self, losses: Tensor) -> None:
        """Add this physical batch's clipped gradients to the step's sum.

        Args:
            losses: One loss per example of the physical batch, in any order-preserving computation; never a mean.
        """
        session = self._session
        self._check_open()
        if not self._awaits_losses:
            raise LoopError("step.backward(losses) belongs inside the loop over step.microbatches(), once per batch.")
        session._buffers.check()
        norms = session._engine.add_clipped(losses, session._rule, self._sum)
        self._awaits_losses = False
        if session._telemetry is not None:
            self._loss_sum += float(losses.detach().sum())
            bounds = norms.new_tensor(session._rule.sensitivity.bounds)
            self._clipped += int((norms > bounds).any(1).sum())

    def accumulate(self, loss_function: LossFunction) -> None:
        """Walk through the physical batches with a function from a batch to its losses, surviving lack of memory.

        If the device runs out of memory the step starts over with half the physical batch size and the same examples;
        nothing is redrawn and nothing is charged twice. ``loss_function`` is called with the batch's items.
        """
        self._check_open()
        if self._stage is not _Stage.FRESH:
            raise LoopError("step.accumulate() must be the only pass over the step's examples.")
        self._stage = _Stage.WALKING
        session = self._session
        while True:
            try:
                for batch in self._batches():
                    parts = batch if isinstance(batch, tuple | list) else (batch,)
                    self.backward(loss_function(*parts))
                self._stage = _Stage.SUMMED
                return
            except torch.OutOfMemoryError:
                if session.physical_batch_size == 1:
                    raise
            session.physical_batch_size = math.ceil(session.physical_batch_size / 2)
            self._sum.flat.zero_()
            self._awaits_losses, self._loss_sum, self._clipped = False, 0.0, 0

    def update(self) -> None:
        """Add noise once, compare what was done with what was charged, and step the optimizer.

        Guarantee:
            The gradients written are (clipped sum + noise) / expected batch size. They are written only if the event
            built from the noise and bound actually used is the one that was reserved.
        """
        session = self._session
        session._streams.check_process()
        self._check_open()
        if self._stage is _Stage.WALKING and not self._awaits_losses:
            raise LoopError(
                "The walk over step.microbatches() was broken off, so the sum is not the whole batch's. Walk through "
                "all of them; the step's round stays charged."
            )
        if self._stage is _Stage.DONE:
            raise LoopError("step.update() was already called for this step.")
        if self._awaits_losses:
            raise LoopError("step.update() was called while a physical batch still waits for step.backward(losses).")
        if self._stage is _Stage.FRESH and len(self._indices):
            raise LoopError("step.update() was called before step.microbatches() was walked through.")
        private = session.plan.noise.add(self._sum, session._streams.noise)
        facts = session.plan.sampling.amplify(private.event)
        self._was_compared = True
        if self._opens_round:
            session.ledger.check(facts)
        elif not same_event(facts, session._planned_round):
            raise LedgerMismatch("A later step of a charged round did something else than was charged.")
        self._stage = _Stage.DONE
        private.write_gradients(session._parameters, divisor=session.plan.sampling.expected_batch_size)
        with session._guard.opened():
            session.optimizer.step()
        self._report()

    def _report(self) -> None:
        if self._session._telemetry is None:
            return
        size = len(self._indices)
        self._session._telemetry(
            Unprotected(
                step=self.index,
                mean_loss=self._loss_sum / size if size else None,
                clipped_share=self._clipped / size if size else None,
                batch_size=size,
            )
        )
