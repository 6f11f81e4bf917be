"""The tanh network for CIFAR-10 of Papernot et al. (2021), "Tempered sigmoid activations for deep learning with DP".

Also used by Tramer and Boneh (2021), "Differentially private learning needs better features", and by the papers that
follow them. All activations are bounded, which keeps per-example gradients small; there is no normalisation layer.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from privet import checks
from privet.models.shapes import after_window, image_shape

_STAGE_WIDTHS = (32, 64, 128)
_HIDDEN_WIDTH = 128


def dp_cnn(input_shape: Sequence[int] = (3, 32, 32), num_classes: int = 10) -> nn.Module:
    """Build DP-CNN: three stages of two 3x3 convolutions and a 2x2 max-pool, then two linear layers, tanh throughout.

    550,570 parameters for 3x32x32 images and 10 classes.
    """
    channels, height, width = image_shape("DP-CNN", input_shape)
    outputs = checks.count("num_classes", num_classes)
    layers: list[nn.Module] = []
    for stage_width in _STAGE_WIDTHS:
        layers += [nn.Conv2d(channels, stage_width, kernel_size=3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(stage_width, stage_width, kernel_size=3, padding=1), nn.Tanh()]
        layers += [nn.MaxPool2d(kernel_size=2, stride=2)]
        channels = stage_width
        height = after_window("DP-CNN", height, kernel=2, stride=2)
        width = after_window("DP-CNN", width, kernel=2, stride=2)
    layers += [nn.Flatten(), nn.Linear(channels * height * width, _HIDDEN_WIDTH), nn.Tanh()]
    layers += [nn.Linear(_HIDDEN_WIDTH, outputs)]
    return nn.Sequential(*layers)
