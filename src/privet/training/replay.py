"""Replaying a physical batch as one CUDA graph: for models so small that launching their operations takes longest.

An option of speed, never of the plan: the same operations run on the same numbers, only their launches are recorded
once and repeated. Whatever cannot be recorded runs in the ordinary way, and the logger ``privet`` says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from privet import checks
from privet.gradients.capture import mark_batch
from privet.gradients.engine import ReplayableEngine, RunningEngine
from privet.mechanism.clipping import ClippingRule
from privet.mechanism.sums import ClippedSum

LossFunction = Callable[..., Tensor]
_log = logging.getLogger("privet")


class Outcome(NamedTuple):
    """What a physical batch left behind besides its sum. Private."""

    losses: Tensor
    norms: Tensor


class Launcher(Protocol):
    """Adds physical batches to a step's sum in its own way, or leaves them to the ordinary one."""

    def add(
        self, batch: Any, size: int, limit: int, loss_function: LossFunction, rule: ClippingRule, into: ClippedSum
    ) -> Outcome | None:
        """Add a batch of ``size`` examples, at most ``limit``, to ``into``; None if it must be done in the open.

        Guarantee:
            As :meth:`privet.gradients.engine.RunningEngine.add_clipped`. A batch that is refused leaves no trace.
        """
        ...


class Launch(Protocol):
    """A choice of how steps are launched: a performance knob, never part of a plan."""

    def start(self, engine: RunningEngine, device: torch.device) -> Launcher:
        """Bind to a running engine."""
        ...


@dataclass(frozen=True, kw_only=True)
class Eager:
    """Every operation is launched by itself."""

    def start(self, engine: RunningEngine, device: torch.device) -> Openly:
        """There is nothing to bind."""
        return Openly()


@dataclass(frozen=True, kw_only=True)
class Openly:
    """:class:`Eager`, running."""

    def add(
        self, batch: Any, size: int, limit: int, loss_function: LossFunction, rule: ClippingRule, into: ClippedSum
    ) -> None:
        """Leave every batch to the ordinary way."""
        return


@dataclass(frozen=True, kw_only=True)
class CudaGraph:
    """Record each kind of physical batch once and replay it (``step.accumulate`` only).

    A smaller batch is filled up with copies of its first example, which add exactly zero. What Python does in the loss
    function (branches, counters, the values of plain numbers) is frozen as it was when recorded, so hand
    ``step.accumulate`` one function that does the same at every step; another function is recorded anew.

    Attributes:
        warm_up: Physical batches done in the open before one is recorded, so that every choice has been made.
        max_recordings: How many recordings a session may make before it gives up: each holds memory of its own.
    """

    warm_up: int = 2
    max_recordings: int = 8

    def __post_init__(self) -> None:
        """Refuse counts below one: the first batch of a program is its trial and cannot be recorded."""
        for name in ("warm_up", "max_recordings"):
            object.__setattr__(self, name, checks.count(name, getattr(self, name)))

    def start(self, engine: RunningEngine, device: torch.device) -> Launcher:
        """Bind, or say why not and stay with the ordinary way."""
        if device.type != "cuda":
            _log.warning("CUDA graphs are not used: the model is on %s.", device)
            return Openly()
        if not isinstance(engine, ReplayableEngine):
            _log.warning("CUDA graphs are not used: %s cannot be replayed.", type(engine).__name__)
            return Openly()
        return GraphReplay(engine=engine, choice=self)


@dataclass(kw_only=True, eq=False)
class _Recording:
    """A graph, the memory its inputs are read from and its outputs are written to."""

    graph: torch.cuda.CUDAGraph
    leaves: Sequence[Tensor]
    present: Tensor
    outcome: Outcome
    size: int
    loss_function: LossFunction  # held, so that its identity cannot pass to another function

    def replay(self, leaves: Sequence[Tensor], size: int) -> Outcome:
        for mine, given in zip(self.leaves, leaves, strict=True):
            mine[:size].copy_(given)
            if size < self.size:
                mine[size:].copy_(given[:1].expand(self.size - size, *given.shape[1:]))
        if size != self.size or not self._was_full:
            self.present[:size] = True
            self.present[size:] = False
        self._was_full = size == self.size
        self.graph.replay()
        return Outcome(*(tensor[:size] for tensor in self.outcome))

    _was_full: bool = False


