"""Global random states, so that a batch can be run again with the same draws."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Draws:
    """The states of the global generators of Python, numpy, torch and one device at one time.

    They have no part in noise or sampling, whose streams are the session's own.
    """

    python: Any
    numpy: Any
    torch_cpu: Tensor
    on_device: Tensor | None
    device: torch.device

    @classmethod
    def now(cls, device: torch.device) -> Self:
        """Take the present states; nothing waits for the device."""
        is_cuda = device.type == "cuda"
        return cls(
            python=random.getstate(),
            numpy=np.random.get_state(),
            torch_cpu=torch.get_rng_state(),
            on_device=torch.cuda.get_rng_state(device) if is_cuda else None,
            device=device,
        )

    def restore(self) -> None:
        """Set the generators to these states."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch_cpu)
        if self.on_device is not None:
            torch.cuda.set_rng_state(self.on_device, self.device)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw the same numbers again in the block, and go on afterwards as if it had not been."""
        after = Draws.now(self.device)
        self.restore()
        try:
            yield
        finally:
            after.restore()
