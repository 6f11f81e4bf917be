"""Gradients that autograd forms, looked at one parameter at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def each_gradient(parameters: Sequence[nn.Parameter], look: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Look at each parameter's gradient when a backward pass has formed it, and let go of it.

    ``torch.autograd.grad`` returns zeros without memory of their own in place of what was looked at.
    """

    def hook(position: int) -> Callable[[Tensor], Tensor]:
        def heard(gradient: Tensor) -> Tensor:
            with torch.no_grad():
                look(position, gradient.detach())
            return gradient.new_zeros(()).expand_as(gradient)

        return heard

    handles = [value.register_hook(hook(place)) for place, value in enumerate(parameters)]  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
