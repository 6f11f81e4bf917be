"""Sizes of feature maps, so that a network states its layers once and fits any input it can serve."""

from __future__ import annotations

from collections.abc import Sequence

from privet import checks
from privet.errors import ArgumentError


def image_shape(network: str, input_shape: Sequence[int]) -> tuple[int, int, int]:
    """Return ``(channels, height, width)``; refuse any other number of axes."""
    if len(input_shape) != 3:
        raise ArgumentError(
            f"{network} reads images, so input_shape must be (channels, height, width), got {tuple(input_shape)}."
        )
    names = ("channels", "height", "width")
    channels, height, width = (
        checks.count(f"input_shape {name}", size) for name, size in zip(names, input_shape, strict=True)
    )
    return channels, height, width


def after_window(network: str, size: int, *, kernel: int, stride: int, padding: int = 0) -> int:
    """Return the size of one axis after a convolution or a pooling window has passed over it.

    Raises:
        ArgumentError: the window is larger than the padded axis, so the network has no output for this input.
    """
    room = size + 2 * padding - kernel
    if room < 0:
        raise ArgumentError(
            f"{network} cannot read images this small: a window of {kernel} meets an axis of {size + 2 * padding}. "
            f"Use larger images or another network."
        )
    return room // stride + 1
