"""Loaders of the three tables from their official CSV files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from privet.datasets.arrays import ArrayDataset, Split
from privet.datasets.columns import ADULT_FEATURES, CALIFORNIA_SCHEMA, WINE_SCHEMA, adult_schema
from privet.datasets.data_folder import DataFile, DataFolder
from privet.datasets.encoding import encode_columns
from privet.datasets.fixed_draw import fixed_sample
from privet.datasets.info import DatasetInfo, Normalisation
from privet.datasets.tables import CsvSchema, read_csv
from privet.errors import DataError

# No checksum: StatLib publishes the numbers without a header line, so no official CSV file exists.
CALIFORNIA_FILE = DataFile(folder="tabular", name="california_housing.csv", sha256=None, published_md5=None)
WINE_FILE = DataFile(
    folder="tabular",
    name="winequality-red.csv",
    sha256="4a402cf041b025d4566d954c3b9ba8635a3a8a01e039005d97d6a710278cf05e",
    published_md5="2daeecee174368f8a33b82c8cccae3a5",
)
ADULT_TRAIN_FILE = DataFile(
    folder="tabular",
    name="adult.data",
    sha256="5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    published_md5="5d7c39d7b8804f071cdd1f2a7c460872",
)
ADULT_TEST_FILE = DataFile(
    folder="tabular",
    name="adult.test",
    sha256="a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
    published_md5="35238206dfdf7f1fe215bbb874adecdc",
)

_DOLLARS_PER_UNIT = 100_000.0


def load_california_housing(info: DatasetInfo, normalisation: Normalisation, folder: DataFolder) -> Split:
    """Read California Housing: eight features per block group, and its median house value in 100,000 dollars.

    Rooms, bedrooms and occupancy are per household. The official file has no split: a fixed fifth is the test set.
    """
    table = _read(info, folder, CALIFORNIA_FILE, CALIFORNIA_SCHEMA, info.train_size + info.test_size)
    households = table["households"]
    features = np.column_stack(
        [
            table["median_income"],
            table["housing_median_age"],
            table["total_rooms"] / households,
            table["total_bedrooms"] / households,
            table["population"],
            table["population"] / households,
            table["latitude"],
            table["longitude"],
        ]
    )
    return _fixed_split(info, normalisation, features, table["median_house_value"] / _DOLLARS_PER_UNIT)


def load_wine_red(info: DatasetInfo, normalisation: Normalisation, folder: DataFolder) -> Split:
    """Read Wine Quality (red): eleven measurements per wine, and its quality from 0 to 10 as the target.

    The official file has no split: a fixed fifth is the test set.
    """
    table = _read(info, folder, WINE_FILE, WINE_SCHEMA, info.train_size + info.test_size)
    features = np.column_stack([table[name] for name in info.feature_names])
    return _fixed_split(info, normalisation, features, table["quality"])


def load_adult(info: DatasetInfo, normalisation: Normalisation, folder: DataFolder) -> Split:
    """Read Adult in its official split, with one-hot categories."""
    train = _adult_part(
        normalisation, _read(info, folder, ADULT_TRAIN_FILE, adult_schema(income_suffix=""), info.train_size)
    )
    test = _adult_part(
        normalisation, _read(info, folder, ADULT_TEST_FILE, adult_schema(income_suffix="."), info.test_size)
    )
    return Split(train=train, test=test, info=info, normalisation=normalisation)


def _read(
    info: DatasetInfo, folder: DataFolder, file: DataFile, schema: CsvSchema, num_records: int
) -> dict[str, NDArray[Any]]:
    path = folder.find(file, dataset=info.name, source=info.source)
    table = read_csv(path, schema, sha256=folder.sha256(file))
    found = len(table[schema.columns[0].name])
    # The split depends on positions, so a table of another length would have another split.
    if folder.verify_checksums and found != num_records:
        raise DataError(f"{path} should hold {num_records} records and holds {found}. Fetch the official file.")
    return table


def _fixed_split(
    info: DatasetInfo, normalisation: Normalisation, features: NDArray[np.float64], targets: NDArray[np.float64]
) -> Split:
    test_size = min(info.test_size, len(features))
    in_test = np.zeros(len(features), dtype=bool)
    in_test[fixed_sample(range(len(features)), test_size, seed=f"privet {info.name} test")] = True
    train, test = (
        ArrayDataset(
            features=_features(features[rows], normalisation),
            # One column per output: a vector would broadcast against a column of predictions to a matrix.
            labels=torch.from_numpy(targets[rows]).to(torch.float32).unsqueeze(1),
        )
        for rows in (~in_test, in_test)
    )
    return Split(train=train, test=test, info=info, normalisation=normalisation)


def _adult_part(normalisation: Normalisation, table: Mapping[str, NDArray[Any]]) -> ArrayDataset:
    features = encode_columns(table, ADULT_FEATURES)
    return ArrayDataset(features=_features(features, normalisation), labels=torch.from_numpy(table["income"]))


def _features(values: NDArray[np.float64], normalisation: Normalisation) -> torch.Tensor:
    # Normalise in double precision: a longitude or a survey weight would lose digits.
    return normalisation.apply_(torch.from_numpy(values)).to(torch.float32)
