"""Data sets: official files in, tensors and public facts out.

Names are resolved when they are first used, so that the public facts (``describe``) cost no import of torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privet.datasets.arrays import ArrayDataset as ArrayDataset
    from privet.datasets.arrays import Split as Split
    from privet.datasets.info import DatasetInfo as DatasetInfo
    from privet.datasets.info import Normalisation as Normalisation
    from privet.datasets.known import KNOWN_DATASETS as KNOWN_DATASETS
    from privet.datasets.known import describe as describe
    from privet.datasets.known import load as load
    from privet.datasets.readers import ArrayDeclaration as ArrayDeclaration
    from privet.datasets.readers import read_cifar10_bin as read_cifar10_bin
    from privet.datasets.readers import read_idx as read_idx
    from privet.datasets.readers import read_npz as read_npz
    from privet.datasets.synthetic import gaussian_blobs as gaussian_blobs
    from privet.datasets.synthetic import striped_images as striped_images
    from privet.datasets.tables import CategoryColumn as CategoryColumn
    from privet.datasets.tables import CsvSchema as CsvSchema
    from privet.datasets.tables import NumberColumn as NumberColumn
    from privet.datasets.tables import read_csv as read_csv

_HOMES = {
    "ArrayDataset": "arrays",
    "ArrayDeclaration": "readers",
    "CategoryColumn": "tables",
    "CsvSchema": "tables",
    "DatasetInfo": "info",
    "KNOWN_DATASETS": "known",
    "Normalisation": "info",
    "NumberColumn": "tables",
    "Split": "arrays",
    "describe": "known",
    "gaussian_blobs": "synthetic",
    "load": "known",
    "read_cifar10_bin": "readers",
    "read_csv": "tables",
    "read_idx": "readers",
    "read_npz": "readers",
    "striped_images": "synthetic",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
