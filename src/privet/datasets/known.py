"""The known data sets: their public facts as constants, and the loader of each.

Facts do not need torch; ``load`` imports the loaders.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from privet import checks
from privet.datasets.columns import ADULT, CALIFORNIA_HOUSING, WINE_RED
from privet.datasets.info import AS_STORED, DatasetInfo, Normalisation
from privet.errors import DataError

if TYPE_CHECKING:
    from privet.datasets.arrays import Split
    from privet.datasets.data_folder import DataFolder

# The loaders map bytes to numbers from 0 to 1, so for images this is the identity.
_UNIT_INTERVAL = Normalisation(name="unit_interval", shift=(0.0,), scale=(1.0,), bounds=(0.0, 1.0))

_FASHION_MNIST = DatasetInfo(
    name="fashion_mnist",
    num_classes=10,
    input_shape=(1, 28, 28),
    class_names=(
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    train_size=60_000,
    test_size=10_000,
    licence="MIT, Copyright 2017 Zalando SE",
    source="H. Xiao, K. Rasul, R. Vollgraf (2017), Fashion-MNIST; https://github.com/zalandoresearch/fashion-mnist",
    public=True,
    normalisations=(_UNIT_INTERVAL, Normalisation(name="standardized", shift=(0.2860,), scale=(0.3530,))),
)

_IMAGENET = Normalisation(name="imagenet", shift=(0.485, 0.456, 0.406), scale=(0.229, 0.224, 0.225))
_CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)

_INFOS = (
    DatasetInfo(
        name="mnist",
        num_classes=10,
        input_shape=(1, 28, 28),
        class_names=tuple("0123456789"),
        train_size=60_000,
        test_size=10_000,
        licence="CC BY-SA 3.0 as commonly redistributed; Copyright Yann LeCun and Corinna Cortes",
        source="Y. LeCun, C. Cortes, C. Burges (1998), The MNIST database; http://yann.lecun.com/exdb/mnist",
        public=True,
        normalisations=(_UNIT_INTERVAL, Normalisation(name="standardized", shift=(0.1307,), scale=(0.3081,))),
    ),
    _FASHION_MNIST,
    replace(
        _FASHION_MNIST,
        name="fashion_mnist_small",
        train_size=10_000,
        test_size=2_000,
        source=f"1,000 training and 200 test images per class of: {_FASHION_MNIST.source}; part of this package",
    ),
    DatasetInfo(
        name="cifar10",
        num_classes=10,
        input_shape=(3, 32, 32),
        class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        train_size=50_000,
        test_size=10_000,
        licence="no formal licence; the author asks to be cited",
        source="A. Krizhevsky (2009), Learning multiple layers of features from tiny images; "
        "https://www.cs.toronto.edu/~kriz/cifar.html (binary version)",
        public=True,
        normalisations=(
            _UNIT_INTERVAL,
            Normalisation(name="standardized", shift=_CIFAR10_MEAN, scale=(0.2470, 0.2435, 0.2616)),
            # Many published results divide by the mean of the standard deviations of single images.
            Normalisation(name="per_image_std", shift=_CIFAR10_MEAN, scale=(0.2023, 0.1994, 0.2010)),
            _IMAGENET,
        ),
    ),
    DatasetInfo(
        name="svhn",
        num_classes=10,
        input_shape=(3, 32, 32),
        class_names=tuple("0123456789"),
        train_size=73_257,
        test_size=26_032,
        licence="for non-commercial use only, as the authors state; they ask to be cited",
        source="Y. Netzer et al. (2011), Reading digits in natural images with unsupervised feature learning; the "
        "Street View House Numbers, cropped digits (format 2), as their authors publish them: train_32x32.mat and "
        "test_32x32.mat",
        public=True,
        normalisations=(
            _UNIT_INTERVAL,
            Normalisation(name="standardized", shift=(0.4377, 0.4438, 0.4728), scale=(0.1980, 0.2010, 0.1970)),
            _IMAGENET,
        ),
    ),
    CALIFORNIA_HOUSING,
    WINE_RED,
    ADULT,
    DatasetInfo(
        name="sst2",
        num_classes=2,
        input_shape=(64,),
        class_names=("negative", "positive"),
        train_size=67_349,
        test_size=872,
        licence="no formal licence; the authors ask to be cited",
        source="R. Socher et al. (2013); https://gluebenchmark.com/tasks (SST-2)",
        public=True,
        normalisations=(AS_STORED,),
        holds_tokens=True,
    ),
)

# Loader of each data set: module and function.
_LOADERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "mnist": ("images", "load_mnist"),
        "fashion_mnist": ("images", "load_fashion_mnist"),
        "fashion_mnist_small": ("images", "load_fashion_mnist_small"),
        "cifar10": ("images", "load_cifar10"),
        "svhn": ("svhn", "load_svhn"),
        "california_housing": ("tabular", "load_california_housing"),
        "wine_red": ("tabular", "load_wine_red"),
        "adult": ("tabular", "load_adult"),
        "sst2": ("tokens", "load_sst2_tokens"),
    }
)

# Scattering features by the name of the images: 81 channels per colour, a quarter of the height and width.
SCATTERED: Mapping[str, str] = MappingProxyType(
    {name: f"{name}_scattering" for name in ("mnist", "fashion_mnist", "fashion_mnist_small", "cifar10", "svhn")}
)


def _scattered(info: DatasetInfo) -> DatasetInfo:
    colours, height, width = info.input_shape
    return replace(info, name=SCATTERED[info.name], input_shape=(81 * colours, height // 4, width // 4))


KNOWN_DATASETS: Mapping[str, DatasetInfo] = MappingProxyType(
    {info.name: info for info in (*_INFOS, *(_scattered(info) for info in _INFOS if info.name in SCATTERED))}
)


def describe(name: str) -> DatasetInfo:
    """Return the public facts about a data set without reading it.

    Raises:
        DataError: no data set has this name; the message lists all names and suggests the nearest.
    """
    info = KNOWN_DATASETS.get(name)
    if info is None:
        raise DataError(checks.unknown("data set", name, KNOWN_DATASETS))
    return info


class Loader(Protocol):
    """A loader of one data set."""

    def __call__(self, info: DatasetInfo, normalisation: Normalisation, folder: DataFolder, /) -> Split:
        """Return both parts of the data set, normalised."""
        ...


def loader_of(name: str) -> Loader:
    """Return the loader of a known data set."""
    for images, features in SCATTERED.items():
        if name == features:
            from privet.datasets.scattering import scattered

            return scattered(describe(images), loader_of(images))
    module, function = _LOADERS[name]
    loader: Loader = getattr(import_module(f"privet.datasets.{module}"), function)
    return loader


def load(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    normalisation: str | None = None,
    verify_checksums: bool = True,
) -> Split:
    """Load a known data set.

    Args:
        name: one of ``KNOWN_DATASETS``; ``fashion_mnist_small`` is part of the package and needs no files. Names that
            end in ``_scattering`` are scattering features of images; they need ``privet[scattering]``, and are cached
            in the folder of PRIVET_CACHE if it is set.
        root: folder with the official files; None for that of the environment variable PRIVET_DATA. It contains
            ``MNIST/raw``, ``FashionMNIST/raw``, ``cifar-10-batches-bin``, ``SVHN`` and ``tabular``.
        normalisation: one of the data set's ``info.normalisations``; None for the first, numbers from 0 to 1.
        verify_checksums: refuse files that differ from the published ones. Switch it off for files that you changed on
            purpose.

    Returns:
        Training and test examples as float32 features, with class numbers (int64) or targets (float32, one column per
        output), and the public facts about them.

    Raises:
        DataError: no such data set, no data folder, a missing file, or a damaged or different file.
        ArgumentError: the data set has no such normalisation.
    """
    from privet.datasets.data_folder import DataFolder

    info = describe(name)
    chosen = info.normalisation(normalisation)
    return loader_of(name)(info, chosen, DataFolder.chosen(root, verify_checksums=verify_checksums))
