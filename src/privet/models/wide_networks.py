"""Wide residual networks as they train best with noise (De et al. 2022): group norm, and standardised filters.

The order is convolution, ReLU, norm: activations come before the norm. Filters are standardised (Qiao et al. 2019), so
that their scale, which noise disturbs most, does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from privet import checks
from privet.errors import ArgumentError
from privet.models.convolutional import image_shape

_STEM, _NUM_GROUPS, _STAGES = 16, 16, 3
_SMALLEST_VARIANCE = 1e-4


class StandardisedConv2d(nn.Module):
    """A 2-D convolution whose filters have mean zero and, but for a gain of each output, unit length.

    The gain and the bias are trained. No padding is learned, and the kernel is square.
    """

    def __init__(self, channels: int, outputs: int, *, kernel_size: int, stride: int = 1) -> None:
        """Draw the filters as torch draws those of a convolution; gains are one and biases zero."""
        super().__init__()
        drawn = nn.Conv2d(channels, outputs, kernel_size=kernel_size)
        self.weight = nn.Parameter(drawn.weight.detach().clone())
        self.gain = nn.Parameter(torch.ones(outputs, 1, 1, 1))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.stride, self.padding = stride, kernel_size // 2

    @property
    def filters(self) -> Tensor:
        """The standardised filters."""
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        scale = torch.rsqrt(variance * self.weight[0].numel() + _SMALLEST_VARIANCE) * self.gain
        return (self.weight - mean) * scale

    def forward(self, images: Tensor) -> Tensor:
        """Convolve."""
        return functional.conv2d(images, self.filters, self.bias, stride=self.stride, padding=self.padding)


class WideBlock(nn.Module):
    """Two convolutions beside a shortcut, each after a ReLU and a group norm of its input."""

    def __init__(self, channels: int, width: int, *, stride: int) -> None:
        """Change the number of channels to ``width`` and divide height and width by the stride."""
        super().__init__()
        self.first_norm = _norm(channels)
        self.first = StandardisedConv2d(channels, width, kernel_size=3, stride=stride)
        self.second_norm = _norm(width)
        self.second = StandardisedConv2d(width, width, kernel_size=3)
        changes = stride != 1 or channels != width
        self.shortcut = StandardisedConv2d(channels, width, kernel_size=1, stride=stride) if changes else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Add the transformed images to the shortcut."""
        ready = self.first_norm(functional.relu(images))
        moved = self.second(self.second_norm(functional.relu(self.first(ready))))
        # The shortcut of a block that changes the shape starts from the input of the convolutions.
        found: Tensor = moved + self.shortcut(images if isinstance(self.shortcut, nn.Identity) else ready)
        return found


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(_NUM_GROUPS, channels)


class WideResidual(nn.Module):
    """A stem, three stages of blocks at widths 16, 32 and 64 times the widening, and a linear layer on their mean."""

    def __init__(self, channels: int, num_classes: int, *, depth: int, widening: int) -> None:
        """Build ``(depth - 4) / 6`` blocks a stage."""
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ArgumentError(f"A wide residual network has a depth of 6 n + 4, such as 16 or 40; got {depth}.")
        width = _STEM * checks.count("widening", widening)
        self.stem = StandardisedConv2d(channels, _STEM, kernel_size=3)
        blocks: list[nn.Module] = []
        before = _STEM
        for stage in range(_STAGES):
            for place in range((depth - 4) // 6):
                stride = 2 if stage and not place else 1
                blocks.append(WideBlock(before, width * 2**stage, stride=stride))
                before = width * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.norm = _norm(before)
        self.head = nn.Linear(before, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Classify by the mean over positions."""
        active = self.norm(functional.relu(self.blocks(self.stem(images))))
        found: Tensor = self.head(active.mean((2, 3)))
        return found


def wide_residual(
    input_shape: Sequence[int] = (3, 32, 32), num_classes: int = 10, *, depth: int = 16, widening: int = 4
) -> nn.Module:
    """Build WRN-16-4 with standardised filters, or one of another depth and widening."""
    channels, *_ = image_shape("A wide residual network", input_shape)
    outputs = checks.count("num_classes", num_classes)
    return WideResidual(channels, outputs, depth=checks.count("depth", depth), widening=widening)


def wrn_16_4(input_shape: Sequence[int] = (3, 32, 32), num_classes: int = 10) -> nn.Module:
    """Build WRN-16-4: 2.75 million parameters."""
    return wide_residual(input_shape, num_classes, depth=16, widening=4)


def wrn_40_4(input_shape: Sequence[int] = (3, 32, 32), num_classes: int = 10) -> nn.Module:
    """Build WRN-40-4: 8.95 million parameters."""
    return wide_residual(input_shape, num_classes, depth=40, widening=4)
