"""The recording of a forward pass: marks on tensors that descend from the examples, and every use of a parameter."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.hooks import RemovableHandle

from privet.errors import NoExampleRule, UnsupportedModel
from privet.gradients.capture.in_place import Function, writes
from privet.gradients.capture.views import Undo
from privet.isolation.follow import Follower
from privet.isolation.signs import version_of
from privet.mechanism.layout import Layout

Kind = tuple[torch.Size, torch.dtype, torch.device]

MARK = "_privet_batch"
WRITTEN = "_privet_written"  # how often a tensor of the batch had been written to when it was handed out
# A mark holds the number of the batch and, for its own tensors, their number in it.
SHIFT = 10
GENERATIONS = itertools.count(2)


def mark_batch(tensors: Iterable[Tensor]) -> None:
    """Mark the tensors of a batch that is handed out; those of earlier batches are stale from then on."""
    generation = next(GENERATIONS)
    for number, tensor in enumerate(tensors, 1):
        setattr(tensor, MARK, generation << SHIFT | number)
        setattr(tensor, WRITTEN, version_of(tensor))


def is_batch(value: object) -> bool:
    """Tell whether a value descends from the private examples."""
    return getattr(value, MARK, 0) != 0


def tensors_in(value: object) -> list[Tensor]:
    """Return the tensors in an argument, looking into lists, tuples and dictionaries."""
    # this runs several times for every operation of a forward pass, so it is written for speed
    if isinstance(value, Tensor):
        return [value]
    found: list[Tensor] = []
    if isinstance(value, list | tuple):
        items: Iterable[object] = value
    elif type(value) not in PLAIN and isinstance(value, Mapping):
        items = value.values()
    else:
        return found
    for item in items:
        if isinstance(item, Tensor):
            found.append(item)
        elif type(item) not in PLAIN:
            found += tensors_in(item)
    return found


PLAIN = frozenset([int, float, bool, complex, str, type(None), slice, torch.Size, torch.dtype, torch.device])


def changed_by(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[Tensor]:
    """Return the tensors that an operation made or changed; a write into a view changes its base, too."""
    if not writes(func):
        return tensors_in(result)
    found = tensors_in((result, args[:1], kwargs.get("out")))
    return found + [tensor._base for tensor in found if tensor._base is not None]


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
    out_grad: Tensor | None = None
    receive: Callable[[Use], None] | None = None
    versions: Sequence[tuple[Tensor, int]] = ()
    output_index: int = 0  # which of the operation's outputs, where it has several
    statistics: tuple[Tensor, Tensor] | None = None  # mean and inverse deviation, where a normalisation hands them out
    written: Tensor | None = None  # the argument that the operation changed in place
    node_before: Any = None  # the node of that argument before
    handle: RemovableHandle | None = None
    is_heard: bool = False  # whether the last backward pass reached it
    heard_version: int = 0  # how often the output gradient had been written to when it arrived
    is_released: bool = False  # its tensors were let go of
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
        self.handle = output.register_hook(self.hear)  # type: ignore[no-untyped-call]

    def listen_at_node(self) -> None:
        """Receive the gradient of the output where nobody listens to it yet: when the node that made it is run.

        A backward pass does not run the nodes at which it stops.
        """
        if self.handle is None and self.edge is not None:
            number = self.edge.output_nr
            self.handle = self.edge.node.register_prehook(lambda gradients: self.hear(gradients[number]))

    def check_unchanged(self) -> None:
        """Refuse inputs, or an output gradient, that were changed in place since they were noted.

        Raises:
            NoExampleRule: naming the operation.
        """
        is_kept = self.out_grad is None or self.out_grad._version == self.heard_version
        for tensor, version in self.versions:
            is_kept = is_kept and tensor._version == version
        if not is_kept:
            raise NoExampleRule(
                f"An input of operation '{self.name}' was changed in place after the operation used it, so its "
                "gradient can no longer be formed. Replace the in-place operation that follows by its ordinary form."
            )

    def hear(self, gradient: Tensor | None) -> None:
        """Take the gradient of the output, and hand the use on to whoever waits for it."""
        if self.is_released and self.receive is None:
            return  # a comparison runs the pass again; all gradients together would take much memory
        self.out_grad, self.is_heard = gradient, True
        self.heard_version = 0 if gradient is None else gradient._version
        if self.receive is not None and gradient is not None:
            self.receive(self)

    def release(self) -> None:
        """Release every tensor."""
        self.is_released = True
        self.args, self.kwargs, self.sources, self.versions = (), {}, (), ()
        self.out_grad = self.receive = self.edge = self.statistics = None
        self.written = self.node_before = self.handle = None


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class KnownUse:
    """The use of parameters that a call of a known program makes: as in the batch in which the program was new.

    Attributes:
        sources: The parameters, and the place of each among the arguments; named ones come after the others.
        inputs: The places of the tensors of the batch, and the shape, type and device of each.
        output: Shape, type and device of the output.
        has_statistics: Whether the operation is a normalisation that hands out its statistics.
    """

    sources: Sequence[tuple[int, Source]]
    inputs: Sequence[tuple[int, Kind]]
    output: Kind
    has_statistics: bool

    def fits(self, values: Sequence[Any], output: Tensor) -> bool:
        """Whether a call with these arguments and this output makes the same use."""
        for place, source in self.sources:
            if values[place] is not source.tensor:
                return False
        for place, kind in self.inputs:
            value = values[place]
            if (value.shape, value.dtype, value.device) != kind:
                return False
        return output.requires_grad and (output.shape, output.dtype, output.device) == self.output


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class KnownCall:
    """The findings about a call of a program when it was new; the same call need not be examined again.

    Only calls that return one new tensor and change nothing else are kept in this way.

    Attributes:
        is_private: Whether the result descends from the examples.
        use: The use of parameters that it makes, if it makes one.
        rounding: The unit of the coarsest precision in which the program had computed by then.
        rearranges: Whether it had moved rows by the contents of the data by then.
    """

    is_private: bool
    use: KnownUse | None
    rounding: float
    rearranges: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Region:
    """An operation that was run in parts: its rule accounts for its parameters between its inputs and outputs."""

    outputs: Sequence[Any]  # nodes
    inputs: Sequence[Tensor]
    sources: Sequence[Tensor]


@dataclass(kw_only=True)
class Recording:
    """One forward pass: its uses of parameters, and the facts that a trial needs."""

    batch_size: int
    uses: list[Use] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    tracked: dict[int, Source] = field(default_factory=dict)
    made: dict[int, tuple[StorageWeakRef, int]] = field(default_factory=dict)  # memory of results, where followed
    program: list[Function] = field(default_factory=list)  # every operation on examples or parameters, in order
    rearranges: bool = False  # whether where an example lies may depend on the data
    rounding: float = 0.0  # the unit of the coarsest precision in which parts of the program ran
    asks_derived: bool = False  # whether code of the user may follow gradients of tensors computed from parameters
    follower: Follower | None = None  # recognises or proves the program, where that is asked for
    last_known: KnownCall | None = None  # the last call that was not examined because it is known
    hidden: NoExampleRule | None = None  # why no rule can form the gradients of some parameter
    packs: bool = False  # whether sequences were packed: rows per example then differ from batch to batch

    def release(self) -> None:
        """Release every tensor: hooks and graph refer to each other in a cycle that nothing else breaks."""
        for use in self.uses:
            use.release()
        if self.follower is not None and self.follower.tracer is not None:
            self.follower.release()
        self.follower = None
        self.uses.clear()
        self.regions.clear()
        self.tracked.clear()
        self.made.clear()

    def held_bytes(self) -> int:
        """Return the size of the forward pass's results that are still in use, if the capture followed memory."""
        own: set[int] = set()
        for source in self.tracked.values():
            with suppress(NotImplementedError, RuntimeError):  # sparse tensors have no memory of one piece
                own.add(source.tensor.untyped_storage()._cdata)
        return sum(size for key, (made, size) in self.made.items() if key not in own and not _is_gone(made))


