"""Everything one run works with, checked and built before any data is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial

import torch
from torch import nn
from torch.optim import Optimizer

from privet.accounting.ledger import Ledger
from privet.errors import LedgerMismatch, LoopError, PlanError
from privet.gradients.engines.engine import RunningEngine
from privet.gradients.engines.support import check_model
from privet.gradients.sharding.local import settle
from privet.isolation.watch import Waiver, Watch
from privet.mechanism.clipping import ClippingRule
from privet.mechanism.executed import ExecutedSteps
from privet.mechanism.layout import Layout
from privet.mechanism.masking import MaskRun
from privet.mechanism.noise import StepUnits
from privet.mechanism.sums import ClippedSum
from privet.plan import Plan
from privet.training.averaging import ExponentialAverage, RunningAverage
from privet.training.batching import Collate, MapDataset, tensors_held
from privet.training.distributed.ranks import Point
from privet.training.distributed.sharding import shards_of
from privet.training.distributed.shared_run import SharedRun
from privet.training.drawing import DrawsAhead
from privet.training.evidence import EvidenceRecorder
from privet.training.folder import Checkpoints, RunFolder, RunState
from privet.training.last_iterate import chain_of
from privet.training.launch.replay import Eager, Launcher
from privet.training.loading import Loader, open_loader
from privet.training.loop_events import Events, NormWatch, Observer
from privet.training.performance import Performance
from privet.training.persons import persons_of
from privet.training.preflight.preflight import Preflight
from privet.training.randomness import Streams
from privet.training.reading import Indices
from privet.training.release import ChargedRelease, RoundLedger
from privet.training.summing import LogicalBatch, Summation, examples_at_once, usual_size
from privet.training.telemetry import Receiver, Telemetry
from privet.training.tracking.progress import Progress
from privet.training.tracking.reporting import Reporter
from privet.training.trained import check_optimizer, trainable_parameters
from privet.training.updates import GradientViews, StepSum, Update, Updates
from privet.training.weight_watch.guard import LoopGuard


class PreparedRun:
    """The parts of one run.

    Attributes:
        events, guard, engine, launcher, loader, streams, flat, updates, summation, checkpoints: Exist after ``open``.
        draw: Draws the batches of the round that begins. Exists after ``open``.
        round_ledger: Where rounds are charged. Exists after ``open``.
        awaiting_noise: Returns the clipped sum of a step with the noise that it waits for. Exists after ``open``.
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
    round_ledger: RoundLedger
    awaiting_noise: Callable[..., StepSum]
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
        progress: Progress | None,
        averaging: ExponentialAverage | None,
        waive: Sequence[Waiver],
        seed: int | None,
        shared: SharedRun | None = None,
    ) -> None:
        """Check everything that can be checked without data, then open the ledger: on ranks, that of rank 0."""
        check_model(model, may_shard=True)
        settle(model)  # a sharded model that was evaluated holds whole parameters in places
        check_optimizer(model, optimizer)
        self.chain = chain_of(plan, model, optimizer, len(dataset), keeps_average=averaging is not None)
        named = trainable_parameters(model)
        self.plan, self.dataset, self.folder = plan, dataset, folder
        self._persons, self._records = persons_of(plan.sampling, dataset), dataset
        self._records_per_item = 1
        if self._persons is not None:
            self._records = self._persons.dataset.records
            self._records_per_item = self._persons.contribution.records_per_item
        self._at_once = examples_at_once(performance.physical_batch_size, self._records_per_item)
        self.parameters = [parameter for _, parameter in named]
        self.layout = Layout.of([(name, tuple(value.shape)) for name, value in named], plan.grouping)
        self.device = self.parameters[0].device
        ranks = None if shared is None else shared.ranks
        self.shards = shards_of(model, self.parameters, self.layout, plan, performance.launch, ranks)
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
        self._shared, number = shared, 1 if shared is None else shared.ranks.size
        keeps_folder = folder is not None and (shared is None or shared.ranks.is_first)
        self.ledger = (
            folder.open_ledger(plan, is_seeded=seed is not None, num_processes=number)
            if folder is not None and keeps_folder
            else Ledger.in_memory(plan.hash, is_seeded=seed is not None, num_processes=number)
        )
        self._performance, self._collate, self._telemetry, self._progress = performance, collate, telemetry, progress
        self._waivers, self.seed = tuple(waive), seed
        self._is_open = False

    def join(self) -> None:
        """Take up the ledger that the ranks of the run share; the folder is rank 0's alone from here on.

        Ranks of a sharded model write and read their parts there.
        """
        if self._shared is not None:
            self.ledger = self._shared.joined(self.ledger, self.folder)
            if not self._shared.ranks.is_first and self.shards is None:
                self.folder = None

    def leaving(self, error: BaseException | None) -> AbstractContextManager[BaseException | None]:
        """Return the context in which a run ends, with the error that ended it; on ranks it is that of all of them."""
        return nullcontext(error) if self._shared is None else self._shared.leaving(self, error)

    @property
    def has_telemetry(self) -> bool:
        """Whether somebody receives figures that are not private."""
        return self._telemetry is not None

    @property
    def physical_batch_size(self) -> int:
        """How many examples go through the model at once, now."""
        if not self._is_open:
            return self._performance.physical_batch_size
        return self.summation.physical_batch_size * self._records_per_item

    def open(self) -> None:
        """Restore the newest checkpoint, attach to the model and its optimizer, and draw the run's keys."""
        with nullcontext() if self._shared is None else self._shared.ranks.together(Point.OPENING):
            self._open()

    def _open(self) -> None:
        with ExitStack() as undo:
            undo.callback(self.ledger.abandon)  # a start that is refused leaves the ledger as it was
            if self.ledger.why_not_private:
                raise LedgerMismatch(
                    f"The run cannot be resumed, and nothing is promised for it: {self.ledger.why_not_private[0]}. "
                    "Start anew with a fresh model and in a new folder."
                )
            if self._shared is not None:
                self._shared.compare(self)
                self._shared.restore(self)
            else:
                self.restore_from_folder()
            if self.chain is not None:
                self.chain.check_start(self.ledger.charged_rounds)
            model, optimizer = self.state.model, self.state.optimizer
            shards = self.shards
            held = {} if shards is None else shards.held
            self.guard = LoopGuard(model, optimizer, found=self._note_unexplained_change, gathered=held)
            undo.callback(self.guard.close)
            watch = Watch(waivers=self._waivers)
            for tensor in tensors_held(self._records):
                watch.programs.write(tensor)  # examples reach a program through its batch, or not at all
            preflight = Preflight(model, watch, trained=shards)
            used = self.parameters if shards is None else shards.whole
            self.engine = self._performance.engine.start(model, used, self.layout, watch)
            self._scatters = None if shards is None else shards.check_engine(self.engine)
            launch = self._performance.launch if shards is None else Eager()
            self.launcher = launch.start(self.engine, self.device)
            if shards is not None:
                shards.sharded.open()
                undo.callback(shards.sharded.close)
            # Workers are started before the run has keys.
            self.loader = open_loader(
                self._records,
                self._collate,
                self.device,
                self._performance,
                records_per_item=self._records_per_item,
            )
            undo.pop_all()
        shared, dtype = self._shared, torch.promote_types(self.parameters[0].dtype, torch.float32)
        self.streams = (
            Streams.new(self.device, seed=self.seed)
            if shared is None
            else shared.streams(self.device, dtype, seed=self.seed, is_sharded=self.shards is not None)
        )
        self.draw = self._draw_round if shared is None else shared.part_of(self._draw_round)
        if self.loader.reads_ahead:
            draws = DrawsAhead(self.draw, self.ledger)
            self.draw, self.rounds_at_hand = draws.round, 2
            self.loader.read_also(draws.upcoming)
        self.round_ledger = self.ledger
        if shared is not None:
            self.draw, self.round_ledger = shared.handed_out(self.draw), shared.ledger_of_ranks(self.ledger)
        self._attach(dtype)
        self.events = Events.of(self._observers(watch, preflight))
        self.summation = Summation(
            loader=self.loader,
            device=self.device,
            engine=self.engine,
            launcher=self.launcher,
            watch=watch,
            preflight=preflight,
            clipping=self.state.clipping,
            events=self.events,
            physical_batch_size=self._at_once,
            usual_size=usual_size(self.plan.sampling),
            scatters=self._scatters,
            records_per_item=self._records_per_item,
        )
        self._is_open = True

    def restore_from_folder(self) -> bool:
        """Restore the newest checkpoint of the folder, if there is a folder; say whether there was one."""
        if self.folder is None:
            return False
        is_first = self._shared is None or self._shared.ranks.is_first
        dataset = self.dataset if is_first else None
        return self.folder.restore(self.state, plan=self.plan, ledger=self.ledger, dataset=dataset)

    def close(self) -> None:
        """Leave the model and its optimizer, and end the workers."""
        self.engine.close()
        self.guard.close()
        if self.shards is not None:
            self.shards.sharded.close()
        self.loader.close()

    def _draw_round(self) -> Iterable[Indices]:
        """Draw the batches of one round; an audit's data set has another length in every round."""
        if self._persons is not None:
            return self._persons.round(self.streams.sampling, self.streams.records)
        return self.plan.sampling.round_batches(len(self.dataset), self.streams.sampling)

    def _attach(self, dtype: torch.dtype) -> None:
        """Make room for the sum and the gradients."""
        size = self.layout.num_coordinates if self.shards is None else self.shards.scatter.size
        self.flat = torch.zeros(size, device=self.device, dtype=dtype)
        self.updates = Updates(
            source=self.streams.noise,
            share=None if self.shards is None else self.shards.scatter.share,
            parameters=self.parameters,
            memory=torch.zeros_like(self.flat),
            views=GradientViews(layout=self.layout) if self.shards is None else self.shards.gradients(),
            optimizer=self.state.optimizer,
            opened=self.guard.opened,
            divisor=self.plan.sampling.expected_batch_size,
            records=self.launcher.uses_graphs,
        )
        noise, clipping = self.state.noise, self.state.clipping
        self._steps_executed = ExecutedSteps(clipping=clipping, sampling=self.plan.sampling)
        kind = StepSum if self._shared is None else self._shared.step_sum
        self.awaiting_noise = partial(kind, updates=self.updates, noise=noise, steps=self._steps_executed)
        units = noise.begin(0, self.flat)  # refuses units of another model before any data is read
        self.fixed_units = units if self.plan.noise.is_fixed else None
        self.fixed_rule = clipping.begin(0, self.flat) if self.plan.clipping.is_fixed else None
        for parameter in self.parameters:
            parameter.grad = None

    def _observers(self, watch: Watch, preflight: Preflight) -> list[Observer]:
        """Return who observes the loop, in the order in which they are called."""
        self.guard.resume(self.state.steps_taken)
        self.checkpoints = None
        observers: list[Observer] = [self.guard]
        if not self.plan.clipping.is_fixed:
            observers.append(NormWatch(self.state.clipping))
        if self.state.average is not None:
            observers.append(self.state.average)
        if self.chain is not None:
            self.chain.bind(self.ledger, lambda: self.guard.look(waits=True))
            observers.append(self.chain)
        recorder = EvidenceRecorder(ledger=self.ledger, watch=watch, preflight=preflight)
        # sums are added up over ranks behind all that may refuse a step, and before those who see the sum
        observers.append(recorder if self._shared is None else self._shared.summing(self, recorder))
        if self._telemetry is not None:
            shared, receiver = self._shared, self._telemetry
            observers.append(Telemetry(receiver) if shared is None else shared.telemetry(receiver))
        if self.folder is not None:
            self.checkpoints = Checkpoints(
                folder=self.folder,
                state=self.state,
                ledger=self.ledger,
                guard=self.guard,
                chain=self.chain,
                write_together=None if self.shards is None else self.shards.write_checkpoint(self._shared),
            )
            observers.append(self.checkpoints)
        if self._progress is not None:
            observers.append(Reporter(self._progress, plan=self.plan, optimizer=self.state.optimizer))
        return observers

    @property
    def average(self) -> RunningAverage:
        """The running average of the weights."""
        if self.state.average is None:
            raise LoopError("This session keeps no average. Ask privatize() for one: averaging=ExponentialAverage().")
        return self.state.average

    def _note_unexplained_change(self) -> None:
        self.ledger.note_unexplained_change(step=self.state.steps_taken)

    def charge_round(self, rounds_left: int) -> ChargedRelease[Update]:
        """Charge the next round, durably, and return its release; no example of it was read before.

        Rounds that were charged in advance are used up before another row is written.

        Args:
            rounds_left: How many rounds of the plan were not run yet.
        """
        at_hand, num_rounds = self.ledger.available, 0
        if at_hand < min(self.rounds_at_hand, rounds_left):
            num_rounds = min(max(self.rounds_per_charge, self.rounds_at_hand - at_hand), rounds_left - at_hand)
        return ChargedRelease(self.round_ledger, self.round_event, num_charged=num_rounds)

    def empty_batch(self, indices: Indices, index: int) -> LogicalBatch:
        """Return the batch of a step, with its clipping rule and an empty sum; its examples are unread.

        Args:
            indices: The examples. Secret.
            index: The public number of the step.
        """
        self.flat.zero_()
        rule = self.fixed_rule or self.state.clipping.begin(index, self.flat)
        kept = None if self.mask is None else self.mask.begin(index, self.streams.masks, self.flat)
        frame, squares = self.fixed_units or self.state.noise.begin(index, self.flat)
        clipped = ClippedSum(
            flat=self.flat,
            layout=self.layout,
            sensitivity=rule.sensitivity,
            is_held=self.holds_bounds,
            keep=None if kept is None else kept.coordinates,
            kept=kept,
            frame=frame,
            squares=squares,
            scatter=None if self.shards is None else self.shards.scatter,
        )
        return LogicalBatch(
            self.summation,
            indices,
            rule=rule,
            clipped=clipped,
            index=index,
            steps_taken=self.state.steps_taken,
            num_present=None if self.shards is None or self._shared is None else self._shared.num_present,
        )
