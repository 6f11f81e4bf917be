"""Proves of a loss function, on one batch and without training, that it keeps the examples apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from privet.errors import ArgumentError, LossError, UnsupportedModel
from privet.isolation.asking import EXCHANGING, Calls
from privet.isolation.backward import followed, wrapped
from privet.isolation.follow import Follower
from privet.isolation.parts import tensors_of, with_tensors
from privet.isolation.place import Cause, Place, Verdict, single
from privet.isolation.programs import Programs, Proof
from privet.isolation.reads import Read
from privet.isolation.sizes import Comparison, compare
from privet.isolation.traces import Trace
from privet.isolation.watch import Watch

# A batch of so many examples is cut in two, which takes less time than all of them and a few again.
_LARGE = 6
# A program may take another course the first time (it fills a cache, it is optimised) or by chance (it drops layers).
_ATTEMPTS = 6

LossFunction = Callable[[Any], Tensor]
"""Takes a batch and returns one loss per example."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The finding of the rules on a loss function.

    Attributes:
        losses: Where the examples lie in the losses, or the operation after which they have no place.
        reads: Numbers of the examples that were handed to Python, though no rule allows it.
        sizes: The comparison with the same program on another number of examples.
        backward: Why code that the program brings for its backward pass is not proven, if it is not.
        num_operations: How many operations were followed.
        calls: The functions that were called, which tells kinds of programs apart.
    """

    losses: Verdict
    reads: Sequence[Read]
    sizes: Comparison
    backward: Sequence[str]
    num_operations: int
    calls: tuple[Callable[..., Any], ...]

    @property
    def doubts(self) -> tuple[str, ...]:
        """Everything that keeps the program from being proven, in words."""
        found = [str(self.losses)] if isinstance(self.losses, Cause) else []
        found += [f"{read.operation} at {read.line} reads examples" for read in self.reads]
        found += self.backward
        if self.sizes.fault is not None:
            found.append(str(self.sizes.fault))
        elif not self.sizes.is_possible:
            found.append("it is another program on another number of examples")
        return tuple(found)

    @property
    def is_proven(self) -> bool:
        """Whether every loss depends on its own example, on public values and on randomness alone."""
        return not self.doubts


def prove(loss_function: LossFunction, batch: Any) -> Finding:
    """Follow a loss function on two parts of a batch, of different sizes, and say whether it mixes the examples.

    Guarantee:
        A finding without doubts says that the calls which were made give every example a loss of its own, whatever its
        numbers are. It says nothing of calls that another batch may lead to: a session follows every batch.

    Args:
        loss_function: Takes a batch and returns one loss per example. It runs as it would in training, twice or a few
            times more; no gradients are kept.
        batch: A tensor, or lists, tuples, mappings and dataclasses of them. The first axis of every tensor tells the
            examples apart. Every example is used.
    """
    if _num_examples(batch) == 1:  # a single example cannot be mixed
        batch = with_tensors(batch, _with_first_again)
    for attempt in range(_ATTEMPTS):
        # parts may take different ways, since one has padding and the other has none: then all rows are followed
        one, other = _two_sizes(batch, _num_examples(batch), halves=attempt == 0)
        found = _compared(loss_function, one, other)
        if found.sizes.is_possible or isinstance(found.losses, Cause):
            break
    return found


def _two_sizes(batch: Any, num_examples: int, *, halves: bool) -> tuple[Any, Any]:
    """Return batches of two sizes that hold all examples; an even number of them is compared with an odd one."""
    if num_examples == 2:
        return batch, with_tensors(batch, _with_first_again)
    if num_examples < _LARGE or not halves:
        few = 3 if num_examples % 2 == 0 else 2
        return batch, with_tensors(batch, lambda tensor: tensor[:few].clone())
    # every other example, so that parts of a batch that is sorted by length both have padding
    places = torch.arange(num_examples)
    first = torch.cat([places[::2], places[1:2]]) if num_examples % 2 == 0 else places[::2]
    return (
        with_tensors(batch, lambda tensor: tensor[first.to(tensor.device)]),
        with_tensors(batch, lambda tensor: tensor[places[1::2].to(tensor.device)]),
    )


def follow(loss_function: LossFunction, batch: Any) -> Proof:
    """Follow a loss function on one batch, and nothing else."""
    return _follow(loss_function, batch, _num_examples(batch))[0]


def _compared(loss_function: LossFunction, batch: Any, resized: Any) -> Finding:
    proof, whole, backward = _follow(loss_function, batch, _num_examples(batch))
    twin, other, _ = _follow(loss_function, resized, _num_examples(resized))
    is_twin = isinstance(twin.losses, Cause) and not isinstance(proof.losses, Cause)
    return Finding(
        losses=twin.losses if is_twin else proof.losses,
        reads=[*proof.refused, *twin.refused],
        sizes=compare(whole, other),
        backward=backward,
        num_operations=len(whole.entries),
        calls=proof.calls,
    )


def _num_examples(batch: Any) -> int:
    lengths = {tensor.shape[0] if tensor.dim() else None for tensor in tensors_of(batch)}
    if len(lengths) != 1 or None in lengths:
        raise ArgumentError(
            "Every tensor of a batch must have one row per example on its first axis; found first axes of "
            f"{sorted(map(str, lengths)) or 'no tensors'}. Collate the batch as the training loop does."
        )
    (found,) = lengths
    assert found is not None
    return found


def _with_first_again(tensor: Tensor) -> Tensor:
    return torch.cat([tensor, tensor[:1]])


def _follow(loss_function: LossFunction, batch: Any, num_examples: int) -> tuple[Proof, Trace, Sequence[str]]:
    """Return the finding, the trace of the forward pass and of user code in the backward pass, and what that lacks."""
    place = single(0) if num_examples == 1 else Place(0, 1, 1, 0, num_examples)
    given = {id(tensor) for tensor in tensors_of(batch)}
    follower = Follower(
        Programs(),
        num_examples,
        lambda tensor: place if id(tensor) in given else None,
        lambda tensor: (tensor.shape, tensor.dtype),
        {},
    )
    calls = _Calls(follower)
    try:
        with calls:
            losses: object = loss_function(batch)
        if not isinstance(losses, Tensor) or losses.shape != (num_examples,):
            found = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise LossError(f"The loss function must return one loss per example, [{num_examples}]; found {found}.")
    except BaseException:
        follower.leave()
        follower.release()
        raise
    follower.leave()
    try:
        proof = follower.prove(losses)
        assert proof.trace is not None, "a program that was never seen is traced"
        assert follower.tracer is not None, "a program that was never seen is traced"
        faults = _follow_back(losses, follower, calls.hooked)
        backward = follower.tracer.trace
        return proof, proof.trace if backward is proof.trace else proof.trace.and_then(backward), faults
    finally:
        follower.release()


def _follow_back(losses: Tensor, follower: Follower, hooked: Sequence[GradientEdge]) -> Sequence[str]:
    """Run user-written code of the backward pass, if there is any; return the reasons why it is not proven."""
    edges = [GradientEdge(*edge) for node in follower.nodes for edge in node.next_functions if edge[0] is not None]
    edges += hooked
    if not edges:
        return ()
    watch = Watch()
    try:
        with followed(follower, watch):
            torch.autograd.grad(losses.sum(), edges, allow_unused=True)
    except UnsupportedModel as error:
        return (str(error),)
    return watch.evidence.tried


class _Calls(Calls):
    """Shows a follower the calls that hand numbers to Python without an operation."""

    def __init__(self, follower: Follower) -> None:
        super().__init__()
        self._follower = follower
        self.hooked: list[GradientEdge] = []

    def called(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is Tensor.grad_fn.__get__:  # type: ignore[union-attr]
            self._follower.note_node()
        if func is Tensor.register_hook and self._follower.verdict(args[0]) is not None:
            self._follower.note_hook()
            self.hooked.append(get_gradient_edge(args[0]))
            args = (args[0], wrapped(args[1], args[0], self._follower), *args[2:])
        self._follower.before(func, args, kwargs)
        result = func(*args, **kwargs)
        if func in EXCHANGING:
            self._follower.declare(args[0], self._follower.verdict(args[1]))
        self._follower.after(tensors_of(result))
        return result
