"""Timing: all contenders of a model in one process, one round of each in turn.

The speed of a machine changes with its clock rate and other load. Interleaved rounds are affected alike, so ratios
within one run are reliable where absolute times are not. Ratios between runs are meaningless.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.check import TOLERANCE, judge, plain_error, true_clipped_sum
from benchmarks.clocks import Clock
from benchmarks.contenders import Contender, NoClippedSum, Option, Running, Settings
from benchmarks.machine import Precision
from benchmarks.models import Batch, Size, Workload
from benchmarks.records import Row, with_ratios

_MIN_ROUNDS = 3
_START_SHARE = 0.75  # of the time budget
_MAX_REASON = 300
_SECOND_TIME = "second time"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Settings of a measurement.

    Attributes:
        rounds: Timed samples of each contender.
        warm_up: Untimed steps before them, after the first step.
        min_sample_seconds: A sample repeats the step until it takes this long.
        check_examples: Number of examples in the correctness check; 0 omits the check.
        budget_seconds: After this time rounds stop at three; contenders that have not started after three quarters of
            it fail, so that there is time left for rounds.
        physical_batch: Examples per forward pass; None for the whole logical batch. A logical batch of several
            physical batches repeats the same examples, so that the measured memory is that of the step.
        accumulate: Also time steps of this many batches with one noise and one update, the usual use of small
            batches. 1 omits it.
    """

    rounds: int = 9
    warm_up: int = 2
    min_sample_seconds: float = 0.02
    check_examples: int = 16
    budget_seconds: float = float("inf")
    physical_batch: int | None = None
    accumulate: int = 1

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.warm_up < 0 or self.check_examples < 0 or self.accumulate < 1:
            raise ValueError(
                f"rounds and accumulate must be at least 1, warm_up and check_examples at least 0, got {self.rounds}, "
                f"{self.accumulate}, {self.warm_up} and {self.check_examples}."
            )

    def num_parts(self, logical_batch: int) -> int:
        """Return the number of physical batches in a logical batch."""
        physical = self.physical_batch or logical_batch
        if logical_batch % physical:
            raise ValueError(f"A logical batch of {logical_batch} cannot be made of physical batches of {physical}.")
        return logical_batch // physical


@dataclass(kw_only=True)
class _Entry:
    """A contender in the race."""

    row: Row
    contender: Contender
    running: Running | None = None
    seconds: list[float] = field(default_factory=list)
    accumulated_seconds: list[float] = field(default_factory=list)

    def fail(self, error: Exception) -> None:
        """Remove the contender from the race and record the reason."""
        message = " ".join(str(error).split())
        self.row = replace(self.row, failure=f"{type(error).__name__}: {message}"[:_MAX_REASON])
        self.leave()

    def leave(self) -> None:
        """Free its resources; a contender that failed may fail again when it is closed."""
        running, self.running = self.running, None
        if running is not None:
            with contextlib.suppress(Exception):
                running.close()


Observe = Callable[[tuple[Row, ...], bool], None]


def _ignore(rows: tuple[Row, ...], is_last: bool) -> None:
    """Nobody wants to know the rows of a measurement under way."""


