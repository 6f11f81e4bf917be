"""Sensitivity of a model's loss to noise in each coordinate, and the expected cost of a noise distribution.

The sensitivity of a model is the derivative of its mean loss by every parameter (Xiang, Yang and Li 2019). It is an
exact function of the examples, so they must be public: with private examples, a guarantee that depends on it is void.
To first order zero-mean noise does not change the mean loss; the weighted absolute noise computed here is a scale for
the change of the loss by one draw, not its expected increase.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privet import checks
from privet.errors import ArgumentError
from privet.mechanism.grouping import Grouping, OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.noise import MultipliedNoise
from privet.mechanism.sensitivity import Sensitivity

Losses = Callable[[Tensor, Tensor], Tensor]
Array = NDArray[np.float64]
_CHUNK = 1024


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelSensitivity:
    """The derivative of the mean loss by every trainable coordinate, in absolute value.

    Attributes:
        layout: Position of each parameter in the vector of coordinates.
        weights: Non-negative, one per coordinate.
    """

    layout: Layout
    weights: Array

    def expected_cost(self, noise: MultipliedNoise, sensitivity: Sensitivity) -> float:
        """Return the mean of ``sum_i weight_i |noise_i|`` for one release.

        Args:
            noise: The calibrated noise.
            sensitivity: The clipping bounds per group; for noise with a geometry, in its units.

        Edge cases: noise without a multiplier is refused.
        """
        return float(noise.mean_noise(self.layout, sensitivity) @ self.weights)


def measure_sensitivity(
    model: nn.Module, losses: Losses, features: Tensor, labels: Tensor, *, grouping: Grouping | None = None
) -> ModelSensitivity:
    """Measure the sensitivity of a model on public examples.

    Args:
        model: The model; it is not changed.
        losses: Maps outputs and labels to one loss per example.
        features: Features of the public examples.
        labels: Labels of the public examples.
        grouping: Grouping of the plan whose noise is evaluated; one group by default.
    """
    named = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    layout = Layout.of([(name, tuple(value.shape)) for name, value in named], grouping or OneGroup())
    count = checks.count("the number of public examples", len(features))
    total = torch.zeros(layout.num_coordinates, dtype=torch.float64)
    for start in range(0, count, _CHUNK):
        part = slice(start, start + _CHUNK)
        loss = losses(model(features[part]), labels[part]).sum()
        found = torch.autograd.grad(loss, [value for _, value in named], allow_unused=True, materialize_grads=True)
        total += torch.cat([gradient.reshape(-1) for gradient in found]).double().cpu()
    if not bool(total.isfinite().all()):
        raise ArgumentError("The gradient of the mean loss is not finite. Measure on examples with finite losses.")
    return ModelSensitivity(layout=layout, weights=(total / count).abs().numpy())
