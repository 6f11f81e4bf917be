"""What is computed again in the backward pass must be what was computed: activation checkpoints.

torch keeps the arguments of a checkpointed part and calls it again when gradients come back. The second time is the
user's code, too, and may do something else with the same shapes. So the calls that are made again are compared with
those that were proven, one by one: the same functions, numbers and tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils import checkpoint

from privet.errors import UnsupportedModel
from privet.isolation.asking import ASKING
from privet.isolation.lines import is_asked_by_privet, is_inner, user_line

_MADE = "_privet_made_by"  # on results of a checkpointed part: the number of the call
_MADE_AGAIN = "_privet_made_again_by"
_CHECKPOINT = str(Path(checkpoint.__file__))
_GRAPH = str(Path(torch.autograd.graph.__file__))
_ON_PROCESSOR = "save_on_cpu."
Hooks = tuple[Callable[..., Any], Callable[..., Any]]


def hooks_on_saved_tensors() -> Hooks | None:
    """Return what packs and unpacks the tensors that autograd saves at present."""
    found: Hooks | None = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return found


def is_of_checkpoint(hooks: Hooks) -> bool:
    """Whether hooks are those of an activation checkpoint, which compute again what they do not keep."""
    return _file_of(hooks[1]) == _CHECKPOINT


def is_faithful(hooks: Hooks) -> bool:
    """Whether hooks are torch's own that keep tensors on the processor, and give back what they were given."""
    return _file_of(hooks[1]) == _GRAPH and hooks[1].__qualname__.startswith(_ON_PROCESSOR)


def _file_of(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    return "" if code is None else code.co_filename


@dataclass(frozen=True, slots=True)
class _Given:
    """A tensor argument: which call made it, and where it lies."""

    made_by: int
    memory: tuple[Any, ...]


class Repeatable:
    """The calls inside checkpointed parts of one forward pass."""

    def __init__(self) -> None:
        """Begin without any."""
        self._calls: list[tuple[Any, ...]] = []

    def __bool__(self) -> bool:
        return bool(self._calls)

    def note(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note a call before it is carried out, unless it is made inside another."""
        if not is_inner():
            self._calls.append(_described(function, args, kwargs, _MADE))

    def note_results(self, results: Sequence[Tensor]) -> None:
        """Note what the last call made."""
        for result in results:
            setattr(result, _MADE, len(self._calls))

    def compared(self) -> Comparing:
        """Return the mode under which a backward pass may compute parts again."""
        return Comparing(self._calls)


class Comparing(TorchFunctionMode):
    """Compares what is computed again with what was computed.

    Guarantee:
        Every call that a checkpoint makes again is the next one of the same part: the same function with the same
        numbers, on tensors at the same place in memory or made again by the same earlier call. Otherwise it raises
        before gradients of the part exist.
    """

    def __init__(self, calls: Sequence[tuple[Any, ...]]) -> None:
        """Compare with these calls."""
        super().__init__()
        self._calls = calls
        self._parts: dict[FrameType, list[int]] = {}  # first call of the part, next call

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compare the call, then carry it out."""
        kwargs = kwargs or {}
        frame = _part()
        if frame is None or func in ASKING or is_asked_by_privet():
            return func(*args, **kwargs)
        number = self._number_of(frame, _described(func, args, kwargs, _MADE_AGAIN))
        result = func(*args, **kwargs)
        for leaf in pytree.tree_leaves(args[:1] if result is None else result):
            if isinstance(leaf, Tensor):
                setattr(leaf, _MADE_AGAIN, number + 1)
        return result

    def _number_of(self, frame: FrameType, call: tuple[Any, ...]) -> int:
        if frame not in self._parts:
            begun = {first for first, _ in self._parts.values()}
            firsts = [n for n, known in enumerate(self._calls) if n not in begun and _is_same(known, call, n)]
            if firsts:
                self._parts[frame] = [firsts[-1], firsts[-1] + 1]
                return firsts[-1]
        else:
            first, number = self._parts[frame]
            if number < len(self._calls) and _is_same(self._calls[number], call, first):
                self._parts[frame][1] += 1
                return number
        raise UnsupportedModel(
            f"A checkpointed part of the program does something else when it is computed again ({user_line()}) than it "
            "did before, so its gradients are not those of the losses that were proven. Let it depend on its arguments "
            "and on torch's random numbers alone."
        )


def _described(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], attribute: str) -> tuple[Any, ...]:
    leaves, structure = pytree.tree_flatten((list(args), dict(kwargs)))
    return (function, structure, [_leaf(leaf, attribute) for leaf in leaves])


def _leaf(leaf: Any, attribute: str) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    try:
        memory: tuple[Any, ...] = (leaf.data_ptr(), tuple(leaf.shape), leaf.stride(), leaf.dtype)
    except (RuntimeError, NotImplementedError):  # a tensor without memory of its own
        memory = (tuple(leaf.shape), leaf.dtype)
    return _Given(getattr(leaf, attribute, 0), memory)


def _is_same(known: tuple[Any, ...], call: tuple[Any, ...], first: int) -> bool:
    if known[0] != call[0] or known[1] != call[1]:
        return False
    return all(_is_same_leaf(left, right, first) for left, right in zip(known[2], call[2], strict=True))


def _is_same_leaf(known: Any, leaf: Any, first: int) -> bool:
    if isinstance(known, _Given):
        if not isinstance(leaf, _Given) or known.memory[1:] != leaf.memory[1:]:
            return False
        # made inside the part, or given to it
        return leaf.made_by == known.made_by if known.made_by > first else leaf.memory == known.memory
    if type(known) is not type(leaf):
        return False
    return bool(known == leaf) or (isinstance(known, float) and known != known and leaf != leaf)


def _part() -> FrameType | None:
    """Return the frame in which a checkpoint computes a part again, if that is going on."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename == _CHECKPOINT and frame.f_code.co_name == "recompute_fn":
            return frame
        frame = frame.f_back
    return None