def measure(
    workload: Workload,
    size: Size,
    contenders: Sequence[Contender],
    *,
    device: torch.device,
    settings: Settings,
    precision: Precision,
    clock: Clock,
    plan: Plan,
    observe: Observe = _ignore,
) -> tuple[Row, ...]:
    """Check, then time all contenders on one model; a contender that fails becomes a row with the reason.

    ``observe`` is called with the rows so far after every contender's start and every round, and whether they are the
    last, before anything is closed.
    """
    begin = time.monotonic()
    deadline, last_start = begin + plan.budget_seconds, begin + _START_SHARE * plan.budget_seconds
    num_parts = plan.num_parts(settings.logical_batch)
    model, batch = make(size, settings.logical_batch // num_parts, device=device, seed=settings.seed)
    parts = [batch] * num_parts
    entries = [_entry(workload, contender, settings) for contender in contenders]
    if plan.check_examples:
        _check(entries, model, batch, plan.check_examples)
    with precision.applied():
        for entry in entries:
            _start(entry, model, parts, settings, clock, plan, last_start)
            observe(_rows(entries), False)
        for place in range(plan.rounds):
            if place >= _MIN_ROUNDS and time.monotonic() > deadline:
                break
            _race(entries, parts, clock)
            observe(_rows(entries), False)
        if plan.accumulate > 1:
            _race_accumulated(entries, parts * plan.accumulate, clock, plan, deadline)
    rows = _rows(entries)
    observe(rows, True)
    for entry in entries:
        entry.leave()
    return rows


def _rows(entries: Sequence[_Entry]) -> tuple[Row, ...]:
    rows = [
        replace(entry.row, seconds=tuple(entry.seconds), accumulated_seconds=tuple(entry.accumulated_seconds))
        for entry in entries
    ]
    return with_ratios(rows, tolerance=TOLERANCE)


def check_only(
    workload: Workload,
    size: Size,
    contenders: Sequence[Contender],
    *,
    device: torch.device,
    num_examples: int,
    observe: Observe = _ignore,
) -> tuple[Row, ...]:
    """Compare the clipped sums of all contenders with the loop, without timing and without random layers."""
    settings = Settings(logical_batch=min(num_examples, size.batch_size))
    still = replace(size, build=size.build_still or size.build)
    model, batch = make(still, settings.logical_batch, device=device, seed=settings.seed)
    entries = [_entry(workload, contender, settings) for contender in contenders]
    _check(entries, model.float(), batch, num_examples, observe)
    rows = _rows(entries)
    observe(rows, True)
    return rows


def make(size: Size, num_examples: int, *, device: torch.device, seed: int) -> tuple[nn.Module, Batch]:
    """Build the model and draw a batch; the same seed gives the same weights and examples."""
    inputs, labels = size.data.draw(num_examples, torch.Generator().manual_seed(seed))
    # Made where it will be: a billion weights take a processor half a minute.
    with torch.random.fork_rng(devices=[]), device:
        torch.manual_seed(seed)
        model = size.build()
    return model.to(device).train(), (inputs.to(device), labels.to(device))


def _entry(workload: Workload, contender: Contender, settings: Settings) -> _Entry:
    row = Row(
        model=workload.name,
        contender=contender.name,
        role=contender.role.value,
        option=contender.option.value,
        batch_size=settings.logical_batch,
        noise_dtype=contender.noise_dtype,
    )
    return _Entry(row=row, contender=contender)


def _check(
    entries: Sequence[_Entry], model: nn.Module, batch: Batch, num_examples: int, observe: Observe = _ignore
) -> None:
    part = batch[0][:num_examples], batch[1][:num_examples]
    # Products in reduced precision would hide errors of this size.
    with Precision.FP32.applied():
        truth = true_clipped_sum(model, part)
        best = plain_error(model, part, truth)
        for entry in entries:
            try:
                verdict = judge(entry.contender, model, part, truth)
            except NoClippedSum:
                continue
            except Exception as error:  # noqa: BLE001 -- whatever a contender raises is its result
                entry.fail(error)
                continue
            entry.row = replace(
                entry.row,
                relative_error=verdict.relative_error,
                missing_parameters=verdict.missing_parameters,
                plain_error=best,
            )
            observe(_rows(entries), False)
    _free(part[0].device)


def _start(
    entry: _Entry,
    model: nn.Module,
    parts: Sequence[Batch],
    settings: Settings,
    clock: Clock,
    plan: Plan,
    deadline: float,
) -> None:
    """Set up a contender, take its first step, measure its memory and choose the number of steps in a sample."""
    if entry.row.failure:
        return
    device = parts[0][0].device
    try:
        if time.monotonic() > deadline:
            raise TimeoutError("the time budget was used up before this contender's turn")
        _free(device)
        before = torch.cuda.memory_reserved() if device.type == "cuda" else 0
        with _logged() as remarks:
            running = _set_up(entry, model, parts, settings)
            for _ in range(plan.warm_up):
                running.step(parts)
        entry.row = replace(entry.row, remarks=" ".join(remarks)[:_MAX_REASON])
        if entry.contender.option is not Option.GRAPH:  # the pool of a graph is taken before its first step
            # Two parts need as much memory as any number: from the second part on the sums are allocated.
            entry.row = replace(entry.row, peak_bytes=peak_bytes(lambda: running.step(parts[:2]), device))
        if device.type == "cuda":
            _free(device)
            torch.cuda.reset_peak_memory_stats()
            running.step(parts)
            torch.cuda.synchronize()
            entry.row = replace(entry.row, reserved_bytes=torch.cuda.max_memory_reserved() - before)
        once = clock.seconds(lambda: running.step(parts))
        inner = max(1, math.ceil(plan.min_sample_seconds / max(once, 1e-9)))
        entry.row = replace(entry.row, inner_steps=inner)
    except Exception as error:  # noqa: BLE001 -- whatever a contender raises is its result
        entry.fail(error)
    if entry.row.failure:  # after the handler, whose traceback holds the tensors of the failed step
        _free(device)


def _set_up(entry: _Entry, model: nn.Module, parts: Sequence[Batch], settings: Settings) -> Running:
    device = parts[0][0].device
    start = time.perf_counter()
    running = entry.running = entry.contender.setup(copy.deepcopy(model), settings)
    running.step(parts)
    if device.type == "cuda":
        torch.cuda.synchronize()
    entry.row = replace(entry.row, first_step_seconds=time.perf_counter() - start)
    return running


@contextlib.contextmanager
def _logged() -> Iterator[list[str]]:
    """Collect what privet logs within the block, without repetitions: for instance why nothing is recorded."""
    found: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if (message := record.getMessage()) not in found:
                found.append(message)

    collector, logger = Collector(logging.INFO), logging.getLogger("privet")
    level = logger.level
    logger.addHandler(collector)
    logger.setLevel(logging.INFO)
    try:
        yield found
    finally:
        logger.setLevel(level)
        logger.removeHandler(collector)


def _race(entries: Sequence[_Entry], parts: Sequence[Batch], clock: Clock) -> None:
    for entry in entries:
        if entry.running is not None:
            _round(entry, entry.running, parts, clock)


def _round(entry: _Entry, running: Running, parts: Sequence[Batch], clock: Clock) -> None:
    inner = entry.row.inner_steps

    def work() -> None:
        for _ in range(inner):
            running.step(parts)

    try:
        entry.seconds.append(clock.seconds(work) / inner)
    except Exception as error:  # noqa: BLE001 -- whatever a contender raises is its result
        entry.fail(error)
        entry.seconds.clear()
    if entry.row.failure:
        _free(parts[0][0].device)


def _race_accumulated(
    entries: Sequence[_Entry], parts: Sequence[Batch], clock: Clock, plan: Plan, deadline: float
) -> None:
    """Time longer steps, a few of each in turn; a contender without accumulation gets no such time."""
    able = [(entry, entry.running) for entry in entries if entry.running is not None]
    for place in range(min(plan.rounds, _MIN_ROUNDS)):
        if place and time.monotonic() > deadline:
            return
        for entry, running in list(able):
            try:
                entry.accumulated_seconds.append(clock.seconds(functools.partial(running.step, parts)))
            except Exception:  # noqa: BLE001 -- its ordinary steps are timed already
                entry.accumulated_seconds.clear()
                able.remove((entry, running))


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def peak_bytes(work: Callable[[], None], device: torch.device) -> int:
    """Return the peak of tensor memory during ``work``, above the memory held before it."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    return _peak_bytes_on_processor(work)


def _peak_bytes_on_processor(work: Callable[[], None]) -> int:
    """Sum every allocation and release of torch's allocator; memory that libraries allocate themselves is not included.

    The work is done twice and the second time counts: the profiler reports the release only of memory whose allocation
    it saw, and a step begins by releasing the gradients of the previous step.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        work()
        with record_function(_SECOND_TIME):
            work()
    results = profiler.profiler.kineto_results if profiler.profiler is not None else None
    assert results is not None
    events = list(results.events())
    start = next(event.start_ns() for event in events if event.name() == _SECOND_TIME)
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    before: int = sum(change for when, change in changes if when < start)
    held = peak = before
    for _, change in sorted((item for item in changes if item[0] >= start), key=lambda item: item[0]):
        held += change
        peak = max(peak, held)
    return peak - before
