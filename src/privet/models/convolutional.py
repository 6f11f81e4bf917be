"""Convolutional networks of the published experiments, without interaction between examples or trained normalisation.

DP-CNN (Papernot et al. 2021, "Tempered sigmoid activations for deep learning with DP") and DP-CNN/S are the tanh
networks that Tramer and Boneh (2021, "Differentially private learning needs better features") and their successors use:
bounded activations give small per-example gradients. H-CNN and H-CNN/S are the networks of Tramer and Boneh on
scattering features. The MNIST network of the clipping paper is that of Bu et al., "On the convergence and calibration
of deep learning with differential privacy". LeNet-5 (LeCun et al. 1998) has ReLU and max-pooling here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from privet import checks
from privet.errors import ArgumentError

_STAGE_WIDTHS = (32, 64, 128)
_STAGES_HIDDEN_WIDTH = 128
_SMALL_WIDTHS, _SMALL_HIDDEN_WIDTH = (16, 32), 32
_NUM_GROUPS = 27


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
    """Return the size of one axis after a convolution or pooling.

    Raises:
        ArgumentError: the window is larger than the padded axis.
    """
    room = size + 2 * padding - kernel
    if room < 0:
        raise ArgumentError(
            f"{network} cannot read images this small: a window of {kernel} exceeds an axis of {size + 2 * padding}. "
            f"Use larger images or another network."
        )
    return room // stride + 1


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
    layers += [nn.Flatten(), nn.Linear(channels * height * width, _STAGES_HIDDEN_WIDTH), nn.Tanh()]
    layers += [nn.Linear(_STAGES_HIDDEN_WIDTH, outputs)]
    return nn.Sequential(*layers)


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
    """Build the small network for 28x28 grey images, after the MNIST example of TensorFlow Privacy."""
    channels, *sides = image_shape(network, input_shape)
    outputs = checks.count("num_classes", num_classes)
    # Both pools have stride 1, as published: with stride 2 the linear layer would not have 512 inputs.
    windows = ((8, 2, first_padding), (2, 1, 0), (4, 2, 0), (2, 1, 0))
    for kernel, stride, padding in windows:
        sides = [after_window(network, side, kernel=kernel, stride=stride, padding=padding) for side in sides]
    return nn.Sequential(
        nn.Conv2d(channels, _SMALL_WIDTHS[0], kernel_size=8, stride=2, padding=first_padding),
        activation(),
        nn.MaxPool2d(kernel_size=2, stride=1),
        nn.Conv2d(_SMALL_WIDTHS[0], _SMALL_WIDTHS[1], kernel_size=4, stride=2),
        activation(),
        nn.MaxPool2d(kernel_size=2, stride=1),
        nn.Flatten(),
        nn.Linear(_SMALL_WIDTHS[1] * sides[0] * sides[1], _SMALL_HIDDEN_WIDTH),
        activation(),
        nn.Linear(_SMALL_HIDDEN_WIDTH, outputs),
    )


def h_cnn(
    input_shape: Sequence[int] = (243, 8, 8), num_classes: int = 10, *, num_groups: int | None = _NUM_GROUPS
) -> nn.Module:
    """Build H-CNN: two 3x3 convolutions of 64 channels around a 2x2 max-pool, then one linear layer.

    Channels of scattering features differ in scale by orders of magnitude, so groups of them are normalised within each
    example, which has no privacy cost. (Tramer and Boneh also normalise by noisy means over all examples, which costs
    epsilon 0.69 before training. ``num_groups=None`` omits the normalisation, for use with
    :class:`privet.training.private_statistics.normalisation.PrivateNormalisation`.)

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
            f"{network} normalises its input in {groups} groups of equally many channels, and {channels} is not "
            "divisible. Scattering features have 81 channels per colour; pass them, or another num_groups."
        )
    return nn.GroupNorm(groups, channels, affine=False)


def lenet5(input_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10) -> nn.Module:
    """Build LeNet-5. 61,706 parameters for 1x28x28 images and 10 classes."""
    return _five_layers("LeNet-5", input_shape, num_classes, first_padding=2)


def tutorial_cnn(input_shape: Sequence[int] = (3, 32, 32), num_classes: int = 10) -> nn.Module:
    """Build the CIFAR-10 network of the PyTorch tutorial. 62,006 parameters for 3x32x32 images and 10 classes."""
    return _five_layers("The tutorial CNN", input_shape, num_classes, first_padding=0)


def _five_layers(network: str, input_shape: Sequence[int], num_classes: int, *, first_padding: int) -> nn.Module:
    """Build two 5x5 convolutions of 6 and 16 maps with 2x2 pools, then 120-84-classes.

    LeNet-5 pads its first convolution by 2, so that 28x28 digits correspond to the 32x32 digits of the original.
    """
    channels, *sides = image_shape(network, input_shape)
    outputs = checks.count("num_classes", num_classes)
    for kernel, stride, padding in ((5, 1, first_padding), (2, 2, 0), (5, 1, 0), (2, 2, 0)):
        sides = [after_window(network, side, kernel=kernel, stride=stride, padding=padding) for side in sides]
    return nn.Sequential(
        nn.Conv2d(channels, 6, kernel_size=5, padding=first_padding),
        nn.ReLU(),
        nn.MaxPool2d(kernel_size=2, stride=2),
        nn.Conv2d(6, 16, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(kernel_size=2, stride=2),
        nn.Flatten(),
        nn.Linear(16 * sides[0] * sides[1], 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, outputs),
    )
