"""Fully connected networks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from privet import checks
from privet.errors import ArgumentError


def mlp(
    input_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10, hidden_widths: Sequence[int] = (1000,)
) -> nn.Module:
    """Build a multi-layer perceptron with ReLU between its layers.

    Inputs are flattened. Without hidden layers this is multinomial logistic regression. The default is 784-1000-10:
    795,010 parameters.

    Args:
        input_shape: shape of one example, without the batch axis.
        num_classes: number of outputs; 1 for a regression.
        hidden_widths: widths of the hidden layers, in order; may be empty.
    """
    if len(input_shape) == 0:
        raise ArgumentError("input_shape must have at least one axis, got (). Give each example a feature axis.")
    width = math.prod(checks.count("input_shape axis", size) for size in input_shape)
    outputs = checks.count("num_classes", num_classes)
    layers: list[nn.Module] = [nn.Flatten()]
    for hidden_width in hidden_widths:
        next_width = checks.count("hidden width", hidden_width)
        layers += [nn.Linear(width, next_width), nn.ReLU()]
        width = next_width
    layers += [nn.Linear(width, outputs)]
    return nn.Sequential(*layers)


def mlp_1000(input_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10) -> nn.Module:
    """Build the one-hidden-layer network of width 1,000."""
    return mlp(input_shape, num_classes, hidden_widths=(1000,))


def mlp_64_64(input_shape: Sequence[int] = (8,), num_classes: int = 1) -> nn.Module:
    """Build the two-hidden-layer network of width 64 used for tables; one output is a regression."""
    return mlp(input_shape, num_classes, hidden_widths=(64, 64))


def logistic_regression(input_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10) -> nn.Module:
    """Build the linear classifier, whose training is a convex problem."""
    return mlp(input_shape, num_classes, hidden_widths=())
