"""A linear classifier on fixed edge features: the strongest small model for a small epsilon.

Noise grows with the number of trained parameters, so features without training help (Tramer and Boneh, "Differentially
private learning needs better features", 2021). The features are histograms of oriented gradients after Dalal and Triggs
(2005), without trained weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from privet import checks
from privet.models.convolutional import after_window, image_shape

_NUM_DIRECTIONS = 8  # four filters with both signs
_CELL = 4


class OrientedEdges(nn.Module):
    """Brightness and edge strength in eight directions, averaged over 4x4 cells, each map standardised per image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        slope = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]) / 4
        angles = torch.arange(_NUM_DIRECTIONS // 2) * (2 * math.pi / _NUM_DIRECTIONS)
        # an edge filter of any direction is a linear combination of the horizontal and the vertical one
        filters = angles.cos().view(-1, 1, 1) * slope + angles.sin().view(-1, 1, 1) * slope.mT
        self.channels = channels
        self.register_buffer("filters", filters.unsqueeze(1).repeat(channels, 1, 1, 1), persistent=False)
        self.filters: Tensor

    def forward(self, images: Tensor) -> Tensor:
        """Map ``[batch, channels, height, width]`` to ``[batch, 9 * channels, height / 4, width / 4]``."""
        slopes = functional.conv2d(images, self.filters, padding=1, groups=self.channels)
        rising, size = functional.avg_pool2d(slopes.relu(), _CELL), functional.avg_pool2d(slopes, _CELL)
        # the mean of the negative part is the mean of the positive part minus the mean of all
        maps = torch.cat([functional.avg_pool2d(images, _CELL), rising, rising - size], 1)
        return functional.layer_norm(maps, maps.shape[2:])


def oriented_edges(input_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10) -> nn.Module:
    """Build the classifier: 4,420 parameters for 1x28x28 images and 10 classes, all in its one linear layer."""
    channels, *sides = image_shape("The edge classifier", input_shape)
    sides = [after_window("The edge classifier", side, kernel=_CELL, stride=_CELL, padding=0) for side in sides]
    width = (1 + _NUM_DIRECTIONS) * channels * sides[0] * sides[1]
    return nn.Sequential(
        OrientedEdges(channels), nn.Flatten(), nn.Linear(width, checks.count("num_classes", num_classes))
    )
