"""The two-layer ReLU network made convex: random gates that stay fixed, linear weights that are trained.

A ReLU network with fixed activation patterns is linear in its first layer. With random patterns, the signs of
``u_i . x`` for fixed random ``u_i``, and separate weights for every pattern, training is a convex problem (Pilanci and
Ergen, 2020; Kim and Pilanci, 2024): ``f(x) = sum_i 1(u_i . x >= 0) V_i x``.
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

# Far below any norm of real data, far above the smallest single-precision number.
_TINY = 1e-30


@runtime_checkable
class FeatureBound(Protocol):
    """A bound on the norm of features, applied to each record separately.

    Attributes:
        radius: The largest norm of a record's features.
    """

    @property
    def radius(self) -> float: ...

    def scales(self, lengths: Tensor, active: Tensor, num_gates: int) -> Tensor:
        """Return the factor of each record, from the norm of its input and the number of its open gates."""
        ...


@dataclass(frozen=True, kw_only=True)
class _Ball:
    radius: float = 1.0

    def __post_init__(self) -> None:
        checks.fields(self, checks.positive, "radius")


@dataclass(frozen=True, kw_only=True)
class UnitFeatures(_Ball):
    """Every record's features are scaled to norm ``radius``; a record of zeros stays zero."""

    def scales(self, lengths: Tensor, active: Tensor, num_gates: int) -> Tensor:
        return self.radius / (lengths * active.sqrt()).clamp_min(_TINY)


@dataclass(frozen=True, kw_only=True)
class BoundedFeatures(_Ball):
    """Inputs are clipped in norm to ``radius``, and divided by the root of the number of gates."""

    def scales(self, lengths: Tensor, active: Tensor, num_gates: int) -> Tensor:
        return (self.radius / lengths.clamp_min(_TINY)).clamp_max(1.0) / math.sqrt(num_gates)


class ConvexRelu(nn.Module):
    """A two-layer ReLU network with fixed random gates, together with a convex loss and its proven constants.

    One linear map computes the outputs of all gates; closed gates are set to zero and all are summed. The features
    themselves, ``num_gates`` times as wide as the input, are never formed.

    Args:
        input_shape: Shape of one example, without the batch axis.
        num_outputs: Number of outputs.
        num_gates: Number of random gates.
        loss: The loss with proven constants.
        features: The bound on a record's features.

    Guarantee:
        For any input, the loss of a record is convex in the weights, with gradients of l2 norm at most
        ``gradient_bound`` that are ``smoothness``-Lipschitz. The gradient for an input of zeros is zero. Gates are
        drawn from torch's generator, never from data, and are public; the weights start at zero.
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
        self.loss.residual_bound(self.num_outputs)  # raises for an unsupported number of outputs
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
        """Return one loss per example, with the constants ``gradient_bound`` and ``smoothness``."""
        return self.loss.losses(self(inputs), targets)


def convex_relu(input_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10) -> ConvexRelu:
    """Build the network with 100 gates, softmax cross entropy and features of norm one."""
    return ConvexRelu(input_shape, num_classes)
