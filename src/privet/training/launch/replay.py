"""Recording what is done with a physical batch once, and replaying it: as a CUDA graph, or compiled.

An option of speed, never of the plan: the same sum is formed, only its operations are launched or generated in another
way. Whatever cannot be recorded runs in the ordinary way, and the logger ``privet`` says why.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from privet import checks
from privet.gradients.capture.recorded import mark_batch
from privet.gradients.engines.engine import NotTried, ReplayableEngine, RunningEngine
from privet.isolation.parts import Structure, flattened
from privet.mechanism.clipping import ClippingRule
from privet.mechanism.layout import Layout
from privet.mechanism.sums import ClippedSum
from privet.training.batching import with_gradients
from privet.training.launch.recording import Compile, Graph, LossFunction, Outcome, Program, Recorder, Run, zeros_like

_log = logging.getLogger("privet")

# How often a program that has not passed its trial for good may be tried in vain.
_PATIENCE = 8


class NotFinite(RuntimeError):
    """A gradient that is not finite got into a sum; the step must be summed again, operation by operation."""


class Launcher(Protocol):
    """Adds physical batches to a step's sum in its own way, or leaves them to the ordinary one."""

    @property
    def replays(self) -> bool:
        """Whether batches may be recorded and replayed; ``add`` is not called otherwise."""
        ...

    @property
    def uses_graphs(self) -> bool:
        """Whether CUDA graphs are wanted and can be had."""
        ...

    def add(
        self, batch: Any, size: int, limit: int, loss_function: LossFunction, rule: ClippingRule, into: ClippedSum
    ) -> Outcome | None:
        """Add a batch of ``size`` examples, at most ``limit``, to ``into``; None if it must run operation by operation.

        Guarantee:
            As :meth:`privet.gradients.engines.engine.RunningEngine.add_clipped`. A refused batch leaves no trace.

        Raises:
            NotFinite: if ``into`` must be thrown away.
        """
        ...

    def refuse_manual_loop(self) -> None:
        """Warn that the user's loop runs over ``step.microbatches()``, where nothing can be recorded."""
        ...


class Launch(Protocol):
    """A choice of how steps are launched: a performance knob, never part of a plan."""

    @property
    def replays(self) -> bool:
        """Whether steps may be recorded and replayed, so that their units must not change from step to step."""
        ...

    def start(self, engine: RunningEngine, device: torch.device) -> Launcher:
        """Bind to a running engine."""
        ...


@dataclass(frozen=True, kw_only=True)
class Eager:
    """Every operation is launched by itself."""

    @property
    def replays(self) -> bool:
        """Nothing is recorded."""
        return False

    def start(self, engine: RunningEngine, device: torch.device) -> EagerLauncher:
        """There is nothing to bind."""
        return EagerLauncher()


@dataclass(frozen=True, kw_only=True)
class EagerLauncher:
    """:class:`Eager`, running."""

    replays: bool = False
    uses_graphs: bool = False

    def add(
        self, batch: Any, size: int, limit: int, loss_function: LossFunction, rule: ClippingRule, into: ClippedSum
    ) -> None:
        """Leave every batch to the engine."""
        return

    def refuse_manual_loop(self) -> None:
        """There is nothing to warn of."""


@dataclass(frozen=True, kw_only=True)
class CudaGraph:
    """Record each kind of physical batch as a CUDA graph (``step.accumulate`` only): for small models.

    A smaller batch is filled up with copies of its first example, which add exactly zero. What Python does in the loss
    function (branches, counters, the values of plain numbers) is frozen as it was when recorded, so hand
    ``step.accumulate`` one function that does the same at every step; another function is recorded anew.

    Attributes:
        warm_up: Physical batches that run eagerly before one is recorded, so that every choice has been made.
        max_recordings: How many recordings a session may make before it gives up: each holds memory of its own.
    """

    warm_up: int = 2
    max_recordings: int = 8

    def __post_init__(self) -> None:
        """Refuse counts below one: the first batch of a program is its trial and cannot be recorded."""
        _check_counts(self)

    @property
    def replays(self) -> bool:
        """Batches are recorded."""
        return True

    def start(self, engine: RunningEngine, device: torch.device) -> Launcher:
        """Bind, or log why not and stay eager."""
        return _replay(engine, Graph(), self) if _can_record_graphs(device) else EagerLauncher()


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """Compile each kind of physical batch as a whole with torch's compiler (``step.accumulate`` only).

    Padding and Python code are treated as :class:`CudaGraph` does. Compiling takes from seconds to minutes, once.

    Attributes:
        graph: Also replay the compiled program as a CUDA graph.
        warm_up: Physical batches that run eagerly before one is recorded.
        max_recordings: How many recordings a session may make before it gives up.
    """

    graph: bool = False
    warm_up: int = 2
    max_recordings: int = 4

    def __post_init__(self) -> None:
        """Refuse counts below one."""
        _check_counts(self)

    @property
    def replays(self) -> bool:
        """Batches are recorded."""
        return True

    def start(self, engine: RunningEngine, device: torch.device) -> Launcher:
        """Bind, or log why not and stay eager."""
        return _replay(engine, Compile(graph=self.graph and _can_record_graphs(device)), self)


