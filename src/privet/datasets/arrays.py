"""A data set of two tensors, features and labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.data import Dataset

from privet.datasets.info import AS_STORED, DatasetInfo, Normalisation
from privet.errors import ArgumentError
from privet.vocabulary import ONE_RECORD, OneItem


@dataclass(frozen=True, kw_only=True, eq=False)
class ArrayDataset(Dataset[tuple[Tensor, Tensor]]):
    """Examples and their labels, with examples along the first axis.

    A map-style data set: it works with ``DataLoader``, and ``take`` fetches a whole batch in one call.

    Attributes:
        features: one row per example, with any further axes.
        labels: one row per example: class numbers, or targets of shape (examples, outputs) for a regression.
        one_item: the unit of privacy that one example is.
        persons: the person of each example, for data whose records name their owner.
    """

    features: Tensor
    labels: Tensor
    one_item: OneItem = ONE_RECORD
    persons: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name, tensor in (("features", self.features), ("labels", self.labels)):
            if not isinstance(tensor, Tensor):
                raise ArgumentError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}.")
            if tensor.dim() == 0:
                raise ArgumentError(f"{name} must have one row per example, got a single number.")
        if len(self.features) != len(self.labels):
            # The two lengths stay out of the message: the size of a data set may be private.
            raise ArgumentError("features and labels must have the same number of rows, one per example.")
        if self.features.device != self.labels.device:
            raise ArgumentError(
                f"features and labels must be on one device, got {self.features.device} and {self.labels.device}."
            )

    @property
    def num_examples(self) -> int:
        """Number of examples. Under add-or-remove adjacency it is private: never use it in a plan."""
        return len(self.features)

    def __len__(self) -> int:
        return len(self.features)

    def held_tensors(self) -> Iterator[Tensor]:
        """Yield every tensor that contains examples."""
        yield from (self.features, self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.features[index], self.labels[index]

    def __getitems__(self, indices: Sequence[int] | Tensor) -> list[tuple[Tensor, Tensor]]:
        """Fetch several examples as a list, for the collate function of a ``DataLoader``."""
        features, labels = self.take(torch.as_tensor(indices, dtype=torch.int64))
        return list(zip(features, labels, strict=True))

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Copy the examples at these positions into one batch, in this order.

        Edge cases: without indices the tensors have zero rows; an index may repeat.

        Args:
            indices: vector of integers from 0 to ``num_examples - 1``, on any device.

        Raises:
            ArgumentError: ``indices`` is no vector of integers.
            IndexError: a position does not exist.
        """
        if indices.dim() != 1 or indices.dtype not in (torch.int64, torch.int32):
            raise ArgumentError(
                f"indices must be a vector of whole numbers (int64 or int32), got {indices.dtype} with "
                f"{indices.dim()} axes."
            )
        positions = indices.to(self.features.device)
        return self.features.index_select(0, positions), self.labels.index_select(0, positions)

    def to(self, device: torch.device | str) -> ArrayDataset:
        """Return the data set on this device; the same object if it already is on it."""
        features, labels = self.features.to(device), self.labels.to(device)
        if features is self.features and labels is self.labels:
            return self
        return replace(self, features=features, labels=labels)

    def rows(self, chosen: Tensor) -> ArrayDataset:
        """Return a data set of some examples, selected by distinct positions or by a boolean mask."""
        persons = self.persons
        if persons is not None:
            places = torch.arange(len(self))[chosen.cpu()].tolist()
            persons = tuple(persons[place] for place in places)
        return replace(self, features=self.features[chosen], labels=self.labels[chosen], persons=persons)


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Training and test data with public facts.

    Attributes:
        train: training examples.
        test: test examples.
        info: public facts, known without reading the data.
        normalisation: the map from stored values to features.
    """

    train: ArrayDataset
    test: ArrayDataset
    info: DatasetInfo
    normalisation: Normalisation = AS_STORED
