"""The two small networks for 28x28 grey images: one skeleton, two paddings and two activations.

Both descend from the MNIST example of TensorFlow Privacy. ``dp_cnn_small`` is the tanh form of Papernot et al. (2021)
and Tramer and Boneh (2021); ``clipping_mnist_cnn`` is the ReLU form of Bu et al., "On the convergence and calibration
of deep learning with differential privacy". With 28x28 images both end in 512 features, so both have 26,010 parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from privet import checks
from privet.models.shapes import after_window, image_shape

_WIDTHS = (16, 32)
_HIDDEN_WIDTH = 32


def dp_cnn_small(input_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10) -> nn.Module:
    """Build DP-CNN/S: first padding 2, tanh. 26,010 parameters for 1x28x28 images and 10 classes."""
    return _small_cnn("DP-CNN/S", input_shape, num_classes, first_padding=2, activation=nn.Tanh)


def clipping_mnist_cnn(input_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10) -> nn.Module:
    """Build the MNIST network of the clipping paper: first padding 3, ReLU. 26,010 parameters for 1x28x28 images."""
    return _small_cnn("The clipping paper's MNIST CNN", input_shape, num_classes, first_padding=3, activation=nn.ReLU)


def _small_cnn(
    network: str,
    input_shape: Sequence[int],
    num_classes: int,
    *,
    first_padding: int,
    activation: Callable[[], nn.Module],
) -> nn.Module:
    channels, *sides = image_shape(network, input_shape)
    outputs = checks.count("num_classes", num_classes)
    # Both pools move by one pixel, as published: a stride of two would lose the 512 features the linear layer expects.
    windows = ((8, 2, first_padding), (2, 1, 0), (4, 2, 0), (2, 1, 0))
    for kernel, stride, padding in windows:
        sides = [after_window(network, side, kernel=kernel, stride=stride, padding=padding) for side in sides]
    return nn.Sequential(
        nn.Conv2d(channels, _WIDTHS[0], kernel_size=8, stride=2, padding=first_padding),
        activation(),
        nn.MaxPool2d(kernel_size=2, stride=1),
        nn.Conv2d(_WIDTHS[0], _WIDTHS[1], kernel_size=4, stride=2),
        activation(),
        nn.MaxPool2d(kernel_size=2, stride=1),
        nn.Flatten(),
        nn.Linear(_WIDTHS[1] * sides[0] * sides[1], _HIDDEN_WIDTH),
        activation(),
        nn.Linear(_HIDDEN_WIDTH, outputs),
    )
