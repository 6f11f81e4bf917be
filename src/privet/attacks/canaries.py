"""Canaries in a model's own parameters: synthetic records whose gradients stand at right angles to each other.

The loss of canary k is a multiple of one coordinate of the model's parameters, plus a trace of the model's usual loss
on a made-up input. Its gradient is that coordinate's direction (a Dirac canary of Nasr et al. 2021), it passes through
the same engine, clipping, mask and noise as everybody's, and the model's own forward and backward pass run beside it.
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
from privet.training.weight_watch.guards import trainable_parameters
from privet.vocabulary import Adjacency

Losses = Callable[..., Tensor]
# How much of the model's ordinary loss is in a canary's: far below what could blur the right angles.
_TRACE = 1e-6
# Lengths to try, over the clipping bound: far beyond it, and just inside for rules that drop what is too long.
_LENGTHS = (1e6, 0.999)


class CanaryLoss:
    """The losses of canary records: ``sign * length * parameter[coordinate]``, and the model's own in traces."""

    def __init__(self, model: nn.Module, losses: Losses, layout: Layout, lengths: Tensor) -> None:
        """Take the model's parameters in the layout's order, and one length per clipping group."""
        self._parameters = [value for _, value in trainable_parameters(model)]
        self._losses, self._layout, self._lengths = losses, layout, lengths

    def __call__(self, coordinates: Tensor, signs: Tensor, *record: Tensor) -> Tensor:
        """Return one loss per record; a sign of zero makes a null record without any gradient."""
        total = signs.abs() * _TRACE * self._losses(*record)
        for parameter, where, group in zip(self._parameters, self._layout.slices, self._layout.groups, strict=True):
            is_here = (coordinates >= where.start) & (coordinates < where.stop)
            places = (coordinates - where.start).clamp(0, where.stop - where.start - 1)
            # as a look-up in a table of one column: the engines know its per-example gradient
            found = functional.embedding(places, parameter.reshape(-1, 1)).squeeze(1)
            total = total + (signs * is_here).to(found.dtype) * found * self._lengths[group]
        return total


def canary_lengths(rule: ClippingRule) -> tuple[float, ...]:
    """Return, for each group, the gradient length that contributes most once it is clipped."""
    bounds = rule.sensitivity.bounds
    candidates = torch.tensor([[factor * bound for bound in bounds] for factor in _LENGTHS], dtype=torch.float64)
    # a canary lives in one group: what the others hold of it is nothing
    kept = candidates * rule.factors(candidates)
    best = kept.argmax(0)
    return tuple(float(candidates[int(choice), group]) for group, choice in enumerate(best))


def canary_coordinates(layout: Layout, num_canaries: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Choose different coordinates, uniformly; as many as there are if more are asked for."""
    size = min(num_canaries, layout.num_coordinates)
    return rng.choice(layout.num_coordinates, size=size, replace=False).astype(np.int64)


@dataclass(kw_only=True, eq=False)
class CanaryRecords:
    """A data set of canaries whose members change between rounds: each is in or out by a fair coin.

    Out means what the adjacency says: absent, blank in place, or replaced by the opposite canary.

    Attributes:
        coordinates: One per canary.
        record: Made-up inputs of the model, one row per canary in every tensor.
        adjacency: What it means for a record to be out.
        num_blank: Null records that are always there, for samplings that want an exact number of records.
    """

    coordinates: Tensor
    record: Sequence[Tensor]
    adjacency: Adjacency
    num_blank: int = 0

    def __post_init__(self) -> None:
        """Begin with all canaries in."""
        self.set_members(np.ones(len(self.coordinates), dtype=bool))

    def set_members(self, is_in: NDArray[np.bool_]) -> None:
        """Decide who is in from now on."""
        inside = torch.from_numpy(np.asarray(is_in, dtype=bool))
        everybody = torch.arange(len(self.coordinates))
        out = -1.0 if self.adjacency is Adjacency.REPLACE_ONE else 0.0
        present = everybody[inside] if self.adjacency is Adjacency.ADD_REMOVE else everybody
        signs = torch.where(inside, 1.0, out)[present]
        self._rows = torch.cat([present, torch.zeros(self.num_blank, dtype=torch.int64)])
        self._signs = torch.cat([signs, torch.zeros(self.num_blank)])

    def __len__(self) -> int:
        """Return how many records there are now."""
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        """Return one record."""
        row = self._rows[index]
        return (self.coordinates[row], self._signs[index], *(part[row] for part in self.record))

    def take(self, indices: Tensor) -> tuple[Tensor, ...]:
        """Return many records as one batch."""
        rows = self._rows[indices]
        return (self.coordinates[rows], self._signs[indices], *(part[rows] for part in self.record))
