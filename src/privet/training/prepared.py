"""Everything one run works with, checked and built before any data is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

import torch
from torch import nn
from torch.optim import Optimizer

from privet.accounting.ledger import Ledger
from privet.errors import LedgerMismatch, LoopError, PlanError
from privet.gradients.engines.engine import RunningEngine
from privet.gradients.engines.support import check_model
from privet.isolation.watch import Waiver, Watch
from privet.mechanism.clipping import ClippingRule
from privet.mechanism.layout import Layout
from privet.mechanism.masking import MaskRun
from privet.mechanism.noise import StepUnits
from privet.mechanism.sums import ClippedSum
from privet.plan import Plan
from privet.training.averaging import ExponentialAverage, RunningAverage
from privet.training.batching import Collate, MapDataset, tensors_held
from privet.training.drawing import DrawsAhead
from privet.training.evidence import EvidenceRecorder
from privet.training.folder import Checkpoints, RunFolder, RunState
from privet.training.last_iterate import chain_of
from privet.training.launch.replay import Launcher
from privet.training.loading import Loader, open_loader
from privet.training.loop_events import Events, Observer
from privet.training.performance import Performance
from privet.training.preflight.preflight import Preflight
from privet.training.randomness import Streams
from privet.training.reading import Indices
from privet.training.summing import Summation, usual_size
from privet.training.telemetry import Receiver, Telemetry
from privet.training.trained import check_optimizer, trainable_parameters
from privet.training.updates import GradientViews, StepSum, Updates
from privet.training.weight_watch.guard import LoopGuard


class PreparedRun:
    """The parts of one run.

    Attributes:
        events, guard, engine, launcher, loader, streams, flat, updates, summation, checkpoints: Exist after ``open``.
        draw: Draws the batches of the round that begins. Exists after ``open``.
        rounds_at_hand: How many charged rounds a step begins with, its own among them: those after it are read ahead.
        fixed_rule: The clipping rule of all steps; None if it changes from step to step.
        fixed_units: The units of all steps; None if they change.
    """

    events: Events
    guard: LoopGuard
    engine: RunningEngine
    launcher: Launcher
    loader: Loader
    streams: Streams
    draw: Callable[[], Iterable[Indices]]
    flat: torch.Tensor
    updates: Updates
    summation: Summation
    checkpoints: Checkpoints | None
    fixed_rule: ClippingRule | None
    fixed_units: StepUnits | None

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        dataset: MapDataset,
        plan: Plan,
        performance: Performance,
        folder: RunFolder | None,
        collate: Collate | None,
        telemetry: Receiver | None,
        averaging: ExponentialAverage | None,
        waive: Sequence[Waiver],
        seed: int | None,
    ) -> None:
        """Check everything that can be checked without data, then open the ledger."""
        check_model(model)
        check_optimizer(model, optimizer)
        self.chain = chain_of(plan, model, optimizer, len(dataset), keeps_average=averaging is not None)
        named = trainable_parameters(model)
        self.plan, self.dataset, self.folder = plan, dataset, folder
        self.parameters = [parameter for _, parameter in named]
        self.layout = Layout.of([(name, tuple(value.shape)) for name, value in named], plan.grouping)
        self.device = self.parameters[0].device
        self.mask: MaskRun | None = None
        if not plan.mask.is_whole:
            self.mask = plan.mask.start(
                layout=self.layout, num_steps=plan.num_steps, steps_per_epoch=plan.sampling.steps_per_epoch
            )
        noise = plan.noise.start(self.layout, has_mask=not plan.mask.is_whole)
        if not plan.noise.is_fixed and performance.launch.must_replay:
            launch = type(performance.launch).__name__
            raise PlanError(f"{launch} replays fixed units; learned units need Performance(launch=pv.launch.Eager()).")
        self.state = RunState(
            model=model,
            optimizer=optimizer,
            clipping=plan.clipping.start(
                num_groups=self.layout.num_groups,
                num_steps=plan.num_steps,
                expected_batch_size=plan.sampling.expected_batch_size,
            ),
            noise=noise,
            average=None if averaging is None else averaging.start(model),
        )
        self.num_steps = plan.num_steps
        ahead = 1 if folder is None else folder.reserve_ahead // plan.sampling.steps_per_round
        # a ledger in memory needs no rounds in advance
        self.rounds_per_charge, self.rounds_at_hand = max(1, ahead), 1
        # the plan's own piece decides, since it also takes every guarantee of the plan away
        self.holds_bounds = plan.holds_bounds
        self.round_event = plan.round_event  # raises for a plan without noise, before a ledger exists
        self.ledger = (
            Ledger.in_memory(plan.hash, is_seeded=seed is not None)
            if folder is None
            else folder.open_ledger(plan, is_seeded=seed is not None)
        )
        self._performance, self._collate, self._telemetry = performance, collate, telemetry
        self._waivers, self._seed = tuple(waive), seed
        self._is_open = False

    @property
    def physical_batch_size(self) -> int:
        """How many examples go through the model at once, now."""
        chosen = self.summation if self._is_open else self._performance
        return chosen.physical_batch_size

    def open(self) -> None:
        """Restore the newest checkpoint, attach to the model and its optimizer, and draw the run's keys."""
        with ExitStack() as undo:
            undo.callback(self.ledger.abandon)  # a start that is refused leaves the ledger as it was
            if self.ledger.why_not_private:
                raise LedgerMismatch(
                    f"The run cannot be resumed, and nothing is promised for it: {self.ledger.why_not_private[0]}. "
                    "Start anew with a fresh model and in a new folder."
                )
            if self.folder is not None:
                self.folder.restore(self.state, plan=self.plan, ledger=self.ledger, dataset=self.dataset)
            if self.chain is not None:
                self.chain.check_start(self.ledger.charged_rounds)
            model, optimizer = self.state.model, self.state.optimizer
            self.guard = LoopGuard(model, optimizer, found=self._note_unexplained_change)
            undo.callback(self.guard.close)
            watch = Watch(waivers=self._waivers)
            for tensor in tensors_held(self.dataset):
                watch.programs.write(tensor)  # examples reach a program through its batch, or not at all
            preflight = Preflight(model, watch)
            self.engine = self._performance.engine.start(model, self.parameters, self.layout, watch)
            self.launcher = self._performance.launch.start(self.engine, self.device)
            # Workers are started before the run has keys.
            self.loader = open_loader(self.dataset, self._collate, self.device, self._performance)
            undo.pop_all()
        self.streams = Streams.new(self.device, seed=self._seed)
        self.draw = self._draw_round
        if self.loader.reads_ahead:
            draws = DrawsAhead(self.draw, self.ledger)
            self.draw, self.rounds_at_hand = draws.round, 2
            self.loader.read_also(draws.upcoming)
        self._attach()
        self.events = Events.of(self._observers(watch, preflight))
        self.summation = Summation(
            loader=self.loader,
            device=self.device,
            engine=self.engine,
            launcher=self.launcher,
            watch=watch,
            preflight=preflight,
            clipping=self.state.clipping,
            learns=not self.plan.clipping.is_fixed,
            events=self.events,
            physical_batch_size=self._performance.physical_batch_size,
            usual_size=usual_size(self.plan.sampling),
        )
        self._is_open = True

    def close(self) -> None:
        """Leave the model and its optimizer, and end the workers."""
        self.engine.close()
        self.guard.close()
        self.loader.close()

    def _draw_round(self) -> Iterable[Indices]:
        """Draw the batches of one round; an audit's data set has another length in every round."""
        return self.plan.sampling.round_batches(len(self.dataset), self.streams.sampling)

    def _attach(self) -> None:
        """Make room for the sum and the gradients."""
        dtype = torch.promote_types(self.parameters[0].dtype, torch.float32)
        self.flat = torch.zeros(self.layout.num_coordinates, device=self.device, dtype=dtype)
        self.updates = Updates(
            source=self.streams.noise,
            parameters=self.parameters,
            memory=torch.zeros_like(self.flat),
            views=GradientViews(layout=self.layout),
            optimizer=self.state.optimizer,
            opened=self.guard.opened,
            divisor=self.plan.sampling.expected_batch_size,
            records=self.launcher.uses_graphs,
        )
        units = self.state.noise.begin(0, self.flat)  # refuses units of another model before any data is read
        self.fixed_units = units if self.plan.noise.is_fixed else None
        self.fixed_rule = self.state.clipping.begin(0, self.flat) if self.plan.clipping.is_fixed else None
        for parameter in self.parameters:
            parameter.grad = None

    def _observers(self, watch: Watch, preflight: Preflight) -> list[Observer]:
        """Return who observes the loop, in the order in which they are called."""
        self.guard.resume(self.state.steps_taken)
        self.checkpoints = None
        observers: list[Observer] = [self.guard]
        if self.state.average is not None:
            observers.append(self.state.average)
        if self.chain is not None:
            self.chain.bind(self.ledger, lambda: self.guard.look(waits=True))
            observers.append(self.chain)
        observers.append(EvidenceRecorder(ledger=self.ledger, watch=watch, preflight=preflight))
        if self._telemetry is not None:
            observers.append(Telemetry(self._telemetry))
        if self.folder is not None:
            self.checkpoints = Checkpoints(
                folder=self.folder, state=self.state, ledger=self.ledger, guard=self.guard, chain=self.chain
            )
            observers.append(self.checkpoints)
        return observers

    @property
    def average(self) -> RunningAverage:
        """The running average of the weights."""
        if self.state.average is None:
            raise LoopError("This session keeps no average. Ask privatize() for one: averaging=ExponentialAverage().")
        return self.state.average

    def _note_unexplained_change(self) -> None:
        self.ledger.note_unexplained_change(step=self.state.steps_taken)

    def empty_sum(self, index: int) -> tuple[ClippingRule, ClippedSum]:
        """Return the clipping rule of a step, and the empty sum of its clipped gradients; the examples are unread."""
        self.flat.zero_()
        rule = self.fixed_rule or self.state.clipping.begin(index, self.flat)
        kept = None if self.mask is None else self.mask.begin(index, self.streams.masks, self.flat)
        frame, squares = self.fixed_units or self.state.noise.begin(index, self.flat)
        return rule, ClippedSum(
            flat=self.flat,
            layout=self.layout,
            sensitivity=rule.sensitivity,
            is_held=self.holds_bounds,
            keep=None if kept is None else kept.coordinates,
            kept=kept,
            frame=frame,
            squares=squares,
        )

    def awaiting_noise(self, clipped: ClippedSum) -> StepSum:
        """Return the clipped sum of a step with the noise that it waits for."""
        return StepSum(
            clipped=clipped,
            noise=self.state.noise,
            updates=self.updates,
            clipping=self.state.clipping,
            sampling=self.plan.sampling,
        )