def _is_gone(storage: StorageWeakRef) -> bool:
    return bool(storage.expired())  # type: ignore[no-untyped-call]


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The findings of a walk through the autograd graph of a program.

    Attributes:
        roots: For each use, whether no other use lies behind it: a backward pass may stop there.
        num_reached: How many uses the losses depend on; every backward pass must reach as many.
    """

    roots: tuple[bool, ...]
    num_reached: int

    def check_heard(self, recording: Recording, layout: Layout) -> None:
        """Refuse a backward pass that reached fewer uses than the losses depend on.

        Raises:
            NoExampleRule: naming the parameters whose gradients may be missing.
        """
        num_heard = 0
        for use in recording.uses:
            num_heard += use.is_heard
        if num_heard == self.num_reached:
            return
        silent = {place for use in recording.uses if not use.is_heard for place in use.positions}
        raise NoExampleRule(
            f"No gradient came back to an operation on {sorted(layout.names[place] for place in silent)}, though the "
            "losses depend on it: what autograd does there changes from batch to batch, or a hook cuts it off. Let the "
            "model do the same operations on every batch, or freeze these parameters."
        )


# A gradient of at most so many numbers is handed over when the backward pass is over; larger ones when they arrive, so
# that they can be let go of early. Where the pass stops, it is over.
_SMALL, _SMALL_ON_DEVICE = 1 << 15, 1 << 16


def send_back(
    loss: Tensor,
    recording: Recording,
    roots: Sequence[bool],
    *,
    keep_graph: bool,
    receive: Callable[[Use], None] | None = None,
) -> None:
    """Run a backward pass to every recorded output; it stops at the uses that are ``roots``."""
    edges: list[Any] = []  # torch takes edges for tensors, though its signature does not say so
    awaited: list[Use] = []
    most = _SMALL if loss.device.type == "cpu" else _SMALL_ON_DEVICE
    for number, (use, is_root) in enumerate(zip(recording.uses, roots, strict=True)):
        use.out_grad, use.receive, use.is_heard, use.number = None, receive, False, number
        if use.edge is None:
            continue
        if is_root:
            edges.append(use.edge)
        if use.handle is None and (is_root or use.output_shape.numel() <= most):
            awaited.append(use)
        else:
            use.listen_at_node()
    try:
        if edges:
            ends = [*(use.edge for use in awaited), *edges]
            found = _gradients(loss, ends, keep_graph=keep_graph)
            with torch.no_grad():
                for use, gradient in zip(reversed(awaited), reversed(found[: len(awaited)]), strict=True):
                    if gradient is not None:
                        use.hear(gradient)
    finally:
        for use in recording.uses:
            use.receive = None  # a later backward pass must not count these gradients again


def _gradients(loss: Tensor, ends: Sequence[Any], *, keep_graph: bool) -> Sequence[Tensor | None]:
    try:
        return torch.autograd.grad(loss, ends, retain_graph=keep_graph, allow_unused=True)
    except RuntimeError as error:
        if "use_reentrant" not in str(error):
            raise
        raise UnsupportedModel(
            "The model recomputes activations in re-entrant checkpoints, which hide the graph from the gradients of "
            "single examples. Ask for use_reentrant=False in torch.utils.checkpoint.checkpoint, or for "
            "gradient_checkpointing_kwargs={'use_reentrant': False} in transformers."
        ) from error
