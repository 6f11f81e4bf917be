"""The module that mixes examples: the first one with different outputs for equal inputs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from privet.isolation.parts import tensors_of

_Seen = dict[str, tuple[list[Tensor], list[Tensor]]]


def find_suspect(model: nn.Module, run: Callable[[Any], object], first: Any, second: Any, same: Tensor) -> str:
    """Return the name of the innermost module that mixes unchanged examples with changed ones.

    Args:
        model: The model.
        run: Runs the model on a batch.
        first: A batch.
        second: The same batch with some examples exchanged.
        same: The unchanged examples.
    """
    one, other = _watch(model, run, first, same), _watch(model, run, second, same)
    for name, (inputs, outputs) in one.items():  # in the order in which modules finished: inner ones first
        if name in other and _equal(inputs, other[name][0]) and not _equal(outputs, other[name][1]):
            kind = type(model.get_submodule(name)).__name__
            return f"Module '{name}' ({kind})" if name else f"The model ({kind}), between its modules,"
    return "The loss function"


def _watch(model: nn.Module, run: Callable[[Any], object], batch: Any, same: Tensor) -> _Seen:
    seen: _Seen = {}

    def rows(values: Any) -> list[Tensor]:
        found = [tensor.detach() for tensor in tensors_of(values) if tensor.dim() and len(tensor) == len(same)]
        return [tensor[same.to(tensor.device)].clone() for tensor in found]

    def note(name: str) -> Callable[[nn.Module, Any, Any, Any], None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
            seen.setdefault(name, (rows((args, kwargs)), rows(outputs)))

        return hook

    with ExitStack() as undo:
        for name, module in model.named_modules():
            undo.callback(module.register_forward_hook(note(name), with_kwargs=True).remove)
        run(batch)
    return seen


def _equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(
        left.shape == right.shape and torch.equal(torch.nan_to_num(left), torch.nan_to_num(right))
        for left, right in zip(one, other, strict=True)
    )
