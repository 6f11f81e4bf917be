"""The recording of a forward pass: every use of a parameter, with its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.hooks import RemovableHandle

from privet.gradients.capture.in_place import Function
from privet.gradients.capture.views import Undo
from privet.isolation.follow import Follower

Kind = tuple[torch.Size, torch.dtype, torch.device]


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A tracked tensor: a parameter, or something computed from parameters alone."""

    tensor: Tensor
    parameters: frozenset[int]  # positions in the layout
    derived: bool
    made_from: Source | None = None  # for a view or copy of a single source
    undo: Undo | None = None  # turns gradients of this tensor into those of that source
    version: int = 0  # of the tensor when it was made; a later one was changed in place

    @property
    def intact(self) -> Source:
        """The source, without its link to the tensor it was made from if a tensor on that path was changed since."""
        link = self.made_from
        while link is not None and link.derived:
            if link.tensor._version != link.version:
                return replace(self, made_from=None, undo=None)
            link = link.made_from
        return self


def sources_of(parameters: Sequence[nn.Parameter]) -> dict[int, Source]:
    """Return parameters as sources, by id; their positions are those in the layout."""
    return {
        id(parameter): Source(tensor=parameter, parameters=frozenset([position]), derived=False)
        for position, parameter in enumerate(parameters)
    }


@dataclass(kw_only=True, eq=False)
class Use:
    """One operation that consumed tracked tensors together with private examples."""

    function: Function
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    sources: Sequence[Source]
    output_shape: torch.Size
    output_dtype: torch.dtype
    edge: GradientEdge | None
    is_root: bool = False  # whether a backward pass may stop here: no other use lies behind it
    out_grad: Tensor | None = None
    receive: Callable[[Use], None] | None = None
    versions: Sequence[tuple[Tensor, int]] = ()
    output_index: int = 0  # which of the operation's outputs, where it has several
    statistics: tuple[Tensor, Tensor] | None = None  # mean and inverse deviation, where a normalisation hands them out
    written: Tensor | None = None  # the argument that the operation changed in place
    node_before: Any = None  # the node of that argument before
    handle: RemovableHandle | None = None
    is_heard: bool = False  # whether the last backward pass reached it
    number: int = -1  # among the uses of its forward pass

    @property
    def positions(self) -> frozenset[int]:
        """The places of its parameters in the layout."""
        return frozenset().union(*(source.parameters for source in self.sources))

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", str(self.function))

    def listen(self, output: Tensor) -> None:
        """Receive the gradient of the output when a backward pass computes it."""
        self.handle = output.register_hook(self._hear)  # type: ignore[no-untyped-call]

    def _hear(self, gradient: Tensor | None) -> None:
        self.out_grad, self.is_heard = gradient, True
        if self.receive is not None and gradient is not None:
            self.receive(self)

    def release(self) -> None:
        """Release every tensor."""
        self.args, self.kwargs, self.sources, self.versions = (), {}, (), ()
        self.out_grad = self.receive = self.edge = self.statistics = None
        self.written = self.node_before = self.handle = None


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class KnownUse:
    """The use of parameters that a call of a known program makes: as in the batch in which the program was new.

    Attributes:
        sources: The parameters, and which positional argument each of them was.
        inputs: Which positional arguments were tensors of the batch, and the shape, type and device of each.
        output: Shape, type and device of the output.
    """

    sources: Sequence[tuple[int, Source]]
    inputs: Sequence[tuple[int, Kind]]
    output: Kind

    def fits(self, args: Sequence[Any], output: Tensor) -> bool:
        """Whether a call with these arguments and this output makes the same use."""
        for place, source in self.sources:
            if args[place] is not source.tensor:
                return False
        for place, kind in self.inputs:
            if (args[place].shape, args[place].dtype, args[place].device) != kind:
                return False
        return output.requires_grad and (output.shape, output.dtype, output.device) == self.output


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class KnownCall:
    """What was found about a call of a program when it was new; the same call need not be examined again.

    Only calls that return one new tensor and change nothing else are kept in this way.

    Attributes:
        is_private: Whether the result descends from the examples.
        use: The use of parameters that it makes, if it makes one.
        is_half: Whether the program had computed in half precision by then.
        rearranges: Whether it had moved rows by what is in the data by then.
    """

    is_private: bool
    use: KnownUse | None
    is_half: bool
    rearranges: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Region:
    """An operation that was run in parts: its rule accounts for its parameters between its inputs and outputs."""

    outputs: Sequence[Any]  # nodes
    inputs: Sequence[Tensor]
    sources: Sequence[Tensor]


@dataclass(kw_only=True)
class Recording:
    """One forward pass: its uses of parameters, and what a trial must know about it."""

    batch_size: int
    uses: list[Use] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    tracked: dict[int, Source] = field(default_factory=dict)
    made: dict[int, tuple[StorageWeakRef, int]] = field(default_factory=dict)  # memory of results, where followed
    program: list[Function] = field(default_factory=list)  # every operation on examples or parameters, in order
    rearranges: bool = False  # whether where an example lies may depend on the data
    is_half: bool = False  # whether parts of the program ran in half precision
    follower: Follower | None = None  # recognises or proves the program, where that is asked for
    last_known: KnownCall | None = None  # the last call that was not examined because it is known
    packs: bool = False  # whether sequences were packed: rows per example then differ from batch to batch

    def release(self) -> None:
        """Release every tensor: hooks and graph refer to each other in a cycle that nothing else breaks."""
        for use in self.uses:
            use.release()
        if self.follower is not None:
            self.follower.release()
            self.follower = None
        self.uses.clear()
        self.regions.clear()
        self.tracked.clear()
        self.made.clear()

    def held_bytes(self) -> int:
        """Return the size of the forward pass's results that are still in use, if the capture followed memory."""
        own = {source.tensor.untyped_storage()._cdata for source in self.tracked.values()}
        return sum(size for key, (made, size) in self.made.items() if key not in own and not _is_gone(made))


def _is_gone(storage: StorageWeakRef) -> bool:
    return bool(storage.expired())  # type: ignore[no-untyped-call]


def send_back(
    loss: Tensor,
    recording: Recording,
    inputs: Sequence[Tensor],
    *,
    keep_graph: bool,
    receive: Callable[[Use], None] | None = None,
) -> Sequence[Tensor | None]:
    """Run a backward pass to every recorded output and to ``inputs``; return the gradients of ``inputs``."""
    edges = []
    for number, use in enumerate(recording.uses):
        use.out_grad, use.receive, use.is_heard, use.number = None, receive, False, number
        if use.is_root and use.edge is not None:
            edges.append(use.edge)
    if not edges and not inputs:
        return ()
    targets: Any = [*edges, *inputs]  # torch takes edges and tensors together, though its signature does not say so
    found: Sequence[Tensor | None] = torch.autograd.grad(loss, targets, retain_graph=keep_graph, allow_unused=True)
    for use in recording.uses:
        use.receive = None  # a later backward pass must not count these gradients again
    return found[len(edges) :]
