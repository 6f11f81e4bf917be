"""How operations are launched: one by one, or recorded once and replayed, as a CUDA graph or compiled.

An option of speed, never of the plan: the same sum is formed, only its operations are launched or generated in another
way. Whatever cannot be recorded runs in the ordinary way, and the logger ``privet`` says why.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from privet import checks
from privet.gradients.engines.engine import ReplayableEngine, RunningEngine
from privet.mechanism.clipping import ClippingRule
from privet.mechanism.sums import ClippedSum
from privet.training.launch.launcher import Replay
from privet.training.launch.recording import Compile, Graph, LossFunction, Outcome, Recorder

_log = logging.getLogger("privet")


class Launcher(Protocol):
    """Adds physical batches to a step's sum in its own way, or leaves them to the ordinary one.

    Attributes:
        replays: Whether batches may be recorded and replayed; ``add`` is not called otherwise.
        uses_graphs: Whether CUDA graphs are wanted and can be had.
    """

    @property
    def replays(self) -> bool: ...
    @property
    def uses_graphs(self) -> bool: ...

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
    """A choice of how steps are launched: a performance knob, never part of a plan.

    Attributes:
        must_replay: Whether the user asks for recordings, so that a plan whose units change from step to step is
            refused.
    """

    @property
    def must_replay(self) -> bool: ...

    def start(self, engine: RunningEngine, device: torch.device) -> Launcher:
        """Bind to a running engine."""
        ...


@dataclass(frozen=True, kw_only=True)
class Eager:
    """Every operation is launched by itself."""

    must_replay: bool = field(default=False, init=False)

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
class _Recorded:
    """A launch that records programs and replays them.

    Attributes:
        warm_up: How often a program is seen before it is recorded.
        max_recordings: How many recordings a session may make before it gives up: each holds memory of its own.
    """

    warm_up: int = 2
    max_recordings: int = 8
    must_replay: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        checks.fields(self, checks.count, "warm_up", "max_recordings")


@dataclass(frozen=True, kw_only=True)
class Automatic(_Recorded):
    """Whatever is fastest: CUDA graphs on a device wherever they can be recorded, one operation at a time elsewhere.

    Only loops that use ``step.accumulate`` are recorded. Before every replay the loss function runs dry: its Python
    runs, and each call of torch is compared with the recorded one instead of being launched. So counters, schedules,
    annealed weights and random choices have the effect that they have without a recording: a program that changes is
    run as it is, and one that stays is recorded anew. A smaller batch is filled up with copies of its first example,
    which add exactly zero.
    """

    must_replay: bool = field(default=False, init=False)

    def start(self, engine: RunningEngine, device: torch.device) -> Launcher:
        """Bind; without a device nothing is recorded."""
        can_record = device.type == "cuda" and _can_record_graphs(device, logging.INFO)
        return _replay(engine, device, Graph(), self, logging.INFO) if can_record else EagerLauncher()


@dataclass(frozen=True, kw_only=True)
class CudaGraph(_Recorded):
    """Record each program as a CUDA graph, as :class:`Automatic` does, and warn where that cannot be done."""

    def start(self, engine: RunningEngine, device: torch.device) -> Launcher:
        """Bind, or log why not and stay eager."""
        can_record = _can_record_graphs(device, logging.WARNING)
        return _replay(engine, device, Graph(), self, logging.WARNING) if can_record else EagerLauncher()


@dataclass(frozen=True, kw_only=True)
class Compiled(_Recorded):
    """Compile each program as a whole with torch's compiler (``step.accumulate`` only).

    Padding and Python code are treated as :class:`Automatic` does. Compiling takes from seconds to minutes, once.

    Attributes:
        graph: Also replay the compiled program as a CUDA graph.
    """

    graph: bool = False
    max_recordings: int = 4

    def start(self, engine: RunningEngine, device: torch.device) -> Launcher:
        """Bind, or log why not and stay eager."""
        recorder = Compile(graph=self.graph and _can_record_graphs(device, logging.WARNING))
        return _replay(engine, device, recorder, self, logging.WARNING)


def _can_record_graphs(device: torch.device, level: int) -> bool:
    """Whether the model is where torch records graphs; if not, say so."""
    if device.type != "cuda":
        _log.log(level, "CUDA graphs are not used: the model is on %s.", device)
        return False
    current = torch.cuda.current_device()
    if device.index not in (None, current):
        _log.log(
            level,
            "CUDA graphs are not used: the model is on %s, and torch's current device is cuda:%d. Call "
            "torch.cuda.set_device(%r) first.", device, current, str(device),
        )  # fmt: skip
        return False
    return True


def _replay(
    engine: RunningEngine,
    device: torch.device,
    recorder: Recorder,
    choice: Automatic | CudaGraph | Compiled,
    level: int,
) -> Launcher:
    if not isinstance(engine, ReplayableEngine):
        _log.log(level, "Nothing is recorded: %s cannot be replayed.", type(engine).__name__)
        return EagerLauncher()
    if recorder.makes_graphs:
        engine.expect_replays()
    return Replay(
        engine=engine, recorder=recorder, device=device,
        warm_up=choice.warm_up, max_recordings=choice.max_recordings, level=level,
    )  # fmt: skip
