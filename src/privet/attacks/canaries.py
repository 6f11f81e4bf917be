"""Canaries in a model's own parameters: synthetic records whose gradients are orthogonal to each other.

The loss of canary k is a multiple of one coordinate of the model's parameters, plus a tiny multiple of the model's
ordinary loss on a synthetic input. Its gradient is the direction of that coordinate (a Dirac canary of Nasr et al.
2021). It passes through the same engine, clipping, mask and noise as any gradient, and the model's own forward and
backward pass run as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from privet.mechanism.clipping import ClippingRule
from privet.mechanism.layout import Layout
from privet.mechanism.owners import Owners
from privet.training.trained import trainable_parameters
from privet.vocabulary import Adjacency, OneItem, Unit

Losses = Callable[..., Tensor]
# Factor of the model's ordinary loss in a canary's loss: too small to disturb the orthogonality.
_TRACE = 1e-6
# Candidate gradient lengths over the clipping bound: far above it, and just below it for rules that drop long ones.
_LENGTHS = (1e6, 0.999)


class CanaryLoss:
    """The losses of canary records: ``sign * length * parameter[coordinate]`` plus a trace of the model's own."""

    def __init__(self, model: nn.Module, losses: Losses, layout: Layout, lengths: Tensor) -> None:
        """Bind the model's parameters, in the order of the layout, and one gradient length per clipping group."""
        self._parameters = [value for _, value in trainable_parameters(model)]
        self._losses, self._layout, self._lengths = losses, layout, lengths

    def __call__(self, coordinates: Tensor, signs: Tensor, *record: Tensor) -> Tensor:
        """Return one loss per record; a sign of zero gives a null record, whose gradient is zero."""
        total = signs.abs() * _TRACE * self._losses(*record)
        for parameter, where, group in zip(self._parameters, self._layout.slices, self._layout.groups, strict=True):
            is_here = (coordinates >= where.start) & (coordinates < where.stop)
            places = (coordinates - where.start).clamp(0, where.stop - where.start - 1)
            # an embedding look-up in a table of one column: engines have a per-example rule for it
            found = functional.embedding(places, parameter.reshape(-1, 1)).squeeze(1)
            total = total + (signs * is_here).to(found.dtype) * found * self._lengths[group]
        return total


def canary_lengths(rule: ClippingRule) -> tuple[float, ...]:
    """Return, for each group, the gradient length whose clipped gradient is the longest."""
    bounds = rule.sensitivity.bounds
    candidates = torch.tensor([[factor * bound for bound in bounds] for factor in _LENGTHS], dtype=torch.float64)
    # a canary has a gradient in one group only
    kept = candidates * rule.factors(candidates)
    best = kept.argmax(0)
    return tuple(float(candidates[int(choice), group]) for group, choice in enumerate(best))


def canary_coordinates(layout: Layout, num_canaries: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Choose distinct coordinates uniformly; all of them if the layout has fewer than ``num_canaries``."""
    size = min(num_canaries, layout.num_coordinates)
    return rng.choice(layout.num_coordinates, size=size, replace=False).astype(np.int64)


@dataclass(kw_only=True, eq=False)
class CanaryRecords:
    """A data set of canaries whose membership can change between rounds.

    A canary outside the data is absent, a null record, or the opposite canary, by the adjacency.

    Attributes:
        coordinates: One per canary.
        record: Synthetic inputs of the model, one row per canary in every tensor.
        adjacency: Decides the form of a canary outside the data.
        num_blank: Number of null records in every round, for samplings that require an exact number of records.
        records_each: Number of records of each canary, all alike. With more than one a canary is a person who owns
            them.
    """

    coordinates: Tensor
    record: Sequence[Tensor]
    adjacency: Adjacency
    num_blank: int = 0
    records_each: int = 1

    def __post_init__(self) -> None:
        self.set_members(np.ones(len(self.coordinates), dtype=bool))

    def set_members(self, is_in: NDArray[np.bool_]) -> None:
        """Set the members of the following rounds."""
        inside = torch.from_numpy(np.asarray(is_in, dtype=bool))
        all_canaries = torch.arange(len(self.coordinates))
        out = -1.0 if self.adjacency is Adjacency.REPLACE_ONE else 0.0
        present = all_canaries[inside] if self.adjacency is Adjacency.ADD_REMOVE else all_canaries
        signs = torch.where(inside, 1.0, out)[present]
        rows = torch.cat([present, torch.zeros(self.num_blank, dtype=torch.int64)])
        each, persons = self.records_each, np.arange(len(rows), dtype=np.int64)
        self._rows = rows.repeat_interleave(each)
        self._signs = torch.cat([signs, torch.zeros(self.num_blank)]).repeat_interleave(each)
        self._owners = Owners(of_record=np.repeat(persons, each))

    @property
    def one_item(self) -> OneItem:
        """A canary stands for one unit of any kind."""
        return OneItem(units=tuple(Unit))

    @property
    def owners(self) -> Owners:
        return self._owners

    @property
    def records(self) -> CanaryRecords:
        return self

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        row = self._rows[index]
        return (self.coordinates[row], self._signs[index], *(part[row] for part in self.record))

    def take(self, indices: Tensor) -> tuple[Tensor, ...]:
        """Return the records at these positions as one batch."""
        rows = self._rows[indices]
        return (self.coordinates[rows], self._signs[indices], *(part[rows] for part in self.record))
