"""A linear model, with optional fixed curved features, that learns mean and spread of its inputs by noisy gradients.

Columns of a table scaled by declared ranges have means far from the middle and small spreads, and descent is slow along
such columns. Means and spreads of the records would have to be released with noise and charged apart. Here they are
learned by the same steps as the weights: the layer ``statistics`` has the loss ``-w . u(x)``, whose gradient in ``w``
is ``-u(x)`` for each record, whatever ``w`` is. So plain descent makes ``w`` a multiple of the sum of the noisy sums of
``u(x) = (values, squares, 1)`` of all steps so far, and a quotient of its parts is a mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from privet import checks
from privet.models.model_sizes import STATISTICS_NORM

_FARTHEST = 3.0  # standardised values beyond this are clamped
_LEAST_SPREAD = 0.02
_LEAST_COUNT = 1e-6
# The sums of statistics carry noise, whose size relative to the sum of ones is that of this number over the sum where
# the rate of the layer follows the declared size, as in the recipe of ``privet train FILE``: a smaller variance could
# not be told from noise.
_NOISE_OF_SUMS = 0.08
_LENGTH_OF_CURVES = 1.5


class StandardisedModel(nn.Module):
    """Softmax, linear or Poisson regression on inputs standardised by privately learned means and spreads.

    Inputs are in [0, 1], as tables are scaled by their declared ranges.

    Guarantee:
        None of its own: statistics and weights are parameters, released by the clipped noisy steps of a plan like any
        other. The gradient of a record in ``statistics`` is at most ``STATISTICS_NORM`` long for inputs in [0, 1], so a
        group bound of that size clips no record and leaves the means unbiased; inputs outside are clamped. The
        outputs of a record depend on other records through the weights alone.
    """

    def __init__(
        self, num_inputs: int, num_outputs: int, *, num_curves: int = 0, width: float = 1.0, intercept: float = 1.0
    ) -> None:
        """Make the model with all weights zero.

        Args:
            num_inputs: Columns of the encoded table.
            num_outputs: Outputs of the task.
            num_curves: Fixed random cosines of the standardised inputs beside them, for relations that are not linear.
            width: How far the cosines reach, in standard deviations.
            intercept: The constant input, whose part of a record's gradient is lost to the columns where it is clipped.
        """
        super().__init__()
        size = checks.count("num_inputs", num_inputs)
        self.intercept = checks.positive("intercept", intercept)
        self.statistics = nn.Linear(2 * size + 1, 1, bias=False)
        self.linear = nn.Linear(size + 1 + num_curves, checks.count("num_outputs", num_outputs), bias=False)
        nn.init.zeros_(self.statistics.weight)
        nn.init.zeros_(self.linear.weight)
        generator = torch.Generator().manual_seed(0)  # a public constant: the cosines are part of the network
        directions = torch.randn((size, num_curves), generator=generator) / (width * math.sqrt(size))
        self.directions: Tensor
        self.phases: Tensor
        self.register_buffer("directions", directions)
        self.register_buffer("phases", 2 * math.pi * torch.rand(num_curves, generator=generator))

    def statistics_losses(self, features: Tensor) -> Tensor:
        """Return the loss of each record whose descent adds up values and squares of the inputs."""
        values = _centred(features)
        ones = torch.ones_like(values[:, :1])
        parts = torch.cat([values, values.square(), ones], 1) * (STATISTICS_NORM / math.sqrt(2 * values.shape[1] + 1))
        sums: Tensor = self.statistics(parts)
        return -sums.squeeze(1)

    def forward(self, features: Tensor) -> Tensor:
        values = _centred(features)
        means, spreads = self._means_and_spreads(values.shape[1])
        scaled = ((values - means) / spreads).clamp(-_FARTHEST, _FARTHEST)
        size = scaled.shape[1]
        parts = [scaled / math.sqrt(size), torch.full_like(scaled[:, :1], self.intercept)]
        if self.directions.shape[1]:
            curves = torch.cos(scaled @ self.directions + self.phases)
            parts.append(curves * (_LENGTH_OF_CURVES * math.sqrt(2 / self.directions.shape[1])))
        outputs: Tensor = self.linear(torch.cat(parts, 1))
        return outputs

    def _means_and_spreads(self, size: int) -> tuple[Tensor, Tensor]:
        """Return the learned means and spreads; before the first step those of the middle of the ranges."""
        sums = self.statistics.weight.detach().squeeze(0)
        count = sums[-1:].clamp(min=_LEAST_COUNT)
        means = (sums[:size] / count).clamp(-1.0, 1.0)
        squares = (sums[size : 2 * size] / count).clamp(0.0, 1.0)
        least = (_NOISE_OF_SUMS / count).clamp(min=_LEAST_SPREAD**2)
        return means, torch.maximum(squares - means.square(), least).sqrt()


def _centred(features: Tensor) -> Tensor:
    """Return inputs from 0 to 1 on the scale from -1 to 1; others are clamped, NaN counts as the middle."""
    return torch.nan_to_num(2 * features.flatten(1) - 1, nan=0.0).clamp(-1.0, 1.0)


def table_linear(input_shape: Sequence[int] = (8,), num_classes: int = 1) -> nn.Module:
    """Build the regression on standardised columns: softmax, linear or Poisson by the task."""
    return StandardisedModel(math.prod(input_shape), num_classes)


def table_curved(input_shape: Sequence[int] = (8,), num_classes: int = 1) -> nn.Module:
    """Build the same with 200 fixed cosines of the standardised columns beside them, for tables of many records."""
    return StandardisedModel(math.prod(input_shape), num_classes, num_curves=200)


def table_classes(input_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10) -> nn.Module:
    """Build the softmax regression for more than two classes, which leaves more of a clipped gradient to the columns.

    Each of many classes is rare, so that little is to be learned by an intercept, and its share of a record's gradient
    would be that of all columns together.
    """
    return StandardisedModel(math.prod(input_shape), num_classes, intercept=num_classes**-0.5)
