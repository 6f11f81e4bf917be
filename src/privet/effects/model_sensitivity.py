"""Sensitivity of a model to noise in each coordinate, and the expected cost of any noise.

The sensitivity of a model is the derivative of its mean loss by every parameter (Xiang, Yang and Li 2019). It is an
exact function of the examples it is measured on, so they must be public: measured on private ones it would void any
guarantee that rests on it. To first order zero-mean noise costs nothing on average; the weighted absolute noise that is
computed here says how far the loss can be pushed by it, not how far it will be.
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
        layout: Where each parameter lies.
        weights: One per coordinate, zero or more.
    """

    layout: Layout
    weights: Array

    def expected_cost(self, noise: MultipliedNoise, sensitivity: Sensitivity) -> float:
        """Return the mean of ``sum_i weight_i |noise_i|`` for one release.

        Args:
            noise: Calibrated.
            sensitivity: The bound of clipping, per group; in the units of the noise where it has a geometry.

        Edge cases: a model that no coordinate matters to has cost 0; noise without a multiplier is refused.
        """
        return float(noise.mean_noise(self.layout, sensitivity) @ self.weights)


def model_sensitivity(
    model: nn.Module, losses: Losses, features: Tensor, labels: Tensor, *, grouping: Grouping | None = None
) -> ModelSensitivity:
    """Measure a model on public examples.

    Args:
        model: As it stands; it is not changed.
        losses: From outputs and labels to one loss per example.
        features: Of the public examples.
        labels: Of the public examples.
        grouping: Of the plan whose noise is to be judged; one group by default.
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
