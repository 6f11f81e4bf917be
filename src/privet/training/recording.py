"""Two ways to record a program over fixed memory: as a CUDA graph, and through torch's compiler."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from privet.gradients.engine import ReplayableEngine

LossFunction = Callable[..., Tensor]


class Outcome(NamedTuple):
    """What a physical batch left behind besides its sum. Private."""

    losses: Tensor
    norms: Tensor


Program = Callable[..., tuple[Tensor, Tensor]]
"""``program(places, present, *leaves)`` adds each parameter's clipped sum to its place; it returns losses and norms."""

Run = Callable[[], Outcome]
"""Does on the recorded memory what the program did."""


class Recorder(Protocol):
    """A way to record a program."""

    @property
    def makes_graphs(self) -> bool:
        """Whether recordings are CUDA graphs."""
        ...

    def record(
        self,
        program: Program,
        places: Sequence[Tensor],
        present: Tensor,
        leaves: Sequence[Tensor],
        engine: ReplayableEngine,
    ) -> Run:
        """Return what runs the program on this memory; ``places`` are unchanged until then."""
        ...


@dataclass(frozen=True, kw_only=True)
class Graph:
    """One launch for all operations."""

    makes_graphs: bool = True

    def record(
        self,
        program: Program,
        places: Sequence[Tensor],
        present: Tensor,
        leaves: Sequence[Tensor],
        engine: ReplayableEngine,
    ) -> Run:
        """Capture the program on the device's stream.

        Guarantee:
            Random operations inside (dropout) draw anew at every replay: torch registers its own generator. Noise is
            never drawn here.
        """
        # libraries set themselves up for a stream, and strategies are chosen, at a first call that is not captured
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            program(zeros_like(places), present, *leaves)
        torch.cuda.current_stream().wait_stream(aside)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outcome = Outcome(*program(places, present, *leaves))

        def run() -> Outcome:
            graph.replay()
            return outcome

        return run


@dataclass(frozen=True, kw_only=True)
class Compile:
    """Operations fused by torch's compiler.

    Attributes:
        graph: Capture the compiled program in a CUDA graph as well.
    """

    graph: bool

    @property
    def makes_graphs(self) -> bool:
        """Whether the compiled program is captured as well."""
        return self.graph

    def record(
        self,
        program: Program,
        places: Sequence[Tensor],
        present: Tensor,
        leaves: Sequence[Tensor],
        engine: ReplayableEngine,
    ) -> Run:
        """Trace forward, backward, norms and sums into one graph of tensor operations and compile it.

        The trace holds the model's parameters by reference, so updates of the weights are seen. It returns the sums
        instead of adding them to their places: these are parts of one vector, and for each of them the compiler would
        copy the whole vector, because its programs change nothing in place.
        """

        def returning(present: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
            sums = zeros_like(places)
            losses, norms = program(sums, present, *leaves)
            return losses, norms, *sums

        with engine.traceable():
            program(zeros_like(places), present, *leaves)  # every choice of strategy is made before the trace
            traced = make_fx(returning)(present, *leaves)
        traced.graph.eliminate_dead_code()
        traced.recompile()
        compiled = torch.compile(traced, fullgraph=True, dynamic=False)

        def compute(places: Sequence[Tensor], present: Tensor, *leaves: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():  # the backward pass is part of the trace
                losses, norms, *sums = compiled(present, *leaves)
                torch._foreach_add_(list(places), sums)
            return losses, norms

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's remarks about itself
            compute(zeros_like(places), present, *leaves)
        if self.graph:
            return Graph().record(compute, places, present, leaves, engine)
        return lambda: Outcome(*compute(places, present, *leaves))


def zeros_like(places: Sequence[Tensor]) -> list[Tensor]:
    """Return as many tensors of zeros."""
    return [torch.zeros_like(place, memory_format=torch.contiguous_format) for place in places]
