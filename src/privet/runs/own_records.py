"""The records that a recipe names or declares: as training and test data, and without labels for predictions."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from privet.datasets.arrays import ArrayDataset, Split
from privet.datasets.info import DatasetInfo, Normalisation
from privet.datasets.own.declared_images import DeclaredImages
from privet.datasets.own.declared_table import DeclaredTable
from privet.datasets.own.declared_texts import DeclaredTexts
from privet.datasets.own.new_records import Gaps, read_new_records
from privet.datasets.own.own_images import load_declared_images, read_test_images, read_unlabelled_images
from privet.datasets.own.own_table import OWN_TABLES, load_declared_table, load_own_csv, read_test_csv
from privet.datasets.own.own_texts import load_declared_texts, read_new_texts, read_test_texts
from privet.errors import DataError
from privet.runs.recipes.recipe import Recipe
from privet.runs.recipes.text_settings import EncoderSettings
from privet.runs.text_models import tokens_of

Where = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class NewRecords:
    """Records without labels, as the network takes them.

    Attributes:
        names: The number of each record from 1, or the path of each image.
        features: One row per record.
        gaps: Columns with empty cells, and the values used in their place.
    """

    names: tuple[str, ...]
    features: Tensor
    gaps: tuple[Gaps, ...] = ()


class Records(Protocol):
    """A kind of records of a user's own, and how its files are read."""

    def split(self, *, train: Where, test: Where | None) -> Split:
        """Read training data, in which no record can raise an error, and test data."""
        ...

    def tested(self, path: Where) -> ArrayDataset:
        """Read test data, strictly."""
        ...

    def unlabelled(self, path: Where) -> NewRecords:
        """Read records for predictions."""
        ...


def own_records(recipe: Recipe) -> Records | None:
    """Return the kind of a user's own records; None for data that privet knows by name."""
    info, normalisation = recipe.info, recipe.info.normalisation(recipe.normalisation)
    if recipe.table is not None:
        return _Tables(declared=recipe.table.declared(), info=info)
    if recipe.images is not None:
        return _Images(declared=recipe.images.declared(), info=info, normalisation=normalisation)
    if recipe.texts is not None and recipe.encoder is not None:
        return _Texts(declared=recipe.texts.declared(), info=info, encoder=recipe.encoder)
    return None


def tested_records(recipe: Recipe, path: Where) -> ArrayDataset:
    """Read a file or folder as test data for the model of a recipe.

    Raises:
        DataError: it does not fit the declaration; the message names the record and the problem.
    """
    own = own_records(recipe)
    if own is not None:
        return own.tested(path)
    return load_own_csv(path, recipe.info, recipe.info.normalisation(recipe.normalisation))


def new_records(recipe: Recipe, path: Where) -> NewRecords:
    """Read records without labels for the model of a recipe.

    Raises:
        DataError: the data of the recipe are of no kind that can be read from files, or a record does not fit.
    """
    own = own_records(recipe)
    if own is not None:
        return own.unlabelled(path)
    table = OWN_TABLES.get(recipe.info.name)
    if table is None:
        raise DataError(
            f"The run was trained on {recipe.dataset!r}, which is neither a table nor a folder of images. Call its "
            "model in your own code: privet.runs.model_of(RUN)."
        )
    return _numbered(*read_new_records(path, table, recipe.info.normalisation(recipe.normalisation)))


def _numbered(features: Tensor, gaps: tuple[Gaps, ...] = ()) -> NewRecords:
    names = tuple(str(number + 1) for number in range(len(features)))
    return NewRecords(names=names, features=features, gaps=gaps)


@dataclass(frozen=True, kw_only=True)
class _Tables:
    declared: DeclaredTable
    info: DatasetInfo

    def split(self, *, train: Where, test: Where | None) -> Split:
        return load_declared_table(self.declared, self.info, train=train, test=test)

    def tested(self, path: Where) -> ArrayDataset:
        return read_test_csv(path, self.declared, self.info.normalisation())

    def unlabelled(self, path: Where) -> NewRecords:
        return _numbered(*read_new_records(path, self.declared, self.info.normalisation()))


@dataclass(frozen=True, kw_only=True)
class _Images:
    declared: DeclaredImages
    info: DatasetInfo
    normalisation: Normalisation

    def split(self, *, train: Where, test: Where | None) -> Split:
        return load_declared_images(self.declared, self.info, self.normalisation, train=train, test=test)

    def tested(self, path: Where) -> ArrayDataset:
        return read_test_images(path, self.declared, self.normalisation)

    def unlabelled(self, path: Where) -> NewRecords:
        files, pixels = read_unlabelled_images(path, self.declared, self.normalisation)
        return NewRecords(names=tuple(str(file) for file in files), features=pixels)


@dataclass(frozen=True, kw_only=True)
class _Texts:
    declared: DeclaredTexts
    info: DatasetInfo
    encoder: EncoderSettings

    def split(self, *, train: Where, test: Where | None) -> Split:
        return load_declared_texts(self.declared, self.info, tokens_of(self.encoder, self.info), train=train, test=test)

    def tested(self, path: Where) -> ArrayDataset:
        return read_test_texts(path, self.declared, tokens_of(self.encoder, self.info))

    def unlabelled(self, path: Where) -> NewRecords:
        return _numbered(read_new_texts(path, self.declared, tokens_of(self.encoder, self.info)))
