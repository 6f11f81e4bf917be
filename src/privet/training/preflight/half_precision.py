"""Tells whether a program computes in half precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_HALF = (torch.float16, torch.bfloat16)


class HalfPrecision(TorchFunctionMode):
    """Notes whether anything was computed in half precision."""

    is_met = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Look at the result of a call."""
        result = func(*args, **(kwargs or {}))
        self.is_met = self.is_met or (isinstance(result, Tensor) and result.dtype in _HALF)
        return result
