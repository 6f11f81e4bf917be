"""Loader of Street View House Numbers (Netzer et al. 2011), cropped digits, from its two MAT files."""

from __future__ import annotations

import os

import numpy as np
import torch
from numpy.typing import NDArray

from privet.datasets.arrays import ArrayDataset, Split
from privet.datasets.data_folder import DataFile, DataFolder
from privet.datasets.info import DatasetInfo, Normalisation
from privet.datasets.mat import read_mat
from privet.errors import DataError

_IMAGES, _CLASSES = "X", "y"
_NUM_CLASSES = 10
# The published files are below 200 MB, and unpacked below 250 MB.
_MAX_BYTES = 2**29

# The published third file, of easier digits, is not used.
SVHN_FILES = (
    DataFile(
        folder="SVHN",
        name="train_32x32.mat",
        sha256="435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
        published_md5="e26dedcc434d2e4c54c9b2d4a06d8373",
    ),
    DataFile(
        folder="SVHN",
        name="test_32x32.mat",
        sha256="cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
        published_md5="eb5a983be6a315427106f1b164d9cef3",
    ),
)


def load_svhn(info: DatasetInfo, normalisation: Normalisation, folder: DataFolder) -> Split:
    """Read the training and the test file."""
    # Find both files before reading one, so that a missing one is reported first.
    paths = [folder.find(file, dataset=info.name, source=info.source) for file in SVHN_FILES]
    parts = []
    for path, file, size in zip(paths, SVHN_FILES, (info.train_size, info.test_size), strict=True):
        pixels, classes = read_svhn_mat(path, num_records=size, sha256=folder.sha256(file))
        features = normalisation.apply_(torch.from_numpy(pixels).to(torch.float32).div_(255.0))
        parts.append(ArrayDataset(features=features, labels=torch.from_numpy(classes)))
    return Split(train=parts[0], test=parts[1], info=info, normalisation=normalisation)


def read_svhn_mat(
    path: str | os.PathLike[str], *, num_records: int, sha256: str | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read images ``[record, 3, 32, 32]`` and their digits from one file.

    In the file, records are the last axis and the digit 0 is class 10.

    Args:
        path: The published MAT file, plain, .gz or .xz.
        num_records: Expected number of images.
        sha256: The known checksum of its content.

    Raises:
        DataError: another checksum, another format, or arrays of other shapes, types or classes than declared.
    """
    shapes = {_IMAGES: (32, 32, 3, num_records), _CLASSES: (num_records, 1)}
    found = read_mat(path, shapes=shapes, sha256=sha256, max_bytes=_MAX_BYTES)
    return _checked_records(path, found[_IMAGES], found[_CLASSES])


def _checked_records(
    path: str | os.PathLike[str], images: NDArray[np.generic], classes: NDArray[np.generic]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if images.dtype != np.uint8 or not np.issubdtype(classes.dtype, np.integer):
        raise DataError(
            f"{path} should hold images as bytes and classes as whole numbers, and has {images.dtype} and "
            f"{classes.dtype}. Fetch the published file."
        )
    digits = classes[:, 0].astype(np.int64)
    if digits.size and not (digits.min() >= 1 and digits.max() <= _NUM_CLASSES):
        raise DataError(f"{path} has classes outside 1 to {_NUM_CLASSES}. Fetch the published file.")
    pixels = np.ascontiguousarray(images.astype(np.uint8, copy=False).transpose(3, 2, 0, 1))
    return pixels, digits % _NUM_CLASSES