def _can_record_graphs(device: torch.device) -> bool:
    """Whether the model is where torch records graphs; if not, say so."""
    if device.type != "cuda":
        _log.warning("CUDA graphs are not used: the model is on %s.", device)
        return False
    current = torch.cuda.current_device()
    if device.index not in (None, current):
        _log.warning(
            "CUDA graphs are not used: the model is on %s, and torch's current device is cuda:%d. Call "
            "torch.cuda.set_device(%r) first.", device, current, str(device),
        )  # fmt: skip
        return False
    return True


def fastest_for(device: torch.device) -> Launch:
    """Return the launch that suits loops whose loss function is the same at every step, as the library's own are."""
    return CudaGraph() if device.type == "cuda" else Eager()


def _identity(function: LossFunction) -> Hashable:
    """Name a function; a method is a new object whenever it is asked for, but its owner and its code are not."""
    owner = getattr(function, "__self__", None)
    return id(function) if owner is None else (id(owner), function.__func__)  # type: ignore[attr-defined]


def _check_counts(choice: CudaGraph | Compiled) -> None:
    for name in ("warm_up", "max_recordings"):
        object.__setattr__(choice, name, checks.count(name, getattr(choice, name)))


def _replay(engine: RunningEngine, recorder: Recorder, choice: CudaGraph | Compiled) -> Launcher:
    if not isinstance(engine, ReplayableEngine):
        _log.warning("Nothing is recorded: %s cannot be replayed.", type(engine).__name__)
        return EagerLauncher()
    if recorder.makes_graphs:
        engine.expect_replays()
    return Replay(engine=engine, recorder=recorder, warm_up=choice.warm_up, max_recordings=choice.max_recordings)


@dataclass(kw_only=True, eq=False)
class _Recording:
    """A recorded program with the memory its inputs are read from and its outputs are written to."""

    run: Run
    leaves: Sequence[Tensor]
    present: Tensor
    needs_check: Callable[[], bool]
    keep: Tensor | None
    _was_full: bool = True
    _mask: Tensor | None = None

    def replay(self, leaves: Sequence[Tensor], size: int, keep: Tensor | None) -> Outcome:
        """Copy mask and examples in, fill up with copies of the first one, and run."""
        limit = len(self.present)
        if self.keep is not None and keep is not None and keep is not self._mask:
            self.keep.copy_(keep)
            self._mask = keep  # held, so that no other mask can take its place in memory and pass for it
        for mine, given in zip(self.leaves, leaves, strict=True):
            if size == limit:
                mine.copy_(given)
                continue
            mine[:size].copy_(given)
            mine[size:].copy_(given[:1].expand(limit - size, *given.shape[1:]))
        if size < limit or not self._was_full:
            self.present[:size].fill_(True)
            self.present[size:].fill_(False)
        self._was_full = size == limit
        outcome = self.run()
        if size < limit:
            outcome = Outcome(*(tensor[:size] for tensor in outcome))
        if self.needs_check() and not math.isfinite(float(outcome.norms.sum())):
            raise NotFinite
        return outcome


