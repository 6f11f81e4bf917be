"""The private training loop, in the order in which things happen.

    charge the round -> draw the batch -> clip and sum -> add noise -> compare with the charge -> update the model

``Session.steps`` charges and draws, ``Step.accumulate`` clips and sums, ``Step.update`` adds the noise and updates.
Averages, telemetry, checkpoints and checks observe the loop (:mod:`privet.training.loop_events`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from privet import checks
from privet.accounting.guarantee import Guarantee
from privet.accounting.ledger import VoidReason
from privet.errors import LoopError
from privet.mechanism.executed import ExecutedRound
from privet.training.loop_events import LossFunction
from privet.training.prepared import PreparedRun
from privet.training.release import ChargedRelease
from privet.training.summing import LogicalBatch
from privet.training.updates import Update

_LOG = logging.getLogger("privet")


class Session:
    """One private training run of one model and optimizer. Made by :func:`privatize`.

    Guarantee:
        Everything that leaves through the model's weights is covered by ``guarantee()``, which is computed from the
        ledger's charged rounds. Rounds that an earlier process charged are never run again.
    """

    def __init__(self, run: PreparedRun) -> None:
        """Take a run that was checked; its ledger is open, and no data has been read."""
        self._run = run
        self.plan, self.ledger = run.plan, run.ledger
        self.model, self.optimizer = run.state.model, run.state.optimizer
        self._entered = self._is_open = False
        self._open_step: Step | None = None
        self._assumptions: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        """Attach to the optimizer and draw the run's keys; restore the newest checkpoint if there is one."""
        if self._entered:
            raise LoopError("A session can be entered once. Call privatize() again for another run.")
        self._entered = True
        self._run.open()
        self._is_open, self._events = True, self._run.events
        self._assumptions = (f"noise came from {self._run.streams.noise.description}", *self._run.guard.assumptions)
        for notify in self._events.run_begins:
            notify(self.ledger.charged_rounds)
        return self

    def steps(self, *, first: int | None = None) -> Iterator[Step]:
        """Yield one logical step after another until the plan is used up.

        Call ``step.update()`` in every pass: the step's round is paid for, so it must be used.

        Args:
            first: The public number of the first step of this walk, which masks and schedules of clipping go by; the
                number of steps charged by default. It changes neither the charge nor the number of steps left.
        """
        if not self._is_open:
            raise LoopError("session.steps() belongs inside the session's with block.")
        if self._open_step is not None and not self._open_step.is_done:
            raise LoopError(
                f"Step {self._open_step.index} is still open. Finish it with step.update() before asking for more "
                "steps; one walk over session.steps() at a time."
            )
        run, events, num_rounds = self._run, self._events, self.plan.num_rounds
        per_round = self.plan.sampling.steps_per_round
        for notify in events.walk_begins:
            notify()
        rounds_used = self.ledger.charged_rounds - self.ledger.available
        ahead = 0 if first is None else checks.count("first", first, minimum=0) - rounds_used * per_round
        while rounds_used < num_rounds:
            # If too few charged rounds are left, charge more. The row is durable before any example is read.
            at_hand, left = self.ledger.available, num_rounds - rounds_used
            wanted = min(run.rounds_at_hand, left) - at_hand
            unpaid = min(max(run.rounds_per_charge, wanted), left - at_hand) if wanted > 0 else 0
            release: ChargedRelease[Update] = ChargedRelease(self.ledger, run.round_event, charge=unpaid)
            for notify in events.round_begins:
                notify()
            for place, indices in enumerate(run.draw()):  # draw the round's batches
                if place:  # a further step of the same round, which is charged already
                    release = ChargedRelease(self.ledger, run.round_event, charge=0, uses=0)
                index = ahead + rounds_used * per_round + place
                self._open_step = step = Step(run, indices, index=index, release=release)
                yield step  # the user's loop clips, sums and updates
                if not step.is_done:
                    raise LoopError(
                        f"Step {index} was not completed: call step.update() in every pass of the loop over steps(). "
                        "Its round stays charged."
                    )
                step.close()
                self._open_step = None
                if place + 1 == per_round:
                    for notify in events.round_ends:
                        notify()
                for notify_of in events.step_ends:
                    notify_of(step.index + 1)
            rounds_used += 1
        for notify in events.walk_ends:
            notify()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give everything back, verify what ran against the plan, and close the ledger."""
        run, unfinished = self._run, self._open_step
        run.close()
        self._is_open, self._open_step = False, None
        try:
            changed = run.guard.last_look()
            if error is not None and changed is not None:
                _LOG.warning("%s", changed)
            if unfinished is not None:
                was_asked = error is None or isinstance(error, KeyboardInterrupt)
                unfinished.close(VoidReason.INTERRUPTED if was_asked else VoidReason.STEP_FAILED)
            for notify_of in self._events.run_ends:
                notify_of(error)
            if error is None and changed is not None:
                raise changed
            if error is None:
                self.ledger.verify(self.plan.segments)
            for notify in self._events.run_ended:
                notify()
        finally:
            self.ledger.close()

    def guarantee(self) -> Guarantee:
        """Account what the ledger says was charged: the guarantee of everything released so far.

        Raises:
            WeightsChanged: something that was no private step changed the weights. From then on nothing is promised.
        """
        if self._is_open and not self._run.guard.is_broken:
            self._run.guard.look(waits=True)
        return self.plan.account(self.ledger, assumptions=self._assumptions)

    @contextmanager
    def public_change(self, reason: str) -> Iterator[None]:
        """Let the weights be changed between two steps, without private data, for the length of the block.

        For loading public weights, clamping, merging adapters, re-initialising; weights computed from the session's own
        iterates are fine as well. Not with ``Release.LAST_ITERATE``, whose proof covers steps alone.

        Args:
            reason: What is done, in at most 200 characters. It is written into the ledger before the block runs and
                stands in every guarantee of this run: never put a private value there.
        """
        if not self._is_open:
            raise LoopError("session.public_change() belongs inside the session's with block; after it, it is free.")
        if self._open_step is not None and not self._open_step.may_change_weights:
            raise LoopError("The weights cannot be changed while a step is being summed up. Call step.update() first.")
        for notify in self._events.before_public_change:
            notify()
        with self._run.guard.changing():
            self.ledger.note_public_change(reason, step=self.steps_taken)
            yield

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Put the averaged weights into the model for the length of the block; during the run or after it."""
        with self._run.average.applied(self._run.guard.changing if self._is_open else nullcontext):
            yield

    def adopt_average(self) -> None:
        """Leave the averaged weights in the model for good; only after the run."""
        if self._is_open:
            raise LoopError("adopt_average() belongs after the session's with block. During the run use averaged().")
        self._run.average.adopt()

    @property
    def steps_done(self) -> int:
        """How many steps have been charged, by this process and those before it."""
        return self.ledger.charged_rounds * self.plan.sampling.steps_per_round

    @property
    def steps_taken(self) -> int:
        return self._run.state.steps_taken

    @property
    def physical_batch_size(self) -> int:
        return self._run.physical_batch_size

    @property
    def is_complete(self) -> bool:
        """Whether the plan is used up and the model is the one it was made for."""
        return self.plan.is_finished(self.ledger)


