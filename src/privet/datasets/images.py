"""Loaders of the image data sets from their official files, and of the small packaged one."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from privet.datasets.arrays import ArrayDataset, Split
from privet.datasets.data_folder import DataFile, DataFolder
from privet.datasets.info import DatasetInfo, Normalisation
from privet.datasets.readers import read_cifar10_bin, read_idx

_MNIST_FILES = {
    "train-images-idx3-ubyte": (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    ),
    "train-labels-idx1-ubyte": (
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "d53e105ee54ea40749a09fcbcd1e9432",
    ),
    "t10k-images-idx3-ubyte": (
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "9fb629c4189551a2d022fa330f9573f3",
    ),
    "t10k-labels-idx1-ubyte": (
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
}
_FASHION_FILES = {
    "train-images-idx3-ubyte": (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    ),
    "train-labels-idx1-ubyte": (
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "25c81989df183df01b3e8a0aad5dffbe",
    ),
    "t10k-images-idx3-ubyte": (
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "bef4ecab320f06d8554ea6380940ec79",
    ),
    "t10k-labels-idx1-ubyte": (
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
}
_SMALL_FILES = {
    "fashion-small-train-images-idx3-ubyte": "b135f5c6094a1bf31da82d9641071f0e5ba643de51dac9e4bee6f39c26cfdfe1",
    "fashion-small-train-labels-idx1-ubyte": "68a251609cccfd10934d5ad7b3b25a142ecc236ed3603752b705f8266a534464",
    "fashion-small-test-images-idx3-ubyte": "f0755d0daa8c40cfe91673d7509fc0c57bbe5efaaedfedac8259112deded9014",
    "fashion-small-test-labels-idx1-ubyte": "a20294528d23f3132bf232646ccac7f4d424744756284b8f2ecbacf3e1268ab1",
}
_CIFAR10_RECORDS_PER_FILE = 10_000
_CIFAR10_FILES = {
    "data_batch_1.bin": (
        "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "5dd7e06a14cb22eb9f671a540d1b7c25",
    ),
    "data_batch_2.bin": (
        "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "5ea93a67294ea407fff1d09f752e9692",
    ),
    "data_batch_3.bin": (
        "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "942cd6a4bcdd0dd3c604fbe906cb4421",
    ),
    "data_batch_4.bin": (
        "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "ae636b3ba5c66a11e91e8cb52e771fcb",
    ),
    "data_batch_5.bin": (
        "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "53f37980c15c3d472c316c40844f3f0d",
    ),
    "test_batch.bin": (
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        "803d5f7f4d78ea53de84dbe85f74fb6d",
    ),
}


def _official(folder: str, checksums: dict[str, tuple[str, str]]) -> tuple[DataFile, ...]:
    return tuple(
        DataFile(folder=folder, name=name, sha256=sha256, published_md5=md5)
        for name, (sha256, md5) in checksums.items()
    )


# In the order of the loaders: training images, training labels, test images, test labels.
MNIST_FILES = _official("MNIST/raw", _MNIST_FILES)
FASHION_MNIST_FILES = _official("FashionMNIST/raw", _FASHION_FILES)
CIFAR10_FILES = _official("cifar-10-batches-bin", _CIFAR10_FILES)


def load_mnist(info: DatasetInfo, normalisation: Normalisation, folder: DataFolder) -> Split:
    """Read MNIST from its four IDX files."""
    return _idx_split(info, normalisation, folder, MNIST_FILES)


def load_fashion_mnist(info: DatasetInfo, normalisation: Normalisation, folder: DataFolder) -> Split:
    """Read Fashion-MNIST from its four IDX files."""
    return _idx_split(info, normalisation, folder, FASHION_MNIST_FILES)


def load_fashion_mnist_small(info: DatasetInfo, normalisation: Normalisation, folder: DataFolder) -> Split:
    """Read the packaged subset of Fashion-MNIST; the data folder is not used, and checksums are always verified."""
    del folder
    with resources.as_file(resources.files("privet.datasets") / "data") as data:
        paths = [(data / f"{name}.xz", sha256) for name, sha256 in _SMALL_FILES.items()]
        train = _idx_pair(info.train_size, info.input_shape, normalisation, *paths[:2])
        test = _idx_pair(info.test_size, info.input_shape, normalisation, *paths[2:])
    return Split(train=train, test=test, info=info, normalisation=normalisation)


def load_cifar10(info: DatasetInfo, normalisation: Normalisation, folder: DataFolder) -> Split:
    """Read CIFAR-10 from the six files of its binary version."""
    *train_files, test_file = CIFAR10_FILES
    train = _cifar10_part(info, normalisation, folder, tuple(train_files))
    test = _cifar10_part(info, normalisation, folder, (test_file,))
    return Split(train=train, test=test, info=info, normalisation=normalisation)


def _idx_split(
    info: DatasetInfo, normalisation: Normalisation, folder: DataFolder, files: tuple[DataFile, ...]
) -> Split:
    # Find all four files before reading any, so that a missing one is reported first.
    paths = [(folder.find(file, dataset=info.name, source=info.source), folder.sha256(file)) for file in files]
    train = _idx_pair(info.train_size, info.input_shape, normalisation, *paths[:2])
    test = _idx_pair(info.test_size, info.input_shape, normalisation, *paths[2:])
    return Split(train=train, test=test, info=info, normalisation=normalisation)


def _idx_pair(
    size: int,
    input_shape: tuple[int, ...],
    normalisation: Normalisation,
    images: tuple[Path, str | None],
    labels: tuple[Path, str | None],
) -> ArrayDataset:
    # A grey image has one channel in the network and no channel axis in the file.
    pixels = read_idx(images[0], shape=(size, *input_shape[1:]), sha256=images[1])
    classes = read_idx(labels[0], shape=(size,), sha256=labels[1])
    return ArrayDataset(
        features=_features(pixels.reshape(size, *input_shape), normalisation),
        labels=torch.from_numpy(classes).to(torch.int64),
    )


def _cifar10_part(
    info: DatasetInfo, normalisation: Normalisation, folder: DataFolder, files: tuple[DataFile, ...]
) -> ArrayDataset:
    paths = [folder.find(file, dataset=info.name, source=info.source) for file in files]
    parts = [
        read_cifar10_bin(path, num_records=_CIFAR10_RECORDS_PER_FILE, sha256=folder.sha256(file))
        for path, file in zip(paths, files, strict=True)
    ]
    return ArrayDataset(
        features=_features(np.concatenate([pixels for pixels, _ in parts]), normalisation),
        labels=torch.from_numpy(np.concatenate([classes for _, classes in parts])).to(torch.int64),
    )


def _features(pixels: NDArray[np.uint8], normalisation: Normalisation) -> torch.Tensor:
    return normalisation.apply_(torch.from_numpy(pixels).to(torch.float32).div_(255.0))
