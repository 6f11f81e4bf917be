"""From the indices of a logical batch to its clipped sum, a physical batch at a time.

Sessions and the parties of a federation sum in this one way: fetch, forward (the user's), clip, add.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet.errors import LoopError, PlanError, UnsupportedModel
from privet.gradients.capture.recorded import mark_batch
from privet.gradients.engines.engine import NewProgram, RunningEngine, ScatteringEngine, Spoiled
from privet.isolation.parts import tensors_of
from privet.isolation.watch import Evidence, Family, Watch
from privet.mechanism.clipping import ClippingRule, ClippingRun
from privet.mechanism.sampling import Sampling
from privet.mechanism.sums import ClippedSum
from privet.training.batching import (
    SMALLEST_CUT,
    Draws,
    cut_in_two,
    has_rows,
    resized,
    split,
    with_gradients,
    without_search,
)
from privet.training.launch.memory import NotFinite
from privet.training.launch.replay import Launcher
from privet.training.loading import Loader
from privet.training.loop_events import Events, LossFunction
from privet.training.persons import as_rows, mean_over_records, weighted_mean
from privet.training.preflight.preflight import Preflight

# Devices on which the host runs ahead: asking them for a number means waiting.
_ASYNCHRONOUS = frozenset(["cuda", "mps", "xpu"])


@dataclass(kw_only=True, eq=False)
class Summation:
    """How the sums of one run are formed.

    Attributes:
        loader: Brings the examples to the device.
        device: Where the model is.
        engine: Computes, clips and adds per-example gradients.
        launcher: Replays physical batches that were recorded.
        watch: Judges whether programs keep their examples apart.
        preflight: Tries programs on made-up examples.
        clipping: The clipping piece at work.
        events: Observers of the loop.
        physical_batch_size: How many examples go through the model at once; halved when memory runs out.
        usual_size: How many examples nearly every logical batch has at most; a smaller one is filled up to it where
            batches are replayed.
        cuts: Whether a batch of a new program is cut in two, so that the program is seen on two numbers of examples.
            Otherwise it is run once more on a probe, and the sum does not depend on which programs are new.
        noted: The evidence for the isolation of examples that observers were told of last.
        defers: Whether the device is asked only once in a step if all gradients were finite. From the first time that
            one was not, it is asked for each physical batch.
        scatters: The engine, where each rank holds a part of the sum. All ranks then send as many examples through
            the model at a time, so nothing that one of them finds in its examples may change that number.
        records_per_item: The number of records of one example, which is then a person: a batch holds their records and
            weights, and losses are averaged per person before gradients are clipped. Sizes count persons.
    """

    loader: Loader
    device: torch.device
    engine: RunningEngine
    launcher: Launcher
    watch: Watch
    preflight: Preflight
    clipping: ClippingRun
    events: Events
    physical_batch_size: int
    usual_size: int
    cuts: bool = True
    noted: Evidence | None = None
    scatters: ScatteringEngine | None = None
    records_per_item: int = 1
    defers: bool = field(init=False)
    mean_over_records: Callable[[LossFunction], LossFunction] = field(init=False)

    def __post_init__(self) -> None:
        self.defers = self.scatters is None and self.device.type in _ASYNCHRONOUS
        # from a loss per record to one per person; a function has one mean, so that launchers know it again
        self.mean_over_records = functools.lru_cache(8)(mean_over_records)


def examples_at_once(physical_batch_size: int, records_per_item: int) -> int:
    """Return the number of examples of a physical batch, given in records.

    Guarantee: the records of one person are in one physical batch, so their mean is clipped as a whole.

    Raises:
        PlanError: not even one person fits.
    """
    if physical_batch_size < records_per_item:
        raise PlanError(
            f"The physical batch holds {physical_batch_size} records and a person has up to {records_per_item} in a "
            "step, which must go through the model together. Raise physical_batch_size or lower max_records."
        )
    return physical_batch_size // records_per_item


def usual_size(sampling: Sampling) -> int:
    """Return how many examples nearly every logical batch of a plan has at most, from public constants."""
    expected = sampling.expected_batch_size
    is_random = sampling.has_independent_coins or sampling.batch_limit is not None
    spread = math.sqrt(expected * (1 - sampling.inclusion)) if is_random else 0.0
    size = math.ceil(expected + 4 * spread)  # four standard deviations
    return max(1, size if sampling.batch_limit is None else min(size, sampling.batch_limit))


class _Stage(Enum):
    """How far a batch is summed; it only moves forward."""

    FRESH = "fresh"
    WALKING = "walking"
    SUMMED = "summed"


class LogicalBatch:
    """The examples of one step while they are summed.

    Guarantee:
        One example more or less moves ``clipped`` by at most its sensitivity; masked coordinates are exactly zero. An
        example whose gradient is not finite adds zero, and no examples make a sum of zeros.
    """

    def __init__(
        self,
        how: Summation,
        indices: NDArray[np.int64],
        *,
        rule: ClippingRule,
        clipped: ClippedSum,
        index: int,
        steps_taken: int,
        num_present: int | None = None,
    ) -> None:
        """Start from an empty sum.

        Args:
            how: The run's way of summing.
            indices: The examples. Secret.
            rule: Clips their gradients.
            clipped: An empty sum, which is added to.
            index: The number of the step.
            steps_taken: Steps in the model.
            num_present: How many of the indices count. The others go through the model and add nothing, so that all
                ranks of a sharded model send as many through it. None if all count.
        """
        self._size = len(indices) if num_present is None else num_present
        self._num_present = 0  # of the physical batch that is out
        self._how, self._indices, self._rule, self.clipped, self._index = how, indices, rule, clipped, index
        self._steps_taken = steps_taken
        self._stage, self._awaits_losses, self._is_probe = _Stage.FRESH, False, False
        self._can_repeat = False  # whether the sum may start over, because the loss function is known
        self._is_cut = False  # whether physical batches are cut in two, to be compared
        self._weights: Tensor | None = None  # of the records of the batch that was handed out, if losses are theirs
        how.watch.step = index

    def __len__(self) -> int:
        return self._size

    @property
    def is_begun(self) -> bool:
        """Whether examples went into the sum."""
        return self._stage is not _Stage.FRESH

    def walk(self) -> Iterator[Any]:
        """Yield physical batches, once; ``add_clipped`` is called for each of them before the next."""
        self._begin(None, "step.microbatches() can be walked through once per step.")
        if self._how.launcher.replays:
            self._how.launcher.refuse_manual_loop()
        for batch in self._physical_batches():
            if self._how.records_per_item > 1:
                records, self._weights = batch
                batch = as_rows(records)
            yield batch
        self._how.preflight.check_walked()
        self._stage = _Stage.SUMMED

    def _begin(self, loss_function: LossFunction | None, refusal: str) -> None:
        for notify in self._how.events.loss_is_chosen:
            notify(loss_function)
        if self._stage is not _Stage.FRESH:
            raise LoopError(refusal)
        self._stage = _Stage.WALKING
        if self._how.preflight.failures:
            self._how.preflight.forget_failures()

    def check_complete(self) -> None:
        """Refuse a batch whose examples are not all in the sum; tell of new evidence before the sum is used."""
        if self._awaits_losses:
            raise LoopError("step.update() was called while a physical batch still waits for step.backward(losses).")
        if self._stage is _Stage.WALKING:
            raise LoopError(
                "The walk over step.microbatches() was broken off, so the sum is not the whole batch's. Walk through "
                "all of them; the step's round stays charged."
            )
        if self._stage is _Stage.FRESH and len(self._indices):
            raise LoopError("step.update() was called before step.microbatches() was walked through.")
        how = self._how
        if how.watch.evidence is not how.noted or how.preflight.failures:
            how.noted = how.watch.evidence
            for notify in how.events.evidence_changed:
                notify()

    def _physical_batches(
        self, loss_function: LossFunction | None = None, *, can_repeat: bool = False, may_defer: bool = False
    ) -> Iterator[Any]:
        """Yield physical batches, watched; batches that the launcher replays with ``loss_function`` are not yielded."""
        how = self._how
        for notify in how.events.pass_begins:
            notify()
        try:
            for batch, size, num_present, is_probe in self._fetched():
                self._is_probe, self._num_present = is_probe, num_present
                if loss_function is not None and not is_probe:
                    step, limit = self._steps_taken, how.physical_batch_size
                    is_due = step >= how.preflight.next_step or how.watch.evidence is not how.preflight.seen
                    if self._on_any_rank(is_due):
                        how.preflight.before(batch, loss_function, step=step, size=size, limit=limit)
                    may_replay = how.launcher.replays and not self._is_cut
                    if may_replay and self._was_replayed(batch, size, loss_function):
                        continue
                leaves: Sequence[Tensor] = ()
                if how.engine.wants_input_gradients:
                    batch, leaves = with_gradients(batch, size)
                mark_batch(tensors_of(batch))
                how.engine.begin(size, leaves, can_repeat=can_repeat, may_defer=may_defer and not is_probe)
                self._awaits_losses = True
                yield batch
                for notify in how.events.forward_ends:
                    notify()
                if self._awaits_losses:
                    raise LoopError("A physical batch was handed out but step.backward(losses) was not called for it.")
        except BaseException:
            how.engine.abandon()
            raise

    def _was_replayed(self, batch: Any, size: int, loss_function: LossFunction) -> bool:
        limit = self._how.physical_batch_size
        limit = self._how.usual_size if size <= self._how.usual_size < limit else limit
        with self._how.watch.repeating():  # calls are carried out again elsewhere, with the same draws
            outcome = self._how.launcher.add(batch, size, limit, loss_function, self._rule, self.clipped)
        if outcome is not None:
            for notify in self._how.events.batch_added:
                notify(outcome.losses, outcome.norms, self._rule)
        return outcome is not None

    def _fetched(self) -> Iterator[tuple[Any, int, int, bool]]:
        """Yield physical batches, their sizes, how many of their rows count, and whether they are probes.

        The sum of a probe is thrown away.

        A program must be seen on two numbers of examples before it is known not to depend on them. The first batch of
        all is cut in two unequal parts; where that settles nothing (the batch is small, or a part took another way at
        random) a part is handed out again with the same random numbers and one example more or less.
        """
        how, watch = self._how, self._how.watch
        limit, num_left = how.physical_batch_size, self._size
        if how.loader.reads_ahead:
            how.loader.begin(self._indices, limit)
        for part in split(self._indices, limit):
            batch = how.loader.fetch(part)
            is_first = len(part) == 1 and self._on_any_rank(watch.has_met_none)
            pieces: Iterable[tuple[Any, int]] = [(batch, len(part))]
            is_cut = how.cuts and len(part) >= SMALLEST_CUT and self._on_any_rank(watch.step <= watch.cuts_until)
            self._is_cut = is_cut and has_rows(batch, len(part))
            if self._is_cut:
                pieces = cut_in_two(batch, len(part))
            waiting: dict[Family, tuple[Any, int, Draws]] = {}
            for rows, size in pieces:
                draws = Draws.now(how.device)
                with watch.running(), without_search() if self._is_cut else nullcontext():
                    yield rows, size, min(size, num_left), False
                num_left = max(0, num_left - size)
                if watch.latest is not None and not watch.latest.is_compared and has_rows(rows, size):
                    waiting[watch.latest] = (rows, size, draws)
            probes = (
                (family, again, wanted, draws)
                for family, (rows, size, draws) in waiting.items()
                for again, wanted in resized(rows, size, limit=limit)
                if not family.is_compared
            )
            while self._on_any_rank((probe := next(probes, None)) is not None):
                if probe is None:  # another rank of a sharded model repeats a batch, and needs company
                    with watch.repeating(), draws.again(), without_search():
                        yield rows, size, size, True
                    continue
                family, again, wanted, drawn = probe
                with watch.probing(family), drawn.again(), without_search():
                    yield again, wanted, wanted, True
            # the program for one example says nothing of those for several
            if is_first and has_rows(batch, 1):
                for repeated, wanted in resized(batch, 1, limit=limit):
                    with watch.repeating(), draws.again(), without_search():
                        yield repeated, wanted, wanted, True

    def _on_any_rank(self, holds: bool) -> bool:
        """Whether something holds here or, as a sharded model gathers on all ranks at once, on any other of them."""
        return holds if self.clipped.scatter is None else self.clipped.scatter.is_any(holds)

    def add_clipped(self, losses: Tensor) -> None:
        """Clip the gradient of each example of the physical batch, and add it to the sum.

        Args:
            losses: One loss per example.
        """
        how = self._how
        if not self._awaits_losses:
            raise LoopError("step.backward(losses) belongs inside the loop over step.microbatches(), once per batch.")
        for notify in how.events.forward_ends:
            notify()
        if self._weights is not None:
            losses, self._weights = weighted_mean(losses, self._weights), None
        into, rule, number = self.clipped, self._rule, self._num_present
        if self._is_probe:
            into = replace(into, flat=torch.zeros_like(into.flat), squares=None)
        try:
            if how.scatters is None:
                norms = how.engine.add_clipped(losses, rule, into)
            else:
                norms = how.scatters.add_scattered(losses, rule, into, number)
        except Spoiled as error:
            if self._can_repeat:
                raise
            raise UnsupportedModel(
                "A gradient of this physical batch is not finite. The program's gradients need a backward pass for "
                "each example, in which such an example would spoil the others. Write step.accumulate(losses) instead "
                "of a loop over step.microbatches(): it takes examples one at a time where that is needed."
            ) from error
        self._awaits_losses = False
        if not self._is_probe:
            for note in how.events.batch_added:
                note(losses[:number], norms, rule)

    def accumulate(self, loss_function: LossFunction) -> None:
        """Sum all examples with a function from a batch to its losses, surviving lack of memory.

        If the device runs out of memory the sum starts over with half the physical batch size and the same examples;
        nothing is redrawn and nothing is charged twice.
        """
        how = self._how
        if how.records_per_item > 1:
            loss_function = how.mean_over_records(loss_function)
        self._begin(loss_function, "step.accumulate() must be the only pass over the step's examples.")
        replayed: LossFunction | None = loss_function
        usual, is_spoiled, self._can_repeat = how.physical_batch_size, False, True
        while True:
            try:
                for batch in self._physical_batches(replayed, can_repeat=True, may_defer=how.defers):
                    self.add_clipped(loss_function(*(batch if isinstance(batch, tuple | list) else (batch,))))
                if how.defers and not how.engine.all_finite():
                    raise NotFinite
            except NotFinite:
                replayed, how.defers = None, False  # eager batches that are looked at take such an example out
            except NewProgram:
                pass  # the engine asks for leaves from now on
            except Spoiled:
                how.physical_batch_size = 1  # an example alone spoils no other
                is_spoiled = True
            except torch.OutOfMemoryError:
                if how.physical_batch_size == 1 or how.scatters is not None:
                    raise
                how.physical_batch_size = math.ceil(how.physical_batch_size / 2)
            else:
                self._stage = _Stage.SUMMED
                if is_spoiled:
                    how.physical_batch_size = usual
                return
            self.clipped.clear()
            how.clipping.begin(self._index, self.clipped.flat)
            self._awaits_losses = False
            for notify in how.events.sum_restarts:
                notify()
