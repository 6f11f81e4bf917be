"""Data sets: readers of the official files, and public facts.

Names are resolved on first use, so ``describe`` does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privet._lazy import lazily

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
    from privet.datasets.sentences import LabelledSentences as LabelledSentences
    from privet.datasets.sentences import load_sst2 as load_sst2
    from privet.datasets.synthetic import gaussian_blobs as gaussian_blobs
    from privet.datasets.synthetic import striped_images as striped_images
    from privet.datasets.tables import CategoryColumn as CategoryColumn
    from privet.datasets.tables import CsvSchema as CsvSchema
    from privet.datasets.tables import NumberColumn as NumberColumn
    from privet.datasets.tables import read_csv as read_csv
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "privet.datasets.arrays": ("ArrayDataset", "Split"),
            "privet.datasets.info": ("DatasetInfo", "Normalisation"),
            "privet.datasets.known": ("KNOWN_DATASETS", "describe", "load"),
            "privet.datasets.readers": ("ArrayDeclaration", "read_cifar10_bin", "read_idx", "read_npz"),
            "privet.datasets.sentences": ("LabelledSentences", "load_sst2"),
            "privet.datasets.synthetic": ("gaussian_blobs", "striped_images"),
            "privet.datasets.tables": ("CategoryColumn", "CsvSchema", "NumberColumn", "read_csv"),
        },
    )
