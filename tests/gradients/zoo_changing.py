"""Models of the zoo that change tensors in place, make weights in unusual ways or return several outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Adapted(nn.Module):
    """A frozen layer with an adapter, rectified in place where it is a view."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 3).requires_grad_(False)
        self.down, self.up = nn.Linear(6, 4), nn.Linear(4, 3, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.frozen(inputs) + self.up(functional.relu(self.down(inputs), inplace=True))
        return found


class ViewsChanged(nn.Module):
    """Parts of a layer's output are changed in place, one of them by a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.shift = nn.Linear(6, 4), nn.Parameter(torch.randn(2))

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.layer(inputs)
        found[..., :2].add_(self.shift)
        found[..., 1:3].sin_()
        return found


class SeveralOutputs(nn.Module):
    """One output feeds another, one is a view and one is there twice."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        features = self.body(inputs).tanh()
        return {"logits": self.head(features), "features": features, "again": features, "part": features[:, :2]}


class _Scaled(torch.autograd.Function):
    """A product of two weights, made where no observer looks."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(weight, scale)
        return weight * scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        weight, scale = ctx.saved_tensors
        return gradient * scale, gradient * weight


class WeightByFunction(nn.Module):
    """A weight that a custom function makes from two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(3, 6)), nn.Parameter(torch.randn(3, 6))

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.linear(inputs, _Scaled.apply(self.weight, self.scale))


CHANGING: list[tuple[str, Callable[[], nn.Module], Callable[[int], Tensor]]] = [
    ("adapter_changed_in_place", Adapted, lambda batch: torch.randn(batch, 5, 6)),
    ("views_changed_in_place", ViewsChanged, lambda batch: torch.randn(batch, 6)),
    ("several_outputs", SeveralOutputs, lambda batch: torch.randn(batch, 6)),
]
