"""Two ways to record a program over fixed memory: as a CUDA graph, and through torch's compiler."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from privet.gradients.engines.engine import ReplayableEngine

LossFunction = Callable[..., Tensor]

# From so many elements on one tensor keeps a device busy.
_LARGE = 1 << 16


class Outcome(NamedTuple):
    """Losses and norms of a physical batch that was added. Private."""

    losses: Tensor
    norms: Tensor


Tensors = Sequence[Tensor]
Program = Callable[..., tuple[Tensor, Tensor]]
"""``program(places, present, *leaves)`` adds each parameter's clipped sum to its place; it returns losses and norms."""

Run = Callable[[], Outcome]
"""Runs the program on the recorded memory."""


class Recorder(Protocol):
    """A way to record a program."""

    @property
    def makes_graphs(self) -> bool:
        """Whether recordings are CUDA graphs."""
        ...

    def record(
        self, program: Program, places: Tensors, present: Tensor, leaves: Tensors, engine: ReplayableEngine
    ) -> Run:
        """Return a function that runs the program on this memory; ``places`` are unchanged until then."""
        ...


@dataclass(frozen=True, kw_only=True)
class Graph:
    """One launch for all operations."""

    makes_graphs: bool = True

    def record(
        self, program: Program, places: Tensors, present: Tensor, leaves: Tensors, engine: ReplayableEngine
    ) -> Run:
        """Capture the program on the device's stream.

        Guarantee:
            Random operations inside (dropout) draw anew at every replay: torch registers its own generator. Noise is
            never drawn here.
        """
        # libraries set themselves up for a stream, and strategies are chosen, at a first call that is not captured
        torch.cuda.empty_cache()  # memory that one stream has let go of is of no use to another
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            program(zeros_like(places), present, *leaves)
        torch.cuda.current_stream().wait_stream(aside)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with _generator_kept(present.device), torch.cuda.graph(graph):
            outcome = Outcome(*program(places, present, *leaves))

        def run() -> Outcome:
            graph.replay()
            return outcome

        return run


@contextmanager
def _generator_kept(device: torch.device) -> Iterator[None]:
    """Put the device's generator back as it was if the block fails.

    A capture that fails leaves torch's generator in the state that it has during captures, and every later draw of the
    process would fail.
    """
    generator = torch.cuda.default_generators[device.index]
    before = generator.clone_state()
    try:
        yield
    except BaseException:
        generator.graphsafe_set_state(before)
        raise


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
        self, program: Program, places: Tensors, present: Tensor, leaves: Tensors, engine: ReplayableEngine
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
        _let_products_be_sums(traced.graph)
        traced.recompile()
        compiled = torch.compile(traced, fullgraph=True, dynamic=False)

        def compute(places: Sequence[Tensor], present: Tensor, *leaves: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():  # the backward pass is part of the trace
                losses, norms, *sums = compiled(present, *leaves)
                _add(places, sums)
            return losses, norms

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's remarks about itself
            compute(zeros_like(places), present, *leaves)
        if self.graph:
            return Graph().record(compute, places, present, leaves, engine)
        return lambda: Outcome(*compute(places, present, *leaves))


def _let_products_be_sums(graph: fx.Graph) -> None:
    """Put products in the place of zeros that nothing but the product is added to: adding would copy the zeros first.

    ``z = zeros_like(place); z.view(...).addmm_(a, b)`` becomes ``z = (a @ b).view(...)``.
    """
    aten = torch.ops.aten
    for node in graph.find_nodes(op="call_function", target=aten.addmm_.default):
        matrix, left, right = node.args
        zeros = matrix.args[0] if matrix.target is aten.view.default else matrix
        uses = {*zeros.users, *matrix.users, *(node.users if matrix is zeros else ())} - {matrix, node}
        is_alone = all(user.op == "output" for user in uses) and (matrix is zeros or not node.users)
        if zeros.target is not aten.zeros_like.default or not is_alone or node.kwargs:
            continue
        with graph.inserting_before(node):
            product = graph.call_function(aten.mm.default, (left, right))
            shape = list(zeros.meta["tensor_meta"].shape)
            total = graph.call_function(aten.view.default, (product, shape))
        for replaced in (node, zeros):
            replaced.replace_all_uses_with(total, delete_user_cb=lambda user: user.op == "output")
        graph.erase_node(node)
    graph.eliminate_dead_code()


def _add(places: Sequence[Tensor], sums: Sequence[Tensor]) -> None:
    """Add sums to their places: large ones by themselves, which fills a device, small ones in few launches."""
    pairs = list(zip(places, sums, strict=True))
    small = [pair for pair in pairs if pair[0].numel() < _LARGE]
    for place, total in pairs:
        if place.numel() >= _LARGE:
            place.add_(total)
    if small:
        torch._foreach_add_([place for place, _ in small], [total for _, total in small])


def zeros_like(places: Sequence[Tensor]) -> list[Tensor]:
    """Return as many tensors of zeros."""
    return [torch.zeros_like(place, memory_format=torch.contiguous_format) for place in places]
