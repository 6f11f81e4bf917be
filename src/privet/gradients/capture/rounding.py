"""Rounds the input of a layer before autocast does, so that one copy of it serves autograd and the layer's rule.

Under autocast a linear map or a convolution rounds its input and autograd keeps the rounded copy, while the program's
own tensor goes. A rule that held the latter would keep the wider numbers of every trained layer until gradients arrive:
on adapters of a language model a third more than plain training holds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from privet.gradients.capture.in_place import Function

_LAYERS: frozenset[Any] = frozenset(
    [functional.linear, functional.conv1d, functional.conv2d, functional.conv3d]  # autocast rounds their inputs
)


def as_seen(function: Function, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments with the input as the layer sees it under autocast; the same ones for any other call.

    The result and its gradients are those of the given arguments, bit for bit: autocast rounds in the same way.
    """
    if function not in _LAYERS or not args or not isinstance(args[0], Tensor) or args[0].dtype != torch.float32:
        return args
    kind = args[0].device.type
    if not torch.is_autocast_enabled(kind):
        return args
    return (args[0].to(torch.get_autocast_dtype(kind)), *args[1:])