@dataclass(kw_only=True, eq=False)
class GraphReplay:
    """:class:`CudaGraph` bound to an engine."""

    engine: ReplayableEngine
    choice: CudaGraph
    _recordings: dict[Hashable, _Recording] = field(default_factory=dict)
    _seen: dict[Hashable, int] = field(default_factory=dict)
    _has_given_up: bool = False

    def add(
        self, batch: Any, size: int, limit: int, loss_function: LossFunction, rule: ClippingRule, into: ClippedSum
    ) -> Outcome | None:
        """Replay the batch if it was recorded; record it once it has been seen often enough."""
        leaves, spec = pytree.tree_flatten(batch)
        if self._has_given_up or not all(isinstance(leaf, Tensor) and leaf.shape[:1] == (size,) for leaf in leaves):
            return None
        shapes = tuple((leaf.shape[1:], leaf.dtype) for leaf in leaves)
        key = (id(loss_function), str(spec), shapes, limit, rule, into.flat.data_ptr())
        recording = self._recordings.get(key)
        if recording is None:
            if not self._is_due(key, into):
                return None
            recording = self._record(leaves, spec, size, limit, loss_function, rule, into)
            if recording is None:
                return None
            self._recordings[key] = recording
        return recording.replay(leaves, size)

    def _is_due(self, key: Hashable, into: ClippedSum) -> bool:
        self._seen[key] = self._seen.get(key, 0) + 1
        if into.keep is not None:
            return self._give_up("the plan's mask changes from step to step")
        if self._seen[key] <= self.choice.warm_up:
            if len(self._seen) > 4 * self.choice.max_recordings:
                return self._give_up("the loss function or the clipping rule changes from step to step")
            return False
        if len(self._recordings) >= self.choice.max_recordings:
            return self._give_up(f"there are already {len(self._recordings)} recordings")
        return True

    def _give_up(self, reason: str) -> bool:
        _log.warning("CUDA graphs are not used from here on: %s.", reason)
        self._has_given_up = True
        return False

    def _record(
        self,
        given: Sequence[Tensor],
        spec: pytree.TreeSpec,
        size: int,
        limit: int,
        loss_function: LossFunction,
        rule: ClippingRule,
        into: ClippedSum,
    ) -> _Recording | None:
        """Record, or give up and say why."""
        leaves = [leaf[:1].expand(limit, *leaf.shape[1:]).contiguous() for leaf in given]
        present = torch.ones(limit, dtype=torch.bool, device=into.flat.device)

        def body(total: ClippedSum) -> Outcome:
            batch = pytree.tree_unflatten(leaves, spec)
            mark_batch(leaves)
            self.engine.begin(limit)
            try:
                losses = loss_function(*(batch if isinstance(batch, tuple | list) else (batch,)))
                norms = self.engine.add_present(losses, rule, total, present)
            finally:
                self.engine.abandon()
            return Outcome(losses.detach(), norms)

        try:
            # the libraries set themselves up for a stream at their first call, which must not be recorded
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                body(ClippedSum(flat=torch.zeros_like(into.flat), layout=into.layout, sensitivity=into.sensitivity))
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                outcome = body(into)
        except Exception as error:  # noqa: BLE001 -- whatever a model does that cannot be recorded, it still trains
            torch.cuda.synchronize()
            self._give_up(f"the program cannot be recorded ({type(error).__name__}: {error})")
            return None
        return _Recording(
            graph=graph, leaves=leaves, present=present, outcome=outcome, size=limit, loss_function=loss_function
        )
