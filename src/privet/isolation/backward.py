"""User code that runs in the backward pass: custom autograd functions, hooks on tensors, hooks of modules.

Autograd itself computes derivatives of operations that were followed: if they keep examples apart, so does it.
Code that a user has written for the backward pass is followed like the forward pass: its
arguments lie where the forward pass had them, and its results must lie where the forward pass had its inputs. What it
reads, draws and writes is judged alike, and it is compared with itself on two numbers of examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Generator, Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from privet.isolation.asking import Calls
from privet.isolation.follow import Follower
from privet.isolation.lines import user_line
from privet.isolation.place import Cause, Fault, Place, Rows, Verdict
from privet.isolation.signs import Function
from privet.isolation.tracer import Tracer
from privet.isolation.watch import Watch, mixes


@contextmanager
def followed(follower: Follower, watch: Watch) -> Iterator[None]:
    """Follow the user's own code in the backward passes of the block.

    Raises:
        UnsupportedModel: from inside autograd, if such code mixes the examples.
    """
    tracer = follower.tracer
    if tracer is None or not follower.has_code:
        yield
        return
    follower.judge_gradient = _Judge(watch)
    tracer.turn_back()
    acts = follower.code = _Acts(follower, tracer)
    handles = [
        handle for node, places in follower.nodes.items() for handle in _watch_node(node, places, acts, follower)
    ]
    try:
        with tracer:
            yield
        watch.check_backward(tracer.trace, follower.doubt())
    finally:
        follower.code = None
        acts.leave()
        for handle in handles:
            handle.remove()


def _watch_node(node: Any, places: dict[int, Verdict], acts: _Acts, follower: Follower) -> Sequence[Any]:
    tracer = acts.tracer

    def before(grads: tuple[Tensor | None, ...]) -> None:
        acts.enter()
        for number, grad in enumerate(grads):
            if grad is not None and number in places:
                tracer.give(grad, places[number])

    def after(grad_inputs: tuple[Tensor | None, ...], grad_outputs: tuple[Tensor | None, ...]) -> None:
        assert follower.judge_gradient is not None
        acts.exit()
        for (child, number), grad in zip(node.next_functions, grad_inputs, strict=False):
            if grad is not None and child is not None:
                leaf = getattr(child, "variable", None)
                if leaf is not None and follower.verdict(leaf) is None:
                    continue  # the gradient of a parameter is a sum over the examples
                expected = follower.places.get((child, number))
                follower.judge_gradient(tracer.send_back(grad), expected, type(node).__name__)

    return node.register_prehook(before), node.register_hook(after)


class _Acts(Calls):
    """Active in code of the user's own; sees what it does beside its operations: it reads, and draws."""

    def __init__(self, follower: Follower, tracer: Tracer) -> None:
        super().__init__()
        self._follower, self.tracer = follower, tracer

    def enter(self) -> None:
        """Follow code that begins now."""
        self.tracer.depth += 1
        self.__enter__()  # type: ignore[no-untyped-call]

    def exit(self) -> None:
        """Follow no longer what began last."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self.tracer.depth -= 1

    def leave(self) -> None:
        """Take what an error has left of it off torch's stack."""
        modes: Sequence[TorchFunctionMode] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        if self.tracer.depth == 0:
            return
        for _ in modes:
            _pop_mode()  # type: ignore[no-untyped-call]
        for mode in modes:
            if mode is not self:
                _push_mode(mode)  # type: ignore[no-untyped-call]
        self.tracer.depth = 0

    def called(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._follower.note_reading(func, args, kwargs)
        for value in (*args, *kwargs.values()):
            if isinstance(value, Generator):
                self._follower.note_generator(value)
        return func(*args, **kwargs)


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
        tracer = follower.tracer
        if tracer is None:
            return hook(grad)
        tracer.mark(grad, place)
        if follower.code is not None:
            follower.code.enter()
        changed = hook(grad)
        if follower.code is not None:
            follower.code.exit()
        if follower.judge_gradient is not None:
            sent = tracer.send_back(grad if changed is None else changed)  # it may have been written to as well
            follower.judge_gradient(sent, place, f"hook {name}")
        return changed

    return run
