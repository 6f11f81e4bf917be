"""Made-up batches: the shapes and types of real ones, and none of their values."""

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
    """Draws batches that look like a given one.

    Guarantee:
        Of the given batch only the shapes and types enter, and for whole numbers whether any of them is above zero:
        if so, zeros and ones are drawn, which are legal labels and token ids almost everywhere, else zeros alone. Where
        the program says which numbers it takes (``limits``), those are drawn, and labels that it ignores among them.

    Attributes:
        like: A batch as the data set gives it, examples along the first axis of every tensor.
        num_examples: Rows of the batches to draw.
    """

    like: Any
    num_examples: int
    limits: Mapping[int, Limit] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: Any, *, num_examples: int, size: int | None = None) -> MadeUpBatches:
        """Look at a batch, of ``size`` examples if that is known.

        Raises:
            DataError: it holds something else than tensors with one row per example, so no other can be made up.
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
        """Return the same with no more examples than these."""
        return replace(self, num_examples=min(num_examples, self.num_examples))

    @property
    def has_real_numbers(self) -> bool:
        """Whether any part of an example is a real number."""
        return any(tensor.is_floating_point() for tensor in tensors_of(self.like))

    def draw(self, low: float, high: float, *, seed: int, ignores: bool = False) -> Any:
        """Return a batch whose real numbers are uniform between two bounds; the same at every call.

        With ``ignores`` some labels are those that the program ignores: they have no loss, but counts of them differ.
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
        """Return a batch of zeros, which every table and every set of classes has."""
        return with_tensors(self.like, lambda outline: outline.new_zeros((self.num_examples, *outline.shape[1:])))


def _outline(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape and type without its values; whole numbers keep whether one is above zero."""
    top = tensor.new_zeros(())
    if not tensor.is_floating_point() and not tensor.is_complex() and tensor.numel():
        top = (tensor > 0).any().to(tensor.dtype)
    return top.expand(1, *tensor.shape[1:])


def joined(first: Any, second: Any, chosen: Tensor) -> Any:
    """Return the batch that has the first one's examples where ``chosen`` is true, and the second one's elsewhere."""

    def pick(one: Tensor, other: Tensor) -> Tensor:
        return torch.where(chosen.to(one.device).view(-1, *[1] * (one.dim() - 1)), one, other)

    leaves, structure = flattened(first)
    return structure.filled([pick(one, other) for one, other in zip(leaves, leaves_of(second), strict=True)])


def part_of(batch: Any, num_examples: int) -> Any:
    """Return the first examples of a batch."""
    return with_tensors(batch, lambda tensor: tensor[:num_examples])


def spoiled(batch: Any) -> Any:
    """Return the batch with every real number replaced by one that is not a number."""
    return with_tensors(batch, _not_a_number)


def _not_a_number(tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else tensor
