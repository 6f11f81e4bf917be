"""Made-up batches: they have the shapes and types of real ones, but other values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from privet.errors import DataError
from privet.isolation.parts import flattened, leaves_of, tensors_of, with_tensors
from privet.training.preflight.limits import Limit

_IGNORED_SHARE = 0.3


@dataclass(frozen=True, kw_only=True)
class MadeUpBatches:
    """Draws batches with the shapes and types of a given one.

    Guarantee:
        Only the shapes and types of the given batch are used, and one bit of every integer tensor: whether any entry
        is above zero. If so, zeros and ones are drawn, which are valid labels and token ids in almost every program,
        otherwise zeros only. If ``limits`` gives the integers that the program accepts, these are drawn, including
        labels that it ignores.

    Attributes:
        like: A batch of the data set, with the examples along the first axis of every tensor.
        num_examples: Number of examples of the drawn batches.
        limits: Accepted integers by the number of the tensor in the batch.
    """

    like: Any
    num_examples: int
    limits: Mapping[int, Limit] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: Any, *, num_examples: int, size: int | None = None) -> MadeUpBatches:
        """Return the batches like a given one; ``size`` is its number of examples, if known.

        Raises:
            DataError: the batch holds something other than tensors with one row per example.
        """
        leaves = leaves_of(batch)
        sizes = {len(leaf) if isinstance(leaf, Tensor) and leaf.dim() else None for leaf in leaves}
        if len(sizes) != 1 or None in sizes or size not in (None, *sizes):
            raise DataError(
                "Batches like this one cannot be made up: every part of it must be a tensor with one row per example. "
                "Pass such a batch, or let the collate function return one."
            )
        return cls(like=with_tensors(batch, _outline), num_examples=num_examples)

    def of_at_most(self, num_examples: int) -> MadeUpBatches:
        """Return the same batches with at most this number of examples."""
        return replace(self, num_examples=min(num_examples, self.num_examples))

    @property
    def has_real_numbers(self) -> bool:
        return any(tensor.is_floating_point() for tensor in tensors_of(self.like))

    def draw(self, low: float, high: float, *, seed: int, ignores: bool = False) -> Any:
        """Return a batch whose real numbers are uniform between two bounds; it depends on the arguments only.

        With ``ignores``, some labels are the one that the program ignores: it has no loss, but it changes counts.
        """
        generator = torch.Generator().manual_seed(seed)

        def drawn(leaf: int, outline: Tensor) -> Tensor:
            shape = (self.num_examples, *outline.shape[1:])
            if outline.is_floating_point() or outline.is_complex():
                kind = torch.float64 if outline.is_floating_point() else torch.complex128
                values = torch.rand(shape, dtype=kind, generator=generator) * (high - low) + low
            else:
                values = self._whole(leaf, outline, shape, generator, ignores=ignores)
            return values.to(outline.device, outline.dtype)

        leaves, structure = flattened(self.like)
        return structure.filled([drawn(number, leaf) for number, leaf in enumerate(leaves)])

    def _whole(
        self, leaf: int, outline: Tensor, shape: tuple[int, ...], generator: torch.Generator, *, ignores: bool
    ) -> Tensor:
        limit = self.limits.get(leaf, Limit())
        high = 1 + int(outline.any()) if limit.high is None else limit.high
        values = torch.randint(0, max(1, high), shape, generator=generator)
        if ignores and limit.ignored is not None and not limit.is_index and outline.dtype.is_signed:
            values = values.masked_fill(torch.rand(shape, generator=generator) < _IGNORED_SHARE, limit.ignored)
        return values

    def zeros(self) -> Any:
        """Return a batch of zeros, which are valid for every table and every set of classes."""
        return with_tensors(self.like, lambda outline: outline.new_zeros((self.num_examples, *outline.shape[1:])))


def _outline(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape and type; of its values only whether an integer is above zero."""
    top = tensor.new_zeros(())
    if not tensor.is_floating_point() and not tensor.is_complex() and tensor.numel():
        top = (tensor > 0).any().to(tensor.dtype)
    return top.expand(1, *tensor.shape[1:])


def joined(first: Any, second: Any, chosen: Tensor) -> Any:
    """Return a batch with the examples of ``first`` where ``chosen`` is true, and those of ``second`` elsewhere."""

    def pick(one: Tensor, other: Tensor) -> Tensor:
        return torch.where(chosen.to(one.device).view(-1, *[1] * (one.dim() - 1)), one, other)

    leaves, structure = flattened(first)
    return structure.filled([pick(one, other) for one, other in zip(leaves, leaves_of(second), strict=True)])


def part_of(batch: Any, num_examples: int) -> Any:
    """Return the first examples of a batch."""
    return with_tensors(batch, lambda tensor: tensor[:num_examples])


def spoiled(batch: Any) -> Any:
    """Return the batch with every real number replaced by NaN."""
    return with_tensors(batch, _not_a_number)


def _not_a_number(tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else tensor
