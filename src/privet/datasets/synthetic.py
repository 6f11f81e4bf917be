"""Small synthetic tasks with a seed and one parameter for their difficulty."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from privet import checks
from privet.datasets.arrays import ArrayDataset, Split
from privet.datasets.info import DatasetInfo
from privet.errors import ArgumentError


def gaussian_blobs(
    *,
    num_train: int = 1_000,
    num_test: int = 200,
    num_features: int = 20,
    num_classes: int = 3,
    separation: float = 4.0,
    seed: int = 0,
) -> Split:
    """Make a classification task: one spherical Gaussian of unit variance per class.

    Args:
        num_train: training examples; may be zero.
        num_test: test examples, drawn from the same classes; may be zero.
        num_features: dimensions.
        num_classes: number of Gaussians.
        separation: distance of every centre from the origin, in standard deviations; zero gives no signal.
        seed: the same arguments and seed give the same data with one version of torch.
    """
    dimensions = checks.count("num_features", num_features)
    radius = checks.non_negative("separation", separation)
    generator = _generator(seed)
    centres = torch.randn(checks.count("num_classes", num_classes), dimensions, generator=generator)
    centres *= radius / centres.norm(dim=1, keepdim=True)
    return _around_centres("gaussian_blobs", centres, num_train, num_test, 1.0, generator)


def striped_images(
    *,
    num_train: int = 1_000,
    num_test: int = 200,
    image_shape: Sequence[int] = (1, 28, 28),
    num_classes: int = 4,
    noise_std: float = 0.5,
    seed: int = 0,
) -> Split:
    """Make an image task: the direction of stripes is the class, with Gaussian noise of ``noise_std`` on every pixel.

    The directions are spread evenly over half a turn, and the stripes range from -1 to 1. ``image_shape`` gives
    channels, height and width; the other arguments are those of :func:`gaussian_blobs`.
    """
    if len(image_shape) != 3:
        raise ArgumentError(f"image_shape must be (channels, height, width), got {tuple(image_shape)}.")
    channels, height, width = (checks.count("image_shape axis", size) for size in image_shape)
    classes = checks.count("num_classes", num_classes)
    angles = torch.arange(classes, dtype=torch.float32).reshape(-1, 1, 1) * (math.pi / classes)
    rows, columns = torch.arange(height).reshape(1, -1, 1), torch.arange(width).reshape(1, 1, -1)
    stripes = torch.sin((rows * torch.sin(angles) + columns * torch.cos(angles)) * (math.pi / 3))
    centres = stripes.unsqueeze(1).expand(-1, channels, -1, -1)
    deviation = checks.non_negative("noise_std", noise_std)
    return _around_centres("striped_images", centres, num_train, num_test, deviation, _generator(seed))


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(checks.count("seed", seed, minimum=0))


def _around_centres(
    name: str, centres: Tensor, num_train: int, num_test: int, noise_std: float, generator: torch.Generator
) -> Split:
    train_size = checks.count("num_train", num_train, minimum=0)
    test_size = checks.count("num_test", num_test, minimum=0)
    labels = torch.randint(len(centres), (train_size + test_size,), generator=generator)
    noise = torch.randn(len(labels), *centres.shape[1:], generator=generator)
    features = centres[labels] + noise_std * noise
    info = DatasetInfo(
        name=name,
        num_classes=len(centres),
        input_shape=tuple(centres.shape[1:]),
        class_names=tuple(str(number) for number in range(len(centres))),
        train_size=train_size,
        test_size=test_size,
        licence="made up by this library",
        source="made up by this library",
        public=True,
    )
    return Split(
        train=ArrayDataset(features=features[:train_size], labels=labels[:train_size]),
        test=ArrayDataset(features=features[train_size:], labels=labels[train_size:]),
        info=info,
    )