@dataclass(kw_only=True, eq=False)
class Replay:
    """A choice of recorder, bound to an engine."""

    engine: ReplayableEngine
    recorder: Recorder
    warm_up: int
    max_recordings: int
    _recordings: dict[Hashable, _Recording] = field(default_factory=dict)
    _seen: dict[Hashable, int] = field(default_factory=dict)
    _held: list[LossFunction] = field(default_factory=list)
    _has_given_up: bool = False
    _num_not_tried: int = 0

    @property
    def replays(self) -> bool:
        """Batches are recorded."""
        return True

    @property
    def uses_graphs(self) -> bool:
        """Whether the recorder makes graphs."""
        return self.recorder.makes_graphs

    def add(
        self, batch: Any, size: int, limit: int, loss_function: LossFunction, rule: ClippingRule, into: ClippedSum
    ) -> Outcome | None:
        """Replay the batch if it was recorded; record it once it has been seen often enough."""
        leaves, spec = flattened(batch)
        if self._has_given_up or not all(isinstance(leaf, Tensor) and leaf.shape[:1] == (size,) for leaf in leaves):
            return None
        shapes = tuple((leaf.shape[1:], leaf.dtype) for leaf in leaves)
        # the rule's numbers are frozen in a recording, so another rule (a learned threshold, a schedule) needs its own
        # a mask's numbers are copied in, so one recording serves all masks of coordinates
        key = (_identity(loss_function), spec, shapes, limit, rule, _frozen(into))
        recording = self._recordings.get(key)
        if recording is None:
            if not self._is_due(key, loss_function, into):
                return None
            made = self._record(leaves, size, spec, limit, loss_function, rule, into)
            if made is None:
                return None
            self._recordings[key], outcome = made
            return outcome
        return recording.replay(leaves, size, into.keep)

    def refuse_manual_loop(self) -> None:
        """Log once that only ``step.accumulate`` records."""
        if not self._has_given_up:
            self._give_up("only step.accumulate(loss_function) can record, not a loop over step.microbatches()")

    def _is_due(self, key: Hashable, loss_function: LossFunction, into: ClippedSum) -> bool:
        self._seen[key] = self._seen.get(key, 0) + 1
        self._held.append(loss_function)  # its identity is in the key, and must not pass to another function
        if into.kept is not None and into.kept.rows is not None:
            return self._give_up(
                "the plan's mask leaves out whole rows, whose number and place are part of a recording"
            )
        if len(self._recordings) >= self.max_recordings:
            return self._give_up(f"there are {len(self._recordings)} recordings already")
        if self._seen[key] <= self.warm_up:
            if len(self._seen) > 4 * self.max_recordings:
                return self._give_up("the loss function or the clipping rule changes from step to step")
            return False
        return True

    def _give_up(self, reason: str) -> bool:
        _log.warning("Nothing more is recorded; batches run in the ordinary way: %s.", reason)
        self._has_given_up = True
        return False

    def _record(
        self,
        given: Sequence[Tensor],
        size: int,
        spec: Structure,
        limit: int,
        loss_function: LossFunction,
        rule: ClippingRule,
        into: ClippedSum,
    ) -> tuple[_Recording, Outcome] | None:
        """Record and add the given batch, or give up and say why."""
        leaves = [leaf[:1].expand(limit, *leaf.shape[1:]).contiguous() for leaf in given]
        present = torch.ones(limit, dtype=torch.bool, device=into.flat.device)
        keep = None if into.keep is None else into.keep.clone()
        needs_check = False

        def losses_of(leaves: Sequence[Tensor], inputs: Sequence[Tensor] = (), *, may_trace: bool = True) -> Tensor:
            batch = spec.filled(leaves)
            mark_batch(leaves)
            self.engine.begin(limit, inputs, may_trace=may_trace)
            return loss_function(*(batch if isinstance(batch, tuple | list) else (batch,)))

        def total(places: Sequence[Tensor]) -> ClippedSum:
            return replace(into, keep=keep, kept=None, squares=None, places=places)

        def program(places: Sequence[Tensor], present: Tensor, *leaves: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal needs_check
            try:
                losses = losses_of(leaves, may_trace=False)  # nobody looks into a recording
                norms, needs_check = self.engine.add_present(losses, rule, total(places), present)
            finally:
                self.engine.abandon()
            return losses.detach(), norms

        def put_on_trial() -> None:
            # batches so far were smaller, and may have told axes apart by their size
            try:
                filled = [torch.cat([leaf, leaf[:1].expand(limit - size, *leaf.shape[1:])]) for leaf in given]
                losses = losses_of(*with_gradients(filled, limit))
                self.engine.add_clipped(losses, rule, total(zeros_like(places)))
            finally:
                self.engine.abandon()

        before, places = into.flat.clone(), [into.part(position) for position in range(len(into.layout.shapes))]
        try:
            put_on_trial()
            run = self.recorder.record(program, places, present, leaves, self.engine)
            recording = _Recording(run=run, leaves=leaves, present=present, needs_check=lambda: needs_check, keep=keep)
            outcome = recording.replay(given, size, into.keep)
            _check(into.flat - before, into.layout, program, present, leaves)
        except NotFinite:
            into.flat.copy_(before)  # not the program's fault: another batch will be recorded
            return None
        except NotTried:
            into.flat.copy_(before)
            self._num_not_tried += 1
            if self._num_not_tried >= _PATIENCE:
                self._give_up(
                    "the program never passes a trial that holds for other batches too, because it moves examples "
                    "about by their data, or because its gradients are zero"
                )
            return None
        except Exception as error:  # noqa: BLE001 -- whatever a model does that cannot be recorded, it still trains
            into.flat.copy_(before)
            reason = str(error).strip().splitlines() or [""]
            self._give_up(f"the program cannot be recorded ({type(error).__name__}: {reason[0]})")
            return None
        return recording, outcome


def _frozen(into: ClippedSum) -> tuple[Hashable, ...]:
    """Return what a recording freezes of the sum it adds to: memory, bound, units, and whether there is a mask."""
    return into.flat.data_ptr(), into.sensitivity, into.is_held, into.frame, into.keep is None


def _check(found: Tensor, layout: Layout, program: Program, present: Tensor, leaves: Sequence[Tensor]) -> None:
    """Compare a recording with the program itself, on other examples than it was recorded with.

    A recorder that missed an operation would have frozen its result. A program that draws random numbers gives two
    answers and cannot be compared.
    """
    first, second = torch.zeros_like(found), torch.zeros_like(found)
    for flat in (first, second):
        places = [flat[where].view(shape) for where, shape in zip(layout.slices, layout.shapes, strict=True)]
        program(places, present, *leaves)
    allowed = 2e-2 * torch.linalg.vector_norm(first)
    is_random = torch.linalg.vector_norm(first - second) > allowed
    if not is_random and not torch.linalg.vector_norm(found - first) <= allowed:
        raise RuntimeError("the recording gives another sum than the program")
