"""Activation checkpoints: a part that is computed again in the backward pass must repeat its first computation.

torch keeps the arguments of a checkpointed part and calls it again when gradients come back. The second time is the
user's code, too, and may do something else with the same shapes. So the calls that are made again are compared with
those that were proven, one by one: the same functions, numbers and tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils import checkpoint

from privet.errors import UnsupportedModel
from privet.isolation.asking import Calls
from privet.isolation.lines import is_inner, user_line

_MADE = "_privet_made_by"  # on results of a checkpointed part: which part, and the number of the call
_MADE_AGAIN = "_privet_made_again_by"
_CHECKPOINT = str(Path(checkpoint.__file__))
_GRAPH = str(Path(torch.autograd.graph.__file__))
_ON_PROCESSOR = "save_on_cpu."
Hooks = tuple[Callable[..., Any], Callable[..., Any]]


def hooks_on_saved_tensors() -> Hooks | None:
    """Return the functions that pack and unpack the tensors which autograd saves at present."""
    found: Hooks | None = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return found


def is_of_checkpoint(hooks: Hooks) -> bool:
    """Whether hooks belong to an activation checkpoint, which recomputes the tensors that it does not keep."""
    return _file_of(hooks[1]) == _CHECKPOINT


def is_faithful(hooks: Hooks) -> bool:
    """Whether hooks are torch's own, which keep tensors on the processor and return them unchanged."""
    return _file_of(hooks[1]) == _GRAPH and hooks[1].__qualname__.startswith(_ON_PROCESSOR)


def _file_of(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    return "" if code is None else code.co_filename


@dataclass(frozen=True, slots=True)
class _Given:
    """A tensor argument: which call made it, and where it lies."""

    made_by: tuple[int, int]  # the part, and the number of the call
    memory: tuple[Any, ...]


@dataclass(slots=True)
class Repeatable:
    """The calls inside checkpointed parts of one forward pass."""

    _parts: dict[Any, list[tuple[Any, ...]]] = field(default_factory=dict)
    _latest: list[tuple[Any, ...]] = field(default_factory=list)

    def note(self, hooks: Hooks, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Note a call before it is carried out, unless it is made inside another; False if nothing can be compared."""
        part = _cell(hooks[0], "frame") or _cell(hooks[1], "frame")
        key = None if part is None else part.cell_contents
        if key not in self._parts:
            computes = _cell(getattr(key, "recompute_fn", None), "fn")
            if computes is None:
                return False
            self._parts[key] = []
            computes.cell_contents = _compared(computes.cell_contents, self._parts[key])
        self._latest = self._parts[key]
        if not is_inner():
            self._latest.append(_described(function, args, kwargs, _MADE))
        return True

    def note_results(self, results: Sequence[Tensor]) -> None:
        """Note the results of the last call."""
        for result in results:
            setattr(result, _MADE, (id(self._latest), len(self._latest)))


def _cell(function: Any, name: str) -> Any:
    """Return where a function keeps a name of the functions around it; None where torch keeps it elsewhere by now."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return function.__closure__[names.index(name)] if name in names else None


def _compared(compute: Callable[..., Any], calls: list[tuple[Any, ...]]) -> Callable[..., Any]:
    def again(*args: Any, **kwargs: Any) -> Any:
        with Comparing(calls):
            return compute(*args, **kwargs)

    return again


class Comparing(Calls):
    """Compares a recomputation with the first computation, call by call.

    Guarantee:
        Every call that a checkpoint makes again is the next one of the same part: the same function with the same
        numbers, on tensors at the same place in memory or made again by the same earlier call. Otherwise it raises
        before gradients of the part exist.
    """

    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        """Compare with these calls."""
        super().__init__()
        self._calls, self._number = calls, 0

    def called(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compare the call, then carry it out."""
        call, number = _described(func, args, kwargs, _MADE_AGAIN), self._number
        if number >= len(self._calls) or not _is_same(self._calls[number], call, id(self._calls)):
            raise UnsupportedModel(
                f"A checkpointed part of the program does something else when it is computed again ({user_line()}) "
                "than it did before, so its gradients are not those of the losses that were proven. Let it depend on "
                "its arguments and on torch's random numbers alone."
            )
        self._number += 1
        result = func(*args, **kwargs)
        for leaf in pytree.tree_leaves(args[:1] if result is None else result):
            if isinstance(leaf, Tensor):
                setattr(leaf, _MADE_AGAIN, (id(self._calls), self._number))
        return result


def _described(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], attribute: str) -> tuple[Any, ...]:
    leaves, structure = pytree.tree_flatten((list(args), dict(kwargs)))
    return (function, structure, [_leaf(leaf, attribute) for leaf in leaves])


def _leaf(leaf: Any, attribute: str) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    try:
        # a sharded model gathers a parameter again, into the storage that it had
        place = leaf.untyped_storage()._cdata if isinstance(leaf, nn.Parameter) else leaf.data_ptr()
        memory: tuple[Any, ...] = (place, leaf.storage_offset(), tuple(leaf.shape), leaf.stride(), leaf.dtype)
    except (RuntimeError, NotImplementedError):  # a tensor without memory of its own
        memory = (tuple(leaf.shape), leaf.dtype)
    return _Given(getattr(leaf, attribute, (0, 0)), memory)


def _is_same(known: tuple[Any, ...], call: tuple[Any, ...], part: int) -> bool:
    if known[0] != call[0] or known[1] != call[1]:
        return False
    return all(_is_same_leaf(left, right, part) for left, right in zip(known[2], call[2], strict=True))


def _is_same_leaf(known: Any, leaf: Any, part: int) -> bool:
    if isinstance(known, _Given):
        if not isinstance(leaf, _Given) or known.memory[1:] != leaf.memory[1:]:
            return False
        # made inside the part, or given to it
        return leaf.made_by == known.made_by if known.made_by[0] == part else leaf.memory == known.memory
    if type(known) is not type(leaf):
        return False
    return bool(known == leaf) or (isinstance(known, float) and known != known and leaf != leaf)
