"""User code that runs in the backward pass: custom autograd functions, hooks on tensors, hooks of modules.

Autograd itself computes derivatives of operations that were followed: if they keep examples apart, so does it.
Code that a user has written for the backward pass is followed like the forward pass: its
arguments lie where the forward pass had them, and its results must lie where the forward pass had its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from privet.isolation.follow import Follower
from privet.isolation.lines import user_line
from privet.isolation.place import Cause, Fault, Place, Rows, Verdict
from privet.isolation.tracer import Trace, Tracer
from privet.isolation.watch import Watch, mixes


@contextmanager
def followed(follower: Follower, watch: Watch) -> Iterator[None]:
    """Follow the user's own code in the backward passes of the block.

    Raises:
        UnsupportedModel: from inside autograd, if such code mixes the examples.
    """
    tracer = follower.tracer
    if tracer is None or not (follower.nodes or follower.has_hooks):
        yield
        return
    follower.judge_gradient = _Judge(watch)
    tracer.trace = Trace(num_examples=tracer.trace.num_examples)  # its users keep the trace of the forward pass
    handles = [
        handle for node, places in follower.nodes.items() for handle in _watch_node(node, places, tracer, follower)
    ]
    try:
        with tracer:
            yield
        watch.check_backward(tracer.trace)
    finally:
        for handle in handles:
            handle.remove()


def _watch_node(node: Any, places: dict[int, Verdict], tracer: Tracer, follower: Follower) -> Sequence[Any]:
    def before(grads: tuple[Tensor | None, ...]) -> None:
        for number, grad in enumerate(grads):
            if grad is not None and number in places:
                tracer.give(grad, places[number])

    def after(grad_inputs: tuple[Tensor | None, ...], grad_outputs: tuple[Tensor | None, ...]) -> None:
        assert follower.judge_gradient is not None
        for (child, number), grad in zip(node.next_functions, grad_inputs, strict=False):
            if grad is not None and child is not None:
                leaf = getattr(child, "variable", None)
                if leaf is not None and follower.verdict(leaf) is None:
                    continue  # the gradient of a parameter is a sum over the examples
                expected = follower.places.get((child, number))
                follower.judge_gradient(tracer.verdict(grad), expected, type(node).__name__)

    return node.register_prehook(before), node.register_hook(after)


class _Judge:
    """Refuses gradients that hold other examples than the tensors they belong to."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __call__(self, found: Verdict, expected: Verdict, name: str) -> None:
        if isinstance(found, Cause):
            if found.fault is Fault.MIXES:
                raise mixes(found)
            self._watch.note_tried(f"the backward pass of {name}: {found}")
        elif isinstance(found, Place | Rows) and isinstance(expected, Place | Rows) and found != expected:
            raise mixes(Cause(Fault.MIXES, name, "its gradients lie elsewhere than the examples", user_line()))


def wrapped(hook: Callable[[Tensor], Tensor | None], tensor: Tensor, follower: Follower) -> Callable[[Tensor], Any]:
    """Return a hook on a tensor that is followed when autograd calls it."""
    place = follower.verdict(tensor)
    name = getattr(hook, "__qualname__", type(hook).__name__)

    def run(grad: Tensor) -> Tensor | None:
        if follower.tracer is not None:
            follower.tracer.mark(grad, place)
        changed = hook(grad)
        if follower.tracer is not None and follower.judge_gradient is not None:  # it may have been written to as well
            follower.judge_gradient(
                follower.tracer.verdict(grad if changed is None else changed), place, f"hook {name}"
            )
        return changed

    return run
