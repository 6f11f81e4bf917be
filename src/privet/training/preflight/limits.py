"""The integers that a program accepts: token ids below the size of their table, labels below the number of classes.

A run on zeros, which are valid for every table, finds them. No value of a real batch is used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from privet.isolation.call import argument_names, name_of

_LEAF = "_privet_leaf"
_CLEANED = "_privet_cleaned"  # on integers of which some were replaced, such as labels to ignore
_REPLACING = {"where": 0, "masked_fill": 1}  # the number of the argument that says where
_ASKS = "_privet_asks"  # on truth values: the tensors of the batch that they were found in
_ASKING = frozenset(["eq", "ne", "lt", "le", "gt", "ge"])
_JOINING = frozenset(["bitwise_and", "bitwise_or", "bitwise_not", "logical_and", "logical_or", "logical_not"])
# Operations that do not change integers.
_SAME = frozenset(
    [
        "_to_copy",
        "clone",
        "detach",
        "alias",
        "view",
        "_unsafe_view",
        "reshape",
        "unsqueeze",
        "squeeze",
        "expand",
        "slice",
        "select",
        "transpose",
        "permute",
        "t",
        "split",
        "split_with_sizes",
        "unbind",
        "lift_fresh",
        "contiguous",
        "where",
        "masked_fill",
    ]
)


@dataclass(slots=True)
class Limit:
    """The accepted integers of one tensor of a batch.

    Attributes:
        high: Upper limit, not included; None if unknown.
        ignored: The label that the loss ignores, if it has one.
        is_index: Whether the integers index a table without replacement; then the ignored label is not accepted.
    """

    high: int | None = None
    ignored: int | None = None
    is_index: bool = False

    def below(self, high: int) -> None:
        """Apply a further limit; the lowest counts."""
        self.high = high if self.high is None else min(self.high, high)


@dataclass(eq=False)
class Limits(TorchDispatchMode):
    """Watches a program and records the tables that the integers of its batch index."""

    found: dict[int, Limit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def follow(self, leaf: int, tensor: Tensor) -> None:
        self.found[leaf] = Limit()
        setattr(tensor, _LEAF, leaf)

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, and record its use of integers."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = name_of(func)
        if name in _SAME:
            leaves = [leaf for leaf in map(_leaf_of, args) if leaf is not None]
            # what is replaced elsewhere than numbers of the tensor say leaves labels to ignore where they are
            is_cleaned = bool(leaves) and name in _REPLACING and leaves[0] in _asks(args[_REPLACING[name]])
            is_cleaned = is_cleaned or any(map(_is_cleaned, args))
            for out in [result] if isinstance(result, Tensor) else result:
                if leaves and isinstance(out, Tensor) and not out.is_floating_point():
                    setattr(out, _LEAF, leaves[0])
                    setattr(out, _CLEANED, is_cleaned)
                if isinstance(out, Tensor) and out.dtype is torch.bool:
                    setattr(out, _ASKS, frozenset().union(*map(_asks, args)))
        elif name in _ASKING or name in _JOINING:
            given = [frozenset([leaf]) for leaf in map(_leaf_of, args) if leaf is not None]
            setattr(result, _ASKS, frozenset().union(*map(_asks, args), *given))
        else:
            self._note(name, func, args, kwargs)
        return result

    def _note(self, name: str, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def given(key: str) -> Any:
            number, default = argument_names(func)[key]
            return args[number] if number < len(args) else kwargs.get(key, default)

        if name in ("embedding", "_embedding_bag", "_embedding_bag_forward_only"):
            self._limit(args[1], args[0].shape[0])
        elif name in ("nll_loss_forward", "nll_loss2d_forward"):
            self._limit(given("target"), args[0].shape[1 if args[0].dim() > 1 else 0], given("ignore_index"))
        elif name.rstrip("_") in ("gather", "scatter", "scatter_add", "index_select", "scatter_reduce"):
            self._limit(given("index"), args[0].shape[given("dim")] if args[0].dim() else 1)
        elif name in ("index", "_unsafe_index"):
            for axis, index in enumerate(args[1]):
                if index is not None and index.dtype not in (torch.bool, torch.uint8):
                    self._limit(index, args[0].shape[axis])

    def _limit(self, numbers: Any, high: int, ignored: int | None = None) -> None:
        leaf = _leaf_of(numbers)
        if leaf is not None:
            limit = self.found[leaf]
            limit.below(high)
            if ignored is not None:
                limit.ignored = ignored
            elif not _is_cleaned(numbers):
                limit.is_index = True


def _is_cleaned(value: Any) -> bool:
    return isinstance(value, Tensor) and getattr(value, _CLEANED, False)


def _asks(value: Any) -> frozenset[int]:
    found: frozenset[int] = getattr(value, _ASKS, frozenset())
    return found


def _leaf_of(value: Any) -> int | None:
    return getattr(value, _LEAF, None) if isinstance(value, Tensor) else None
