"""The two-layer ReLU network made convex: random gates that stay fixed, linear weights that are trained.

A ReLU network is linear in its first layer once it is fixed which units are on. Drawing those patterns at random, as
signs of ``u_i . x`` for fixed random ``u_i``, and giving every pattern its own weights turns training into a convex
problem (Pilanci and Ergen, 2020; Kim and Pilanci, 2024): ``f(x) = sum_i 1(u_i . x >= 0) V_i x``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from privet import checks
from privet.errors import ArgumentError
from privet.models.convex_losses import ConvexLoss, SoftmaxCrossEntropy

# Far below any length of real data, far above the smallest single-precision number.
_TINY = 1e-30


@runtime_checkable
class FeatureBound(Protocol):
    """How features are kept within a ball, each record by itself."""

    @property
    def radius(self) -> float:
        """The largest length of a record's features."""
        ...

    def scales(self, lengths: Tensor, active: Tensor, num_gates: int) -> Tensor:
        """Return the factor of each record, from the length of its input and the number of its gates that are on."""
        ...


@dataclass(frozen=True, kw_only=True)
class UnitFeatures:
    """Every record's features are scaled to exactly ``radius``; a record of zeros stays zero."""

    radius: float = 1.0

    def __post_init__(self) -> None:
        """Refuse radii that are not positive."""
        object.__setattr__(self, "radius", checks.positive("radius", self.radius))

    def scales(self, lengths: Tensor, active: Tensor, num_gates: int) -> Tensor:
        """Divide by the length of the gated input."""
        return self.radius / (lengths * active.sqrt()).clamp_min(_TINY)


@dataclass(frozen=True, kw_only=True)
class BoundedFeatures:
    """Inputs longer than ``radius`` are scaled down to it, shorter ones keep their length; gates share it evenly."""

    radius: float = 1.0

    def __post_init__(self) -> None:
        """Refuse radii that are not positive."""
        object.__setattr__(self, "radius", checks.positive("radius", self.radius))

    def scales(self, lengths: Tensor, active: Tensor, num_gates: int) -> Tensor:
        """Cut the input's length, and divide by the root of the number of gates."""
        return (self.radius / lengths.clamp_min(_TINY)).clamp_max(1.0) / math.sqrt(num_gates)


class ConvexRelu(nn.Module):
    """A two-layer ReLU network with fixed random gates, together with a convex loss and its proven constants.

    One linear map gives every gate's outputs at once; closed gates are then set to zero and all are summed. The
    features themselves, ``num_gates`` times as long as the input, are never written out.

    Args:
        input_shape: Shape of one example, without the batch axis.
        num_outputs: Number of outputs.
        num_gates: Number of random gates.
        loss: The loss that the constants are about.
        features: How a record's features are bounded.

    Guarantee:
        For every input whatever, the loss of a record is convex in the weights, with gradients of l2 norm at most
        ``gradient_bound`` that are ``smoothness``-Lipschitz. An input of zeros has no gradient. Gates are drawn from
        torch's generator, never from data, and may be published; the weights start at zero.
    """

    gates: Tensor

    def __init__(
        self,
        input_shape: Sequence[int],
        num_outputs: int,
        *,
        num_gates: int = 100,
        loss: ConvexLoss | None = None,
        features: FeatureBound | None = None,
    ) -> None:
        super().__init__()
        if len(input_shape) == 0:
            raise ArgumentError("input_shape must have at least one axis, got (). Give each example a feature axis.")
        width = math.prod(checks.count("input_shape axis", size) for size in input_shape)
        self.num_gates = checks.count("num_gates", num_gates)
        self.num_outputs = checks.count("num_outputs", num_outputs)
        self.loss: ConvexLoss = SoftmaxCrossEntropy() if loss is None else loss
        self.features: FeatureBound = UnitFeatures() if features is None else features
        self.loss.residual_bound(self.num_outputs)  # refuses a number of outputs that the loss does not have
        self.register_buffer("gates", torch.randn(self.num_gates, width))
        self.linear = nn.Linear(width, self.num_gates * self.num_outputs, bias=False)
        nn.init.zeros_(self.linear.weight)

    @property
    def gradient_bound(self) -> float:
        """Proven bound on the l2 norm of one record's gradient."""
        return self.loss.residual_bound(self.num_outputs) * self.features.radius

    @property
    def smoothness(self) -> float:
        """Proven Lipschitz constant of one record's gradient."""
        return self.loss.curvature * self.features.radius**2

    def forward(self, inputs: Tensor) -> Tensor:
        """Return one row of outputs per example."""
        flat = inputs.flatten(1)
        is_open = (flat @ self.gates.T >= 0).to(flat)
        lengths = flat.norm(dim=1)
        scales = self.features.scales(lengths, is_open.sum(1).clamp_min(1.0), self.num_gates)
        scaled = torch.nan_to_num(flat * scales[:, None], nan=0.0, posinf=0.0, neginf=0.0)
        gated = self.linear(scaled).unflatten(1, (self.num_gates, self.num_outputs))
        return torch.einsum("bgk,bg->bk", gated, is_open)

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return one loss per example: the function that ``gradient_bound`` and ``smoothness`` are about."""
        return self.loss.losses(self(inputs), targets)


def convex_relu(input_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10) -> ConvexRelu:
    """Build the network with 100 gates, softmax cross entropy and features of length one."""
    return ConvexRelu(input_shape, num_classes)
