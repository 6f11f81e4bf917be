"""The tanh networks on scattering features of Tramer and Boneh (2021), "DP learning needs better features".

They read what :class:`privet.datasets.scattering.Scattering` makes of an image. Its channels differ in size by orders
of magnitude, so they are normalised first: group by group within one example, which nothing has to be paid for. (The
authors also normalise by noisy means over all examples, which costs epsilon 0.69 before training begins. With
``num_groups=None`` the networks leave it to that: :class:`privet.training.normalisation.PrivateNormalisation`.)
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from privet import checks
from privet.errors import ArgumentError
from privet.models.shapes import after_window, image_shape

_NUM_GROUPS = 27


def h_cnn(
    input_shape: Sequence[int] = (243, 8, 8), num_classes: int = 10, *, num_groups: int | None = _NUM_GROUPS
) -> nn.Module:
    """Build H-CNN: two 3x3 convolutions of 64 channels around a 2x2 max-pool, then one linear layer.

    187,210 parameters for the 243x8x8 features of a 3x32x32 image and 10 classes.
    """
    channels, *sides = image_shape("H-CNN", input_shape)
    outputs = checks.count("num_classes", num_classes)
    height, width = (after_window("H-CNN", side, kernel=2, stride=2) for side in sides)
    return nn.Sequential(
        _group_norm("H-CNN", channels, num_groups),
        nn.Conv2d(channels, 64, kernel_size=3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(kernel_size=2, stride=2),
        nn.Conv2d(64, 64, kernel_size=3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(64 * height * width, outputs),
    )


def h_cnn_small(
    input_shape: Sequence[int] = (81, 7, 7), num_classes: int = 10, *, num_groups: int | None = _NUM_GROUPS
) -> nn.Module:
    """Build H-CNN/S: 3x3 convolutions of 16 channels at stride 2 and of 32 channels, then two linear layers.

    33,066 parameters for the 81x7x7 features of a 1x28x28 image and 10 classes.
    """
    channels, *sides = image_shape("H-CNN/S", input_shape)
    outputs = checks.count("num_classes", num_classes)
    height, width = (after_window("H-CNN/S", side, kernel=3, stride=2, padding=1) for side in sides)
    return nn.Sequential(
        _group_norm("H-CNN/S", channels, num_groups),
        nn.Conv2d(channels, 16, kernel_size=3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(32 * height * width, 32),
        nn.Tanh(),
        nn.Linear(32, outputs),
    )


def _group_norm(network: str, channels: int, num_groups: int | None) -> nn.Module:
    if num_groups is None:
        return nn.Identity()
    groups = checks.count("num_groups", num_groups)
    if channels % groups:
        raise ArgumentError(
            f"{network} normalises its input in {groups} groups of equally many channels, and {channels} channels "
            "cannot be divided so. Scattering features have 81 channels per colour; pass them, or another num_groups."
        )
    return nn.GroupNorm(groups, channels, affine=False)
