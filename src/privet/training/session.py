"""The private training loop, in the order in which things happen.

    charge the round -> draw the batch -> clip and sum -> add noise -> compare with the charge -> update the model

``Session.steps`` charges and draws, ``Step.accumulate`` clips and sums, ``Step.update`` adds the noise and updates;
words in capitals mark the lines. :mod:`privet.training.release` orders charge and comparison. An example's gradient is
scaled in :mod:`privet.gradients.engines.clipper`; :class:`~privet.mechanism.sums.PrivateSum` writes ``p.grad``.
Averages, telemetry, checkpoints and checks observe the loop (:mod:`privet.training.loop_events`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from privet import checks
from privet.accounting.ledger import VoidReason
from privet.errors import LoopError
from privet.mechanism.executed import ExecutedRound
from privet.training.former_names import Renamed
from privet.training.loop_events import LossFunction
from privet.training.prepared import PreparedRun
from privet.training.release import ChargedRelease
from privet.training.run_access import RunAccess
from privet.training.updates import Update

_LOG = logging.getLogger("privet")


class Session(RunAccess):
    """One private training run of one model and optimizer. Made by :func:`privatize`.

    Guarantee:
        Everything that leaves through the model's weights is covered by ``guarantee()``, which is computed from the
        ledger's charged rounds. Rounds that an earlier process charged are never run again.
    """

    steps_done = Renamed("steps_charged")

    def __init__(self, run: PreparedRun) -> None:
        """Take a run that was checked; its ledger is open, and no data has been read."""
        super().__init__(run)
        self._entered = False
        self._open_step: Step | None = None
        self._num_walks = 0

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

        Call ``step.update()`` in every pass: the step's round is paid for, so it must be used. A new walk ends the one
        before it.

        Guarantee:
            The steps of two walks never alternate, so batches and noise that are correlated between steps come in the
            order of the plan.

        Args:
            first: The public number of the first step of this walk, which masks and schedules of clipping go by; the
                number of steps charged by default. It changes neither the charge nor the number of steps left.
        """
        if not self._is_open:
            raise LoopError("session.steps() belongs inside the session's with block, or between open() and close().")
        if self._open_step is not None and not self._open_step.is_updated:
            raise LoopError(
                f"Step {self._open_step.index} is still open. Finish it with step.update(), or give it up "
                "with session.give_up_step(), before asking for more steps; one walk over session.steps() at a time."
            )
        self._num_walks += 1
        walk = self._num_walks
        run, events, num_rounds = self._run, self._events, self.plan.num_rounds
        per_round = self.plan.sampling.steps_per_round
        for notify in events.walk_begins:
            notify()
        run.state.noise.restart()  # after a round that was broken off, records may come again sooner than planned
        rounds_used = self.ledger.charged_rounds - self.ledger.available
        ahead = 0 if first is None else checks.count("first", first, minimum=0) - rounds_used * per_round
        while rounds_used < num_rounds:
            # CHARGE the round: a row of the ledger is durable before any example is read.
            release = run.charge_round(num_rounds - rounds_used)
            for notify in events.round_begins:
                notify()
            # DRAW the batches of the round, one for each of its steps.
            for place, indices in enumerate(run.draw()):
                if place:  # the charge covers all steps of the round
                    release = ChargedRelease.further(run.round_ledger, run.round_event)
                index = ahead + rounds_used * per_round + place
                self._open_step = step = Step(run, indices, index=index, release=release)
                yield step  # the user's loop calls step.accumulate() and step.update()
                if walk != self._num_walks:
                    raise LoopError(
                        f"This walk ended after step {index}, because another one over session.steps() began, and the "
                        "steps of both would mix. Go on with the new one; what was charged stays charged."
                    )
                if not step.is_updated:
                    raise LoopError(
                        f"Step {index} was not completed: call step.update() in every pass of the loop over steps(). "
                        "Its round stays charged."
                    )
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
        """Give everything back, verify what ran against the plan, and close the ledger; ranks leave with one error."""
        if sys.is_finalizing():
            # A forgotten generator is closed while Python takes tensors and files apart: the run ends as if killed.
            return
        with (run := self._run).leaving(error) as error:
            run.close()
            unfinished, self._is_open, self._open_step = self._open_step, False, None
            try:
                changed = run.guard.last_look()
                if error is not None and changed is not None:
                    _LOG.warning("%s", changed)
                if unfinished is not None:
                    was_asked = error is None or isinstance(error, KeyboardInterrupt)
                    unfinished.give_up(VoidReason.INTERRUPTED if was_asked else VoidReason.STEP_FAILED)
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

    def open(self) -> Self:
        """Enter the session without a ``with`` block, for a notebook whose next cells go on with it; see ``close``."""
        return self.__enter__()

    def close(self) -> None:
        """Leave a session that was entered with ``open()``; closing twice does nothing."""
        if self._is_open:
            self.__exit__(None, None, None)


