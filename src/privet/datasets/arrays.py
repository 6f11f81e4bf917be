"""A data set held as two tensors, fetched a batch at a time."""

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
    """Examples and their labels, side by side along the first axis.

    A map-style data set: ``DataLoader`` works on it, and ``take`` fetches a whole batch in one call.

    Attributes:
        features: one row per example, of any further shape.
        labels: one row per example: class numbers, or targets of shape (examples, outputs) for a regression.
        one_item: what one example is.
    """

    features: Tensor
    labels: Tensor
    one_item: OneItem = ONE_RECORD

    def __post_init__(self) -> None:
        for name, tensor in (("features", self.features), ("labels", self.labels)):
            if not isinstance(tensor, Tensor):
                raise ArgumentError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}.")
            if tensor.dim() == 0:
                raise ArgumentError(f"{name} must have one row per example, got a single number.")
        if len(self.features) != len(self.labels):
            # The two lengths stay out of the message: the size of a data set may be private.
            raise ArgumentError("features and labels must have the same number of rows, one per example, and differ.")
        if self.features.device != self.labels.device:
            raise ArgumentError(
                f"features and labels must be on one device, got {self.features.device} and {self.labels.device}."
            )

    @property
    def num_examples(self) -> int:
        """How many examples there are. Under add-or-remove adjacency this number is private: never plan with it."""
        return len(self.features)

    def __len__(self) -> int:
        return len(self.features)

    def held_tensors(self) -> Iterator[Tensor]:
        """Yield every tensor that the examples are taken from."""
        yield from (self.features, self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.features[index], self.labels[index]

    def __getitems__(self, indices: Sequence[int] | Tensor) -> list[tuple[Tensor, Tensor]]:
        """Fetch several examples at once, as the list that a ``DataLoader`` hands to its collate function."""
        features, labels = self.take(torch.as_tensor(indices, dtype=torch.int64))
        return list(zip(features, labels, strict=True))

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Fetch the examples at these positions as one batch: copies, in the order asked for.

        No index gives tensors of zero rows and the right shape; an index may repeat.

        Args:
            indices: whole numbers from 0 to ``num_examples - 1``, of one axis, on any device.

        Raises:
            ArgumentError: not a vector of whole numbers.
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
        """Return the data set on this device; the same object when it is there already."""
        features, labels = self.features.to(device), self.labels.to(device)
        if features is self.features and labels is self.labels:
            return self
        return replace(self, features=features, labels=labels)

    def rows(self, chosen: Tensor) -> ArrayDataset:
        """Return some of the examples as a data set of its own, chosen by position or by a mask without repetition."""
        return replace(self, features=self.features[chosen], labels=self.labels[chosen])


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """A data set in two parts, for training and for tests, with the public facts about it.

    Attributes:
        train: the examples that training may see.
        test: the examples that it may not.
        info: public facts, known without reading the data.
        normalisation: how stored values became the features.
    """

    train: ArrayDataset
    test: ArrayDataset
    info: DatasetInfo
    normalisation: Normalisation = AS_STORED
