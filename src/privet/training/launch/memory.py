"""Recorded programs: the fixed memory that they read and write, and the comparison with the program itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from privet.gradients.norms.product_precision import convolutions_round, products_round
from privet.training.batching import Draws
from privet.training.launch.recording import Outcome, Program, Run, zeros_like


class NotFinite(RuntimeError):
    """A gradient that is not finite got into a sum; the step must be summed again, operation by operation."""


@dataclass(kw_only=True, eq=False)
class FixedMemory:
    """The tensors that recordings of one form of batch read.

    Attributes:
        leaves: Those of the batch, with as many rows as fit.
        present: Which rows hold examples; the others are padding.
        keep: The mask of coordinates; None if there is none.
    """

    leaves: Sequence[Tensor]
    present: Tensor
    keep: Tensor | None
    _is_full: bool = True
    _mask: Tensor | None = None

    @classmethod
    def for_batches_like(cls, leaves: Sequence[Tensor], limit: int, keep: Tensor | None) -> FixedMemory:
        """Make room for ``limit`` examples."""
        device = leaves[0].device
        return cls(
            leaves=[leaf.new_empty((limit, *leaf.shape[1:])) for leaf in leaves],
            present=torch.ones(limit, dtype=torch.bool, device=device),
            keep=None if keep is None else keep.clone(),
        )

    def fill(self, leaves: Sequence[Tensor], size: int, keep: Tensor | None) -> None:
        """Copy mask and examples in; rows that are left are copies of the first example, and are not present."""
        limit = len(self.present)
        if self.keep is not None and keep is not None and keep is not self._mask:
            self.keep.copy_(keep)
            self._mask = keep  # held, so that no other mask can take its place in memory and pass for it
        for mine, given in zip(self.leaves, leaves, strict=True):
            mine[:size].copy_(given)
            if size < limit:
                mine[size:].copy_(given[:1].expand(limit - size, *given.shape[1:]))
        if size < limit or not self._is_full:
            self.present[:size].fill_(True)
            self.present[size:].fill_(False)
        self._is_full = size == limit

    def repeat_first(self) -> None:
        """Fill all rows with the first example, to record on other examples than the recording is compared on."""
        for leaf in self.leaves:
            leaf.copy_(leaf[:1].clone().expand_as(leaf))


@dataclass(kw_only=True, eq=False)
class Recording:
    """A recorded program.

    Attributes:
        run: Runs the program on the fixed memory.
        needs_check: Whether a norm that is not finite means that the sum is corrupt.
    """

    run: Run
    needs_check: Callable[[], bool]

    def replay(self, size: int) -> Outcome:
        """Add the sum of the ``size`` examples in the fixed memory.

        Raises:
            NotFinite: if the sum must be thrown away.
        """
        outcome = self.run()
        if size < len(outcome.losses):
            outcome = Outcome(*(tensor[:size] for tensor in outcome))
        if self.needs_check() and not math.isfinite(float(outcome.norms.sum())):
            raise NotFinite
        return outcome


@dataclass(frozen=True, kw_only=True)
class Precision:
    """How exactly a program computes.

    Attributes:
        unit: The largest relative error of one operation.
    """

    unit: float

    @classmethod
    def of(cls, dtypes: Sequence[torch.dtype], device: torch.device) -> Precision:
        """Return the precision of a program with results of these types."""
        units = [torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point]
        if device.type == "cuda" and (products_round() or convolutions_round()):
            units.append(2.0**-10)
        return cls(unit=max(units, default=torch.finfo(torch.float32).eps))

    @property
    def slack(self) -> float:
        """The relative difference that two orders of the same operations may have in a deep network."""
        return min(0.1, 16 * self.unit)


@dataclass(frozen=True, kw_only=True, eq=False)
class Wanted:
    """What a program gives on the examples in its memory, to compare its recording with.

    Attributes:
        outcome: Losses and norms. Private.
        sums: What it adds to each place. Private.
        draws: The states of the generators that it drew from.
    """

    outcome: Outcome
    sums: Sequence[Tensor]
    draws: Draws

    @classmethod
    def of(cls, program: Program, memory: FixedMemory, places: Sequence[Tensor]) -> Self:
        """Run the program; ``places`` are left as they are.

        To be called before the recording is made, which keeps its memory for itself: after that a device would have to
        hold both.
        """
        draws, sums = Draws.now(memory.present.device), zeros_like(places)
        outcome = program(sums, memory.present, *memory.leaves)
        return cls(outcome=Outcome(*(tensor.clone() for tensor in outcome)), sums=sums, draws=draws)


def check_recording(
    recording: Recording, wanted: Wanted, memory: FixedMemory, places: Sequence[Tensor], precision: Precision
) -> None:
    """Compare a recording with its program, on other examples than it was recorded with, and with the same draws.

    A recorder that missed an operation would have frozen its result.

    Args:
        recording: It adds to ``places``, which are left as they were.
        wanted: What the program gave.
        memory: Filled with the same examples.
        places: Where the recording adds its sums.
        precision: Of the program.

    Raises:
        RuntimeError: if they differ by more than rounding.
    """
    before = [place.clone() for place in places]
    wanted.draws.restore()
    for place in places:
        place.zero_()
    try:
        found = recording.replay(len(memory.present))
        for what, mine, theirs in (
            ("losses", found.losses, wanted.outcome.losses),
            ("norms", found.norms, wanted.outcome.norms),
        ):
            rows = memory.present.reshape(-1, *[1] * (mine.dim() - 1))
            _compare(what, [torch.where(rows, mine, 0)], [torch.where(rows, theirs, 0)], precision)
        _compare("sums", places, wanted.sums, precision)
    finally:
        for place, earlier in zip(places, before, strict=True):
            place.copy_(earlier)


def _compare(what: str, found: Sequence[Tensor], wanted: Sequence[Tensor], precision: Precision) -> None:
    total = _length(wanted)
    difference = _length([mine.double() - theirs.double() for mine, theirs in zip(found, wanted, strict=True)])
    if not bool(difference <= precision.slack * total) and bool(total.isfinite()):
        raise RuntimeError(f"the recording gives other {what} than the program")


def _length(tensors: Sequence[Tensor]) -> Any:
    return torch.stack([torch.linalg.vector_norm(tensor.detach().double()) for tensor in tensors]).norm()
