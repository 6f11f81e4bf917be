"""Loading a data set by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from privet.datasets.arrays import Split
from privet.datasets.folder import DataFolder
from privet.datasets.images import load_cifar10, load_fashion_mnist, load_fashion_mnist_small, load_mnist
from privet.datasets.info import DatasetInfo, Normalisation
from privet.datasets.known import SCATTERED, describe
from privet.datasets.scattering import scattered
from privet.datasets.svhn import load_svhn
from privet.datasets.tabular import load_adult, load_california_housing, load_wine_red
from privet.datasets.tokens import load_sst2_tokens


class Loader(Protocol):
    """Reads one data set."""

    def __call__(self, info: DatasetInfo, normalisation: Normalisation, folder: DataFolder, /) -> Split:
        """Return both parts of the data set, normalised."""
        ...


_LOADERS: Mapping[str, Loader] = MappingProxyType(
    {
        "mnist": load_mnist,
        "fashion_mnist": load_fashion_mnist,
        "fashion_mnist_small": load_fashion_mnist_small,
        "cifar10": load_cifar10,
        "svhn": load_svhn,
        "california_housing": load_california_housing,
        "wine_red": load_wine_red,
        "adult": load_adult,
        "sst2": load_sst2_tokens,
    }
)
LOADERS: Mapping[str, Loader] = MappingProxyType(
    {**_LOADERS, **{name: scattered(describe(images), _LOADERS[images]) for images, name in SCATTERED.items()}}
)


def load(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    normalisation: str | None = None,
    verify_checksums: bool = True,
) -> Split:
    """Load a known data set.

    Args:
        name: one of ``KNOWN_DATASETS``; ``fashion_mnist_small`` comes with the package and needs no files. Names that
            end in ``_scattering`` are scattering features of images; they need ``privet[scattering]``, and are kept in
            the folder named by PRIVET_CACHE, if there is one.
        root: folder with the official files; None takes the environment variable PRIVET_DATA. It holds ``MNIST/raw``,
            ``FashionMNIST/raw``, ``cifar-10-batches-bin``, ``SVHN`` and ``tabular``.
        normalisation: one of the data set's ``info.normalisations``; None takes the first, numbers from 0 to 1.
        verify_checksums: refuse files that are not the published ones, byte for byte. Switch it off to read files you
            changed on purpose.

    Returns:
        Training and test examples as float32 features, with class numbers (int64) or targets (float32, one column per
        output), and the public facts about them.

    Raises:
        DataError: no such data set, no data folder, a missing file, or a file that is not what it should be.
        ArgumentError: the data set has no such normalisation.
    """
    info = describe(name)
    chosen = info.normalisation(normalisation)
    return LOADERS[name](info, chosen, DataFolder.chosen(root, verify_checksums=verify_checksums))
