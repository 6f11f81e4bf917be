"""Random numbers that do not depend on the batch size, so that batches of two sizes can be compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from privet.isolation.call import argument_names, name_of

_LONGEST = 1 << 12


class EqualDraws(TorchDispatchMode):
    """Draws that depend on the index along the last axis only: an example gets the same numbers in every batch.

    For experiments: the numbers are neither independent nor secret.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._numbers = torch.rand(_LONGEST, generator=torch.Generator().manual_seed(7), dtype=torch.float64)

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation; replace the random numbers in its result."""
        kwargs = kwargs or {}
        name = name_of(func)
        names = argument_names(func)
        if "dropout_p" in names and name.startswith("_scaled_dot_product"):
            return func(*_with(args, names["dropout_p"][0], 0.0), **{**kwargs, **_without(kwargs, "dropout_p")})
        if name == "native_dropout":
            share = float(args[1]) if args[2] is None or args[2] else 0.0
            mask = self._shaped(args[0]) >= share
            return args[0] * mask / max(1.0 - share, 1e-9), mask
        result = func(*args, **kwargs)
        fill = _FILLS.get(name.rstrip("_"))
        if fill is not None and isinstance(result, Tensor):
            result.copy_(fill(self._shaped(result), args, kwargs).to(result.dtype))
        return result

    def _shaped(self, like: Tensor) -> Tensor:
        """Return numbers between 0 and 1 that vary along the last axis only."""
        size = like.shape[-1] if like.dim() else 1
        numbers = self._numbers.repeat(size // _LONGEST + 1)[:size].to(like.device)
        return numbers.expand(like.shape) if like.dim() else numbers[0]


def _with(args: tuple[Any, ...], number: int, value: Any) -> tuple[Any, ...]:
    return (*args[:number], value, *args[number + 1 :]) if number < len(args) else args


def _without(kwargs: dict[str, Any], name: str) -> dict[str, Any]:
    return {name: 0.0} if name in kwargs else {}


def _bernoulli(numbers: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    share = args[1] if len(args) > 1 else kwargs.get("p", args[0])
    drawn: Tensor = numbers < share
    return drawn


def _normal(numbers: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    drawn: Tensor = torch.special.ndtri(numbers.clamp(1e-9, 1 - 1e-9))
    return drawn


def _uniform(numbers: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return numbers


def _first(numbers: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return torch.zeros_like(numbers)


def _counting(numbers: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return torch.arange(len(numbers), device=numbers.device)


_FILLS: dict[str, Callable[[Tensor, tuple[Any, ...], dict[str, Any]], Tensor]] = {
    "bernoulli": _bernoulli,
    "rand": _uniform,
    "rand_like": _uniform,
    "uniform": _uniform,
    "randn": _normal,
    "randn_like": _normal,
    "normal": _normal,
    "randint": _first,
    "randint_like": _first,
    "random": _first,
    "randperm": _counting,
}