class Step:
    """One logical step: physical batches in, one noisy update out.

    Attributes:
        index: The public number of the step.
        sensitivity: The bound on the contribution of one unit to the sum.
        kept: The coordinates that the mask leaves; None for all.
        is_updated: Whether ``update()`` has added the noise and updated the model.
    """

    is_done = Renamed("is_updated")

    def __init__(
        self, run: PreparedRun, indices: NDArray[np.int64], *, index: int, release: ChargedRelease[Update]
    ) -> None:
        """Start from an empty sum; the round is charged, and the indices are secret."""
        self.index, self._run, self._release = index, run, release
        # Bound, mask and units of this step are fixed before its examples are read. They are public.
        self._batch = run.empty_batch(indices, index)
        self._clipped = self._batch.clipped
        self.sensitivity, self.kept = self._clipped.sensitivity, self._clipped.kept
        self.is_updated, self._is_given_up = False, False
        self._executed: ExecutedRound | None = None

    def accumulate(self, loss_function: LossFunction) -> None:
        """Clip and sum the gradients of all examples, with a function from a batch to one loss per example.

        ``loss_function`` is called with the items of a physical batch. If the device runs out of memory the step starts
        over with half the physical batch size and the same examples; nothing is redrawn or charged twice.
        """
        self._check_open()
        self._batch.accumulate(loss_function)  # CLIP each example's gradient, and sum

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
        self._batch.add_clipped(losses)  # CLIP each example's gradient, and sum

    def update(self) -> None:
        """Add noise once, compare noise and bound with what was charged, and step the optimizer.

        Guarantee:
            The gradients written are (clipped sum + noise) / expected batch size. They are written only if the event
            built from the noise and bound actually used is the one that was reserved.
        """
        run, state = self._run, self._run.state
        run.streams.check_process()
        self._check_open()
        self._batch.check_complete()
        for notify in run.events.before_noise:
            notify(self._clipped, run.plan.noise)
        # NOISE is added to the clipped sum, once. COMPARE: noise and bound are those that were charged, or it raises.
        noisy = self._release.add_noise_and_compare(run.awaiting_noise(clipped=self._clipped))
        self.is_updated, self._executed = True, noisy.executed
        # UPDATE the model: p.grad = noisy sum / expected batch size, then optimizer.step().
        is_saved = run.checkpoints is not None and run.checkpoints.is_due(self.index + 1)
        with run.guard.updating(is_kept=is_saved or self.index + 1 >= run.num_steps):
            noisy.value.apply(keep=self._clipped.keep)
            state.position, state.steps_taken = self.index + 1, state.steps_taken + 1
        if run.mask is not None:
            run.mask.watch(noisy.value.private, kept=self.kept)
        for notify_of in run.events.after_update:
            notify_of(self.index, len(self._batch))

    @property
    def is_summing(self) -> bool:
        return self._batch.is_begun and not self.is_updated

    @property
    def executed(self) -> ExecutedRound:
        if self._executed is None:
            raise LoopError("step.executed exists after step.update().")
        return self._executed

    def give_up(self, reason: VoidReason) -> None:
        """End the step; the round of a step that was not updated is voided. It stays charged."""
        self._is_given_up = True
        self._release.give_up(reason)

    def _check_open(self) -> None:
        if self.is_updated or self._is_given_up:
            how = "step.update() was already called for it" if self.is_updated else "it was given up"
            raise LoopError(f"Step {self.index} is over: {how}. Go on with the next step of session.steps().")