class Step:
    """One logical step: physical batches in, one noisy update out.

    Attributes:
        index: The public number of the step.
        sensitivity: The bound on the contribution of one unit to the sum.
        kept: The coordinates that the mask leaves; None for all.
        is_done: Whether ``update()`` has run.
    """

    def __init__(
        self, run: PreparedRun, indices: NDArray[np.int64], *, index: int, release: ChargedRelease[Update]
    ) -> None:
        """Start from an empty sum; the round is charged, and the indices are secret."""
        self.index, self._run, self._release = index, run, release
        # Bound, mask and units of this step are fixed before its examples are read. They are public.
        rule, self._clipped = run.empty_sum(index)
        sums, taken = run.summation, run.state.steps_taken
        self._batch = LogicalBatch(sums, indices, rule=rule, clipped=self._clipped, index=index, steps_taken=taken)
        self.sensitivity, self.kept = rule.sensitivity, self._clipped.kept
        self.is_done, self._is_over = False, False
        self._executed: ExecutedRound | None = None

    def accumulate(self, loss_function: LossFunction) -> None:
        """Clip and sum the gradients of all examples, with a function from a batch to one loss per example.

        ``loss_function`` is called with the items of a physical batch. If the device runs out of memory the step starts
        over with half the physical batch size and the same examples; nothing is redrawn or charged twice.
        """
        self._check_open()
        self._batch.accumulate(loss_function)

    def microbatches(self) -> Iterator[Any]:
        """Yield the step's examples in physical batches: none, one or many. Call ``backward`` once for each.

        An empty logical batch yields nothing, and its ``update()`` releases noise alone.
        """
        self._check_open()
        for batch in self._batch.walk():
            yield batch
            self._check_open()

    def backward(self, losses: Tensor) -> None:
        """Clip the gradient of each example of this physical batch, and add them to the step's sum.

        ``losses`` has one loss per example of the batch, in the batch's order; never a mean.
        """
        self._check_open()
        self._batch.add_clipped(losses)

    def update(self) -> None:
        """Add noise once, compare what was done with what was charged, and step the optimizer.

        Guarantee:
            The gradients written are (clipped sum + noise) / expected batch size. They are written only if the event
            built from the noise and bound actually used is the one that was reserved.
        """
        run, state = self._run, self._run.state
        run.streams.check_process()
        self._check_open()
        if self.is_done:
            raise LoopError("step.update() was already called for this step.")
        self._batch.check_complete()
        for notify in run.events.before_noise:
            notify(self._clipped, run.plan.noise)
        # Add the noise to the clipped sum, once, and compare noise and bound with what was charged.
        noisy = self._release.add_noise_and_compare(run.awaiting_noise(self._clipped))
        self.is_done, self._executed = True, noisy.executed
        # Update the model: p.grad = noisy sum / expected batch size, then optimizer.step().
        is_saved = run.checkpoints is not None and run.checkpoints.is_due(self.index + 1)
        with run.guard.updating(is_kept=is_saved or self.index + 1 >= run.num_steps):
            noisy.value.apply(keep=self._clipped.keep)
            state.position, state.steps_taken = self.index + 1, state.steps_taken + 1
        if run.mask is not None:
            run.mask.watch(noisy.value.private, kept=self.kept)
        for notify_of in run.events.after_update:
            notify_of(self.index, len(self._batch))

    @property
    def may_change_weights(self) -> bool:
        return self.is_done or not self._batch.is_begun

    @property
    def executed(self) -> ExecutedRound:
        if self._executed is None:
            raise LoopError("step.executed exists after step.update().")
        return self._executed

    def close(self, reason: VoidReason | None = None) -> None:
        """End the step; with a reason the round of an unfinished step is voided. It stays charged."""
        self._is_over = True
        if reason is not None:
            self._release.give_up(reason)

    def _check_open(self) -> None:
        if self._is_over:
            raise LoopError(f"Step {self.index} is over. Only the step that steps() handed out last can be used.")
