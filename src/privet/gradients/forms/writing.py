"""Ways to write per-example gradients out, where something must be done to each of them: a mask, a way back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor

from privet.gradients.forms.per_example import Convolution, Explicit, Lookup, PerExample
from privet.gradients.norms import kernels
from privet.gradients.norms.conv_strategies import ConvKernel, GroupedNormOnly, Unfolded, patches_of
from privet.gradients.norms.strategies import NormOnly, Squares, Store, hedged


class Writer(Protocol):
    """One way to write gradients out."""

    @property
    def name(self) -> str:
        """Its name in reports."""
        ...

    def fits(self, part: PerExample) -> bool:
        """Whether it can write gradients of this form within the memory limits."""
        ...

    def write(self, part: PerExample) -> Tensor:
        """Return the gradients ``[batch, *parameter]``, in memory of their own."""
        ...


@dataclass(frozen=True, kw_only=True)
class Plainly:
    """By the form itself: a batched product, a grouped convolution, a scatter."""

    name: str = "plain"

    def fits(self, part: PerExample) -> bool:
        """Not where a kernel does better: grouped convolutions are slow on accelerators, and slow to tune."""
        return not ByKernel().fits(part)

    def write(self, part: PerExample) -> Tensor:
        """Write."""
        return part.in_full().clone() if isinstance(part, Explicit) else part.in_full()


@dataclass(frozen=True, kw_only=True)
class ByPatches:
    """A convolution by a batched product with its patches."""

    name: str = "patches"

    def fits(self, part: PerExample) -> bool:
        """Where unfolding is possible, and no kernel does it without."""
        if ByKernel().fits(part):
            return False
        return isinstance(part, Convolution) and Unfolded(by=Store(), keeps_convolution=False).fits(part)

    def write(self, part: Any) -> Tensor:
        """Unfold and multiply."""
        written: Tensor = patches_of(part).in_full()
        return written.view(-1, *part.geometry.weight_shape)


@dataclass(frozen=True, kw_only=True)
class ByKernel:
    """A two-dimensional convolution by the kernel for accelerators."""

    name: str = "kernel"

    def fits(self, part: PerExample) -> bool:
        """On a device that runs kernels."""
        return isinstance(part, Convolution) and part.inputs.dim() == 4 and kernels.available(part.inputs)

    def write(self, part: Any) -> Tensor:
        """Run the kernel; the norms it finds are those without a mask, and are dropped."""
        _, kept = ConvKernel(store=True).measure(part)
        assert isinstance(kept, Explicit), "storing was asked for"
        return kept.gradients


@dataclass(frozen=True, kw_only=True)
class WrittenOut:
    """The beginning of a strategy that writes gradients out and changes each of them before it measures.

    Attributes:
        by: How they are written out.
        store: Whether they are kept for the sum. Dropped, they are written some examples at a time, and the sum is
            formed anew.
    """

    by: Writer
    store: bool
    form: ClassVar[str]

    @property
    def name(self) -> str:
        """Its name in reports."""
        return f"{self.form} {self.by.name}, {'store' if self.store else 'norm only'}"


WRITERS: Sequence[Writer] = (Plainly(), ByPatches(), ByKernel())
"""All of them; where several fit, strategies that use them are timed."""


def written_out(part: PerExample) -> Tensor:
    """Write gradients out once, in a way that is never slow; they are not to be changed."""
    if isinstance(part, Explicit):
        return part.gradients
    return next(writer for writer in reversed(WRITERS) if writer.fits(part)).write(part)


def room_for_rounding(part: Any) -> Squares:
    """Return the error bound of rounding for norms that are formed by other operations than the sum; no squares."""
    zeros = part.out_grads.new_zeros(len(part))
    if isinstance(part, Lookup):
        return hedged(zeros, part.out_grads.square().sum((1, 2)), part.ids.shape[1], part.out_grads)
    return (GroupedNormOnly() if isinstance(part, Convolution) else NormOnly()).hedged(zeros, part)
