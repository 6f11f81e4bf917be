"""LeNet-5 (LeCun et al., 1998) in its ReLU and max-pool form, and the PyTorch tutorial's CIFAR-10 network.

They are one skeleton: two 5x5 convolutions of 6 and 16 maps, each followed by a 2x2 pool, then 120-84-classes. LeNet-5
pads its first convolution by 2, so that 28x28 digits behave as the 32x32 ones of the original; the tutorial does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from privet import checks
from privet.models.shapes import after_window, image_shape


def lenet5(input_shape: Sequence[int] = (1, 28, 28), num_classes: int = 10) -> nn.Module:
    """Build LeNet-5. 61,706 parameters for 1x28x28 images and 10 classes."""
    return _five_layers("LeNet-5", input_shape, num_classes, first_padding=2)


def tutorial_cnn(input_shape: Sequence[int] = (3, 32, 32), num_classes: int = 10) -> nn.Module:
    """Build the CIFAR-10 network of the PyTorch tutorial. 62,006 parameters for 3x32x32 images and 10 classes."""
    return _five_layers("The tutorial CNN", input_shape, num_classes, first_padding=0)


def _five_layers(network: str, input_shape: Sequence[int], num_classes: int, *, first_padding: int) -> nn.Module:
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
