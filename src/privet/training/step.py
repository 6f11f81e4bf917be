"""One logical step: physical batches in, one noisy update out.

The user's forward runs on each physical batch; clipped sums add up; noise is added once; what was done is compared with
what was charged; only then is p.grad written and the optimizer stepped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet.accounting.ledger import VoidReason
from privet.errors import LoopError
from privet.gradients.capture.marks import mark_batch
from privet.gradients.engines.engine import NewProgram
from privet.isolation.watch import Family
from privet.mechanism.done import Done
from privet.mechanism.granularity import Kept
from privet.mechanism.sensitivity import Sensitivity
from privet.mechanism.sums import ClippedSum
from privet.training.batching import (
    SMALLEST_CUT,
    cut_in_two,
    fetch,
    has_rows,
    resized,
    split,
    tensors_of,
    with_gradients,
)
from privet.training.draws import Draws
from privet.training.ending import Ending, StepSum
from privet.training.release import ChargedRelease
from privet.training.replay import Spoilt
from privet.training.telemetry import Unprotected, noise_to_signal, norm_quantiles

if TYPE_CHECKING:
    from privet.training.session import Session

LossFunction = Callable[..., Tensor]


def _is_watched(number: int) -> bool:
    """Whether the weights are looked into at this step: often at first, then ever more rarely, for it takes a pass."""
    return number & (number - 1) == 0


class _Stage(Enum):
    """Where a step stands; it only moves forward."""

    FRESH = "fresh"
    WALKING = "walking"
    SUMMED = "summed"
    DONE = "done"


class Step:
    """One logical step: its physical batches, its one noisy update."""

    def __init__(
        self, session: Session, indices: NDArray[np.int64], *, index: int, release: ChargedRelease[Ending]
    ) -> None:
        """Start from an empty sum; the indices are secret and stay here."""
        self.index = index
        self._session, self._indices, self._release = session, indices, release
        self._stage = _Stage.FRESH
        self._awaits_losses = self._is_probe = False
        session._watch.step = index
        session._flat.zero_()
        self._rule = session._clipping.begin(index, session._flat)
        self._kept = session._mask.begin(index, session._streams.masks, session._flat)
        frame, squares = session._noise.begin(index, session._flat)
        self._sum = ClippedSum(
            flat=session._flat,
            layout=session._layout,
            sensitivity=self._rule.sensitivity,
            # the plan's own piece decides, since it also takes every guarantee of the plan away
            is_held=session.plan.holds_bounds,
            keep=None if self._kept is None else self._kept.coordinates,
            kept=self._kept,
            frame=frame,
            squares=squares,
        )
        self._loss_sum, self._clipped = 0.0, 0
        self._norms: list[Tensor] = []
        self._noise_to_signal: float | None = None
        self._done: Done | None = None

    @property
    def sensitivity(self) -> Sensitivity:
        """The bound on one example's contribution to this step; public, also where it is learned."""
        return self._rule.sensitivity

    @property
    def kept(self) -> Kept | None:
        """The coordinates that take part in this step; None for all of them. Public."""
        return self._kept

    @property
    def is_done(self) -> bool:
        """Whether ``update()`` has run."""
        return self._stage is _Stage.DONE

    @property
    def is_summing(self) -> bool:
        """Whether examples went into the step's sum, and its update has not run."""
        return self._stage in (_Stage.WALKING, _Stage.SUMMED)

    @property
    def done(self) -> Done:
        """What the step did, as it was compared with what was charged; public."""
        if self._done is None:
            raise LoopError("A step can tell what it did after step.update().")
        return self._done

    def give_up(self, reason: VoidReason) -> None:
        """Void the step's round, if the step began it and has not released anything."""
        self._release.give_up(reason)

    def _check_open(self) -> None:
        if self._session._open_step is not self:
            raise LoopError(f"Step {self.index} is over. Only the step that steps() handed out last can be used.")

    def microbatches(self) -> Iterator[Any]:
        """Yield the step's examples in physical batches: none, one or many.

        An empty logical batch yields nothing, and its ``update()`` releases noise alone. Call ``backward`` once for
        each.
        """
        self._check_open()
        self._session._iterates.check_losses(None)
        if self._stage is not _Stage.FRESH:
            raise LoopError("step.microbatches() can be walked through once per step.")
        self._stage = _Stage.WALKING
        self._session._launcher.was_passed_over()
        yield from self._batches()
        self._session._preflight.check_walked()
        self._stage = _Stage.SUMMED

    def _batches(self, loss_function: LossFunction | None = None, *, can_repeat: bool = False) -> Iterator[Any]:
        """Yield physical batches, watched; those that the launcher can do with the loss function it does itself."""
        session = self._session
        session._weights.begin_step(looks_inside=_is_watched(session.steps_taken))
        session._trained.check()
        try:
            for batch, size, is_probe in self._fetched():
                self._is_probe = is_probe
                if loss_function is not None and not is_probe:
                    limit = session.physical_batch_size
                    session._preflight.before(batch, loss_function, step=session.steps_taken, size=size, limit=limit)
                    done = session._launcher.add(batch, size, limit, loss_function, self._rule, self._sum)
                    if done is not None:
                        self._note(done.losses, done.norms)
                        continue
                leaves: Sequence[Tensor] = ()
                if session._engine.wants_input_gradients:
                    batch, leaves = with_gradients(batch, size)
                mark_batch(tensors_of(batch))
                session._engine.begin(size, leaves, can_repeat=can_repeat)
                self._awaits_losses = True
                yield batch
                self._check_open()
                session._weights.check_forward()
                if self._awaits_losses:
                    raise LoopError("A physical batch was handed out but step.backward(losses) was not called for it.")
        finally:
            session._engine.abandon()

    def _fetched(self) -> Iterator[tuple[Any, int, bool]]:
        """Yield physical batches, their sizes, and whether they are probes whose sum is thrown away.

        A program must be seen on two numbers of examples before it is known not to depend on them. The first batch of
        all is cut in two unequal parts; where that settles nothing (the batch is small, or a part took another way at
        random) a part is handed out again with the same random numbers and one example more or less.
        """
        session = self._session
        watch = session._watch
        for part in split(self._indices, session.physical_batch_size):
            batch = fetch(session._dataset, part, session._collate, session._device)
            has_all_rows = has_rows(batch, len(part))
            pieces: Iterable[tuple[Any, int]] = [(batch, len(part))]
            if watch.wants_two_sizes and has_all_rows and len(part) >= SMALLEST_CUT:
                pieces = cut_in_two(batch, len(part))
            waiting: dict[Family, tuple[Any, int, Draws]] = {}
            is_first = not watch.num_kinds
            for rows, size in pieces:
                draws = Draws.now(session._device)
                with watch.running():
                    yield rows, size, False
                if watch.latest is not None and not watch.latest.is_compared and has_all_rows:
                    waiting[watch.latest] = (rows, size, draws)
            for family, (rows, size, draws) in waiting.items():
                for repeated, wanted in resized(rows, size, limit=session.physical_batch_size):
                    if not family.is_compared:
                        with watch.probing(family), draws.again():
                            yield repeated, wanted, True
            if is_first and len(part) == 1 and has_all_rows:  # whose program says nothing of those for several examples
                for repeated, wanted in resized(batch, 1, limit=session.physical_batch_size):
                    with draws.again():
                        yield repeated, wanted, True

    def backward(self, losses: Tensor) -> None:
        """Add this physical batch's clipped gradients to the step's sum.

        Args:
            losses: One loss per example of the physical batch, in any order-preserving computation; never a mean.
        """
        session = self._session
        self._check_open()
        if not self._awaits_losses:
            raise LoopError("step.backward(losses) belongs inside the loop over step.microbatches(), once per batch.")
        session._weights.check_forward()
        if self._is_probe:
            aside = replace(self._sum, flat=torch.zeros_like(self._sum.flat), squares=None)
            session._engine.add_clipped(losses, self._rule, aside)
            self._awaits_losses = False
            return
        self._note(losses, session._engine.add_clipped(losses, self._rule, self._sum))
        self._awaits_losses = False

    def _note(self, losses: Tensor, norms: Tensor) -> None:
        session = self._session
        session._clipping.watch(norms)
        if session._telemetry is not None:
            self._loss_sum += float(losses.detach().sum())
            # what a rule does to a vanishing gradient is its scale; whatever gets less of it is clipped or dropped
            scale = self._rule.factors(norms.new_zeros(1, norms.shape[1]))
            self._clipped += int((self._rule.factors(norms) < scale).any(1).sum())
            self._norms.append(norms.detach().square().sum(1).sqrt())

    def accumulate(self, loss_function: LossFunction) -> None:
        """Walk through the physical batches with a function from a batch to its losses, surviving lack of memory.

        If the device runs out of memory the step starts over with half the physical batch size and the same examples;
        nothing is redrawn and nothing is charged twice. ``loss_function`` is called with the batch's items.
        """
        self._check_open()
        self._session._iterates.check_losses(loss_function)
        if self._stage is not _Stage.FRESH:
            raise LoopError("step.accumulate() must be the only pass over the step's examples.")
        self._stage = _Stage.WALKING
        session = self._session
        recorded: LossFunction | None = loss_function
        while True:
            try:
                for batch in self._batches(recorded, can_repeat=True):
                    parts = batch if isinstance(batch, tuple | list) else (batch,)
                    self.backward(loss_function(*parts))
                self._stage = _Stage.SUMMED
                return
            except Spoilt:
                recorded = None  # the ordinary way takes such an example out
            except NewProgram:
                pass  # the engine asks for leaves from now on
            except torch.OutOfMemoryError:
                if session.physical_batch_size == 1:
                    raise
                session.physical_batch_size = math.ceil(session.physical_batch_size / 2)
            self._sum.clear()
            session._clipping.begin(self.index, self._sum.flat)
            self._awaits_losses, self._loss_sum, self._clipped = False, 0.0, 0
            self._norms.clear()

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
        session._weights.look(waits=_is_watched(session.steps_taken))
        session._trained.check()
        if session._average is not None:
            session._average.check_not_applied()
        session._iterates.before_step()
        session._preflight.check_held()
        session._note_evidence()
        if session._telemetry is not None:
            self._noise_to_signal = noise_to_signal(session.plan.noise, self._sum)
        noisy = self._release.add_noise_and_compare(
            StepSum(
                clipped=self._sum,
                noise=session._noise,
                endings=session._endings,
                clipping=session._clipping,
                sampling=session.plan.sampling,
            )
        )
        ending = noisy.value
        self._stage, self._done = _Stage.DONE, noisy.done
        with session._weights.updating(looks_everywhere=self._is_watched_after):
            ending.apply(keep=self._sum.keep)
            session._position, session.steps_taken = self.index + 1, session.steps_taken + 1
        session._mask.watch(ending.private, kept=self._kept)
        session._iterates.after_step()
        if session._average is not None:
            session._average.update(self.index)
        self._report()

    def _is_watched_after(self) -> bool:
        """Whether all weights are looked into after this step: at powers of two, checkpoints and the planned end."""
        session, taken = self._session, self.index + 1
        is_kept = session._folder is not None and session._iterates.is_due(taken, session._folder.every)
        return _is_watched(session.steps_taken) or is_kept or taken >= session.plan.num_steps

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
                norm_quantiles=norm_quantiles(self._norms),
                noise_to_signal=self._noise_to_signal,
            )
        )
