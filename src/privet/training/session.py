"""The private training loop: one visible order of events, from the charged round to the optimizer's step.

Reserve the round (durable), draw indices, cut physical batches, run the user's forward, add clipped sums, add noise
once, compare with the reserved round, write p.grad, step the optimizer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import nn
from torch.optim import Optimizer

from privet import checks
from privet.accounting.guarantee import Guarantee
from privet.accounting.ledger import Ledger, VoidReason
from privet.errors import (
    ArgumentError,
    LedgerMismatch,
    LoopError,
    PlanError,
    UnsupportedModel,
    WeightsChanged,
)
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.engine import Engine
from privet.gradients.engines.support import check_model
from privet.isolation.watch import UNFOLLOWED, Waiver, Watch
from privet.mechanism.layout import Layout
from privet.plan import Plan
from privet.training.averaging import ExponentialAverage
from privet.training.batching import Collate, MapDataset, check_dataset, tensors_held
from privet.training.ending import Ending, Endings
from privet.training.folder import RunFolder
from privet.training.guards import ParameterGuard, StepGuard, check_optimizer, trainable_parameters
from privet.training.last_iterate import follow_iterates
from privet.training.preflight import Preflight
from privet.training.randomness import NoiseSource, Streams
from privet.training.release import ChargedRelease
from privet.training.replay import Eager, Launch
from privet.training.step import Step
from privet.training.telemetry import Receiver
from privet.training.units import check_unit
from privet.training.weights import WeightWatch
from privet.vocabulary import Release

_LOG = logging.getLogger("privet")


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
    launch: Launch | None = None,
    collate: Collate | None = None,
    telemetry: Receiver | None = None,
    averaging: ExponentialAverage | None = None,
    waive: Sequence[Waiver] = (),
    seed: int | None = None,
) -> Session:
    """Prepare a model for private training; use the result in a ``with`` block.

    The model is not wrapped and keeps its class, keys and hooks. Engine, physical batch size, folder and telemetry are
    conveniences: none of them can change the guarantee.

    Args:
        model: Any module whose examples do not interact.
        optimizer: Any first-order torch optimizer over exactly the model's trainable parameters.
        dataset: A map-style data set; one item is one unit of privacy: one record, or what the data set states, for
            instance :class:`~privet.training.units.OneItemPerPerson`. Its length changes no constant of the plan.
        plan: The accounted plan.
        physical_batch_size: How many examples go through the model at once.
        folder: Where to keep the ledger and checkpoints; a folder that has them is resumed. None keeps the ledger in
            memory and writes nothing.
        checkpoint_every: Steps between checkpoints, when there is a folder; a tenth of the run, at most 100, by
            default. Steps after the last checkpoint are lost to a crash, and paid for.
        engine: How per-example gradients are computed;
            :class:`~privet.gradients.engines.bookkeeping.BookKeeping` by default.
        launch: How operations are launched: :class:`~privet.training.replay.CudaGraph` speeds up small models on a
            device, for loops that use ``step.accumulate``. One by one by default.
        collate: Turns a list of items into a batch; torch's default otherwise.
        telemetry: Receives exact losses, clipped shares and batch sizes. They are not private.
        averaging: Keeps a moving average of the weights beside them, for ``session.averaged()``.
        waive: Checks that you answer for where they cannot be held; they stand in the guarantee.
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
        dataset=check_unit(check_dataset(dataset), plan.unit),
        plan=plan,
        physical_batch_size=checks.count("physical_batch_size", physical_batch_size),
        folder=run_folder,
        engine=engine or BookKeeping(),
        launch=launch or Eager(),
        collate=collate,
        telemetry=telemetry,
        averaging=averaging,
        waive=waive,
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
        launch: Launch,
        collate: Collate | None,
        telemetry: Receiver | None,
        averaging: ExponentialAverage | None,
        waive: Sequence[Waiver],
        seed: int | None,
    ) -> None:
        """Check everything that can be checked without data, then open the ledger."""
        check_model(model)
        check_optimizer(model, optimizer)
        self._iterates = follow_iterates(plan, model, optimizer, len(dataset), keeps_average=averaging is not None)
        named = trainable_parameters(model)
        self.plan, self.model, self.optimizer = plan, model, optimizer
        self.physical_batch_size = physical_batch_size
        if telemetry is not None and not callable(telemetry):
            raise ArgumentError(
                f"telemetry must be a function that takes the figures of each step, got {telemetry!r}. For instance "
                "telemetry=print; what it receives is not private."
            )
        self._dataset, self._collate, self._telemetry, self._seed = dataset, collate, telemetry, seed
        self._waivers = tuple(waive)
        self._parameters = [parameter for _, parameter in named]
        self._layout = Layout.of([(name, tuple(value.shape)) for name, value in named], plan.grouping)
        self._clipping = plan.clipping.start(
            num_groups=self._layout.num_groups,
            num_steps=plan.num_steps,
            expected_batch_size=plan.sampling.expected_batch_size,
        )
        self._mask = plan.mask.start(
            layout=self._layout, num_steps=plan.num_steps, steps_per_epoch=plan.sampling.steps_per_epoch
        )
        self._noise = plan.noise.start(self._layout, has_mask=not plan.mask.is_whole)
        if not plan.noise.is_fixed and not isinstance(launch, Eager):
            raise PlanError(
                f"{type(launch).__name__} replays fixed units; learned units need launch=pv.launch.Eager()."
            )
        self._average = None if averaging is None else averaging.start(model)
        self._device = self._parameters[0].device
        self._engine_choice, self._launch, self._folder = engine, launch, folder
        self._planned_round = plan.round_event  # raises for a plan without noise, before a ledger exists
        self.ledger = (
            Ledger.in_memory(plan.hash, is_seeded=seed is not None)
            if folder is None
            else folder.open_ledger(plan, is_seeded=seed is not None)
        )
        self._entered = self._is_open = False
        self._position = self.steps_taken = 0  # where the plan stands, and how many of its steps are in the model
        self._open_step: Step | None = None
        self._noise_sources: tuple[NoiseSource, ...] = ()
        self._unseen: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        """Attach to the optimizer and draw the run's keys; restore the newest checkpoint if there is one."""
        if self._entered:
            raise LoopError("A session can be entered once. Call privatize() again for another run.")
        self._entered = True
        with ExitStack() as undo:
            undo.callback(self.ledger.abandon)  # a start that is refused leaves the ledger as it was
            if self.ledger.why_not_private:
                raise LedgerMismatch(
                    f"The run cannot be resumed, and nothing is promised for it: {self.ledger.why_not_private[0]}. "
                    "Start anew with a fresh model and in a new folder."
                )
            if self._folder is not None:
                self._folder.restore(self)
            self._iterates.check_start(self.ledger.charged_rounds)
            self._weights = WeightWatch(self.model, self.optimizer, found=self._note_unexplained_change)
            self._unseen = (*self._weights.assumptions, UNFOLLOWED)
            self._guard = StepGuard(self.optimizer, held=self._weights.held)
            undo.callback(self._guard.close)
            self._trained = ParameterGuard(lambda: self._weights.parameters, self.optimizer)
            self._watch = Watch(waivers=self._waivers)
            for tensor in tensors_held(self._dataset):
                self._watch.programs.write(tensor)  # examples reach a program through its batch, or not at all
            self._preflight = Preflight(self.model, self._watch)
            self._engine = self._engine_choice.start(self.model, self._parameters, self._layout, self._watch)
            self._launcher = self._launch.start(self._engine, self._device)
            undo.pop_all()
        self._is_open = True
        self._streams = Streams.new(self._device, seed=self._seed)
        self._noise_sources = (self._streams.noise,)
        self._flat = torch.zeros(
            self._layout.num_coordinates,
            device=self._device,
            dtype=torch.promote_types(self._parameters[0].dtype, torch.float32),
        )
        self._endings = Endings(
            source=self._streams.noise,
            parameters=self._parameters,
            memory=torch.zeros_like(self._flat),
            optimizer=self.optimizer,
            opened=self._guard.opened,
            divisor=self.plan.sampling.expected_batch_size,
            records=self._launcher.uses_graphs,
        )
        self._noise.begin(0, self._flat)  # refuses units of another model before any data is read
        for parameter in self._parameters:
            parameter.grad = None
        if self._folder is not None and self.plan.release is Release.LAST_ITERATE and not self.ledger.charged_rounds:
            self._folder.checkpoint(self)  # a run that breaks off in its first epoch goes on from the public beginning
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
            changed = self._last_look()
            if error is not None and changed is not None:
                _LOG.warning("%s", changed)
            if unfinished is not None:
                was_asked = error is None or isinstance(error, KeyboardInterrupt)
                unfinished.give_up(VoidReason.INTERRUPTED if was_asked else VoidReason.STEP_FAILED)
            may_checkpoint = self._iterates.may_checkpoint and not self._weights.is_broken
            if self._folder is not None and may_checkpoint and not isinstance(error, LedgerMismatch):
                with suppress(Exception) if error is not None else nullcontext():
                    self._folder.checkpoint(self)
            if error is None and changed is not None:
                raise changed
            if error is None:
                self.ledger.verify(self.plan.segments)
            self._warn_if_cut_short()
        finally:
            self.ledger.close()

    def _last_look(self) -> WeightsChanged | UnsupportedModel | None:
        """Look at the weights for the last time; return what is wrong with them, unless that was said before."""
        try:
            if not self._weights.is_broken:
                self._weights.look(waits=True)
        except (WeightsChanged, UnsupportedModel) as found:
            return found
        return None

    def _note_unexplained_change(self) -> None:
        self.ledger.note_unexplained_change(step=self.steps_taken)

    @contextmanager
    def public_change(self, reason: str) -> Iterator[None]:
        """Let the weights be changed between two steps, without private data, for the length of the block.

        For loading public weights, clamping, merging adapters, re-initialising. Weights computed from the session's own
        iterates alone are fine as well. Not with ``Release.LAST_ITERATE``, whose proof knows steps alone.

        Args:
            reason: What is done, in words; at most 200 characters. It is written into the ledger before the block runs
                and stands among the assumptions of every guarantee of this run: never put a private value there.

        Raises:
            WeightsChanged: the weights had been changed by something else before.
        """
        if not self._is_open:
            raise LoopError("session.public_change() belongs inside the session's with block; after it, it is free.")
        if self._open_step is not None and self._open_step.is_summing:
            raise LoopError("The weights cannot be changed while a step is being summed up. Call step.update() first.")
        self._iterates.check_public_change()
        if self._average is not None:
            self._average.check_not_applied()
        with self._weights.changing():
            self.ledger.note_public_change(reason, step=self.steps_taken)
            yield

    def _note_evidence(self) -> None:
        """Write into the ledger what was not proven by rule, before its gradients are used."""
        watch = self._watch
        self.ledger.note_evidence(tried=watch.tried, settled=watch.settled, vouched=watch.waived)

    def _warn_if_cut_short(self) -> None:
        """A bound on the last iterate holds at the planned end only; until then every iterate is charged."""
        if self.plan.release is Release.LAST_ITERATE and not self.is_complete and self.ledger.charged_rounds:
            if self.ledger.why_not_private:
                return
            _LOG.warning(
                "The run ended before its plan did, so the bound on the last model does not apply: as it stands the "
                "model costs epsilon %.3f, and the plan promised %.3f at its end. Continue the run, or do not show it.",
                self.guarantee().epsilon, self.plan.guarantee().epsilon,
            )  # fmt: skip

    @property
    def steps_done(self) -> int:
        """How many steps have been charged, by this process and those before it."""
        return self.ledger.charged_rounds * self.plan.sampling.steps_per_round

    def steps(self, *, first: int | None = None) -> Iterator[Step]:
        """Yield one logical step after another until the plan is used up.

        Each step's round is charged, durably, before a single example is read. A loop body that does not call
        ``step.update()`` is an error: its round is paid for, so it must be used.

        Args:
            first: The public number of the first step of this walk, by which masks and schedules of clipping know where
                they are, for parties that keep step with others; the number of steps charged by default. What is
                charged, and how many steps are left, does not depend on it.
        """
        if not self._is_open:
            raise LoopError("session.steps() belongs inside the session's with block.")
        if self._open_step is not None and not self._open_step.is_done:
            raise LoopError(
                f"Step {self._open_step.index} is still open. Finish it with step.update() before asking for more "
                "steps; one walk over session.steps() at a time."
            )
        self._iterates.walk_began()
        sampling, num_rounds = self.plan.sampling, self.plan.num_rounds
        done = self.ledger.charged_rounds - self.ledger.available
        ahead = 0 if first is None else checks.count("first", first, minimum=0) - done * sampling.steps_per_round
        while done < num_rounds:
            release = self._charge(num_rounds - done)
            batches = sampling.round_batches(len(self._dataset), self._streams.sampling)
            self._iterates.round_began()
            for place, indices in enumerate(batches):
                index = ahead + done * sampling.steps_per_round + place
                if place:
                    release = ChargedRelease(self.ledger, self._planned_round, charge=0, uses=0)
                step = Step(self, indices, index=index, release=release)
                self._open_step = step
                yield step
                if not step.is_done:
                    raise LoopError(
                        f"Step {step.index} was not completed: call step.update() in every pass of the loop over "
                        "steps(). Its round stays charged."
                    )
                self._open_step = None
                if place + 1 == sampling.steps_per_round:
                    self._iterates.round_ended()
                if self._folder is not None and self._iterates.is_due(step.index + 1, self._folder.every):
                    self._weights.look(waits=True)
                    self._folder.checkpoint(self)
            done += 1
        self._iterates.walk_ended()
        if self.plan.release is Release.LAST_ITERATE and self._iterates.is_complete:
            self._weights.look(waits=True)
            self.ledger.complete()

    @property
    def is_complete(self) -> bool:
        """Whether the plan is used up and the model is the one it was made for."""
        return self.plan.is_finished(self.ledger)

    def _charge(self, left: int) -> ChargedRelease[Ending]:
        """Charge the next round, and with a folder some of those that are left, in one durable write."""
        ahead = 1 if self._folder is None else self._folder.reserve_ahead // self.plan.sampling.steps_per_round
        charge = 0 if self.ledger.available else min(max(1, ahead), left)
        return ChargedRelease(self.ledger, self._planned_round, charge=charge)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Put the averaged weights into the model for the length of the block; during the run or after it."""
        if self._average is None:
            raise LoopError("This session keeps no average. Ask privatize() for one: averaging=ExponentialAverage().")
        with self._average.applied(self._weights.changing if self._is_open else nullcontext):
            yield

    def adopt_average(self) -> None:
        """Leave the averaged weights in the model for good; only after the run."""
        if self._average is None or self._is_open:
            raise LoopError(
                "adopt_average() puts the averaged weights in the place of the last ones after the session's with "
                "block, and needs privatize(averaging=...). During the run use averaged()."
            )
        self._average.adopt()

    def guarantee(self) -> Guarantee:
        """Account what the ledger says was charged: the guarantee of everything released so far.

        Raises:
            WeightsChanged: something that was no private step changed the weights since the last look. From then on the
                guarantee says that nothing is promised.
        """
        if self._is_open and not self._weights.is_broken:
            self._weights.look(waits=True)
        return self.plan.account(
            self.ledger,
            assumptions=tuple(f"noise came from {source.description}" for source in self._noise_sources) + self._unseen,
        )
