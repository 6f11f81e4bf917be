"""Residual networks for small images, with group norms: batch norms mix examples and have no per-example gradient."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

_GROUPS = 16


class ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut, as in He et al. (2016)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False),
            nn.GroupNorm(_GROUPS, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.GroupNorm(_GROUPS, width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride=stride, bias=False), nn.GroupNorm(_GROUPS, width)
            )

    def forward(self, images: Tensor) -> Tensor:
        """Add the transformed images to the shortcut."""
        return (self.body(images) + self.shortcut(images)).relu()  # type: ignore[no-any-return]


def residual_network(blocks: Sequence[int], *, num_classes: int = 10, width: int = 64) -> nn.Module:
    """Return a residual network for images of 32 pixels with the given number of blocks in each of its stages."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        nn.GroupNorm(_GROUPS, width),
        nn.ReLU(),
    ]
    channels = width
    for stage, count in enumerate(blocks):
        own = width * 2**stage
        for place in range(count):
            layers.append(ResidualBlock(channels, own, stride=2 if stage and not place else 1))
            channels = own
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))


def resnet34() -> nn.Module:
    """Return ResNet-34 for CIFAR-10: 21.3 million weights."""
    return residual_network((3, 4, 6, 3))


def resnet18() -> nn.Module:
    """Return ResNet-18 for CIFAR-10: 11.2 million weights."""
    return residual_network((2, 2, 2, 2))
