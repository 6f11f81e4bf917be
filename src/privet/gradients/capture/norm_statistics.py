"""Runs normalisations such that their statistics are kept, so that their rules need not compute them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from privet.gradients.norms import kernels

Statistics = tuple[Tensor, Tensor]
"""Mean and inverse standard deviation, in at least single precision."""

_FULL = (torch.float32, torch.float64)


def with_statistics(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, Statistics] | None:
    """Run a layer or group norm by the operation behind it, which returns its statistics too; None for all others.

    Only where a rule will use them: elsewhere it recomputes them in the precision it needs.
    """
    run = _NORMALISATIONS.get(function)
    if run is None or not args or not isinstance(args[0], Tensor):
        return None
    kind = args[0].device.type
    if not kernels.available(args[0]):
        plain = args[0].dtype in _FULL and not torch.is_autocast_enabled(kind)
        return run(*args, **kwargs) if kind == "cpu" and plain and run is _group_norm else None
    if not torch.is_autocast_enabled(kind):
        return run(*args, **kwargs)
    # autocast runs normalisations in single precision for all inputs
    with torch.autocast(kind, enabled=False):
        return run(*map(_single, args), **{name: _single(value) for name, value in kwargs.items()})


def _single(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) else value


def _layer_norm(
    input: Tensor,  # noqa: A002 -- torch's own name, by which it may be given
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Statistics]:
    output, mean, rstd = torch.native_layer_norm(input, normalized_shape, weight, bias, eps)
    return output, (mean.detach(), rstd.detach())


def _group_norm(
    input: Tensor,  # noqa: A002
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Statistics] | None:
    if input.dim() < 3 or not input.is_contiguous() or input.shape[1] % num_groups:
        return None
    examples, channels, positions = input.shape[0], input.shape[1], input[0, 0].numel()
    output, mean, rstd = torch.native_group_norm(input, weight, bias, examples, channels, positions, num_groups, eps)
    return output, (mean.detach(), rstd.detach())


_NORMALISATIONS: Mapping[Callable[..., Any], Callable[..., tuple[Tensor, Statistics] | None]] = {
    functional.layer_norm: _layer_norm,
    functional.group_norm: _group_norm,
}
