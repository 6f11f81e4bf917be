"""Losses that are convex in a model's outputs, with proven constants.

For outputs that are linear in the weights, ``z = V phi``, the gradient of a record is ``r(z) phi^T``, where ``r`` is
the gradient of its loss in the outputs. If ``|phi| <= R``, ``|r| <= residual_bound`` and ``r`` is Lipschitz with the
constant ``curvature``, then the record's gradient is bounded by ``residual_bound * R`` and is Lipschitz in the weights
with the constant ``curvature * R^2``.

Clipping is part of the loss, and only in forms that keep the loss convex: clipping a monotone function of one variable
(Song et al., 2021), or radial clipping of the squared loss, whose residual is the identity. Radial clipping of the
softmax residual is not the gradient of a convex function for three classes or more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

from privet import checks
from privet.errors import ArgumentError


@runtime_checkable
class ConvexLoss(Protocol):
    """A loss per example that is convex in the outputs; its gradient has the Lipschitz constant ``curvature``."""

    @property
    def curvature(self) -> float: ...

    def residual_bound(self, num_outputs: int) -> float:
        """Return the bound on the l2 norm of the gradient in the outputs, by the number of outputs."""
        ...

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return one loss per row."""
        ...


@dataclass(frozen=True, kw_only=True)
class SoftmaxCrossEntropy:
    """Softmax cross entropy without clipping; labels are class numbers.

    Guarantee:
        The residual is ``p - e_y`` for a probability vector ``p``, of norm at most sqrt(2). Its derivative is
        ``diag(p) - p p^T``, whose largest eigenvalue is at most 1/2.
    """

    @property
    def curvature(self) -> float:
        return 0.5  # attained at two equal probabilities

    def residual_bound(self, num_outputs: int) -> float:
        if checks.count("num_outputs", num_outputs) < 2:
            raise ArgumentError("The softmax needs two outputs or more, got 1. Use OneVsRestLogistic for one output.")
        return math.sqrt(2)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="none")


@dataclass(frozen=True, kw_only=True)
class OneVsRestLogistic:
    """One logistic loss per output with its residual clipped to ``largest_residual``; labels are class numbers.

    Attributes:
        largest_residual: Clipping bound of each output's residual, in (0, 1]; 1 clips nothing. Beyond the bound the
            loss is linear, so it stays convex.

    Guarantee:
        A clipped monotone function is monotone with no larger slope: each output's loss is convex and 1/4-smooth, and
        the norm of the residual is at most ``largest_residual * sqrt(num_outputs)``. With one output, labels are 0 and
        1.
    """

    largest_residual: float = 1.0

    def __post_init__(self) -> None:
        cut = checks.probability("largest_residual", self.largest_residual, allow_one=True)
        object.__setattr__(self, "largest_residual", cut)

    @property
    def curvature(self) -> float:
        return 0.25  # attained at probability one half

    def residual_bound(self, num_outputs: int) -> float:
        return self.largest_residual * math.sqrt(checks.count("num_outputs", num_outputs))

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        wanted = targets.to(outputs)[:, None] if outputs.shape[1] == 1 else _one_hot(outputs, targets)
        against = (1 - 2 * wanted) * outputs
        if self.largest_residual == 1:
            return functional.softplus(against).sum(1)
        # softplus up to the point where its slope is the largest residual, then linear with that slope
        bend = math.log(self.largest_residual) - math.log1p(-self.largest_residual)
        near = functional.softplus(against.clamp_max(bend))
        return (near + self.largest_residual * (against - bend).clamp_min(0)).sum(1)


@dataclass(frozen=True, kw_only=True)
class RadialSquared:
    """Half the squared distance to the target, with the residual clipped to norm ``largest_residual`` (vector Huber).

    Targets are class numbers, encoded one-hot, or rows of real numbers.

    Attributes:
        largest_residual: Clipping bound of the residual's norm.

    Guarantee:
        The clipped residual is the projection onto a ball, which is firmly non-expansive: it is the gradient of a
        convex, 1-smooth function, for any number of outputs.
    """

    largest_residual: float = 1.0

    def __post_init__(self) -> None:
        checks.fields(self, checks.positive, "largest_residual")

    @property
    def curvature(self) -> float:
        return 1.0  # half a square

    def residual_bound(self, num_outputs: int) -> float:
        checks.count("num_outputs", num_outputs)
        return self.largest_residual

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        wanted = targets if targets.is_floating_point() else _one_hot(outputs, targets)
        squares = (outputs - wanted.reshape(outputs.shape)).square().sum(1)
        cut = self.largest_residual
        # torch.where evaluates both branches; the clamp avoids the infinite slope of the root at zero
        distances = squares.clamp_min(cut**2).sqrt()
        return torch.where(squares <= cut**2, squares / 2, cut * distances - cut**2 / 2)


def _one_hot(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.one_hot(targets, outputs.shape[1]).to(outputs)
