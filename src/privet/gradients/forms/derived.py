"""Gradients of parameters of which a layer's weight is computed: standardised, normalised, scaled, merged weights.

The weight of a layer may be computed from parameters alone, before it meets an example. Going from the gradient of
such a tensor back to its parameters is a linear map that is the same for all examples. So the weighted sum over
examples goes back once, as in plain training. Only norms need each example's own gradient; those are written out some
at a time, sent back, measured and dropped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from privet.errors import NoExampleRule
from privet.gradients.capture.autograd_graph import nodes_behind
from privet.gradients.engines.support import quiet_vmap
from privet.gradients.forms.by_rows import RowLengths, full_parameter, unit_directions
from privet.gradients.forms.per_example import Explicit, PerExample
from privet.gradients.forms.writing import WRITERS, WrittenOut, room_for_rounding, written_out
from privet.gradients.norms.strategies import MAX_STORED, Squares, in_pieces, square_sums

# A sequence of signs without a pattern: the fractional parts of multiples of this number are spread evenly.
_SPREAD = 0.7548776662466927


@dataclass(frozen=True, kw_only=True, eq=False)
class WayBack:
    """From a tensor that is computed from parameters alone to these parameters.

    Attributes:
        tensor: The computed tensor.
        parameters: The parameters that it is computed from.
    """

    tensor: Tensor
    parameters: tuple[nn.Parameter, ...]

    @property
    def is_linear(self) -> bool:
        """Whether gradients go back by torch's own operations alone, in at least single precision.

        Guarantee:
            Then the way back of a sum of gradients is the sum of their ways back. Python code on the way may do
            anything with a gradient, and rounding to half precision moves a sum by more than one example may. Hooks
            on parameters are refused elsewhere; those on the tensors between are for the caller to know of.
        """
        for node in nodes_behind([self.tensor.grad_fn]):
            if isinstance(node, BackwardCFunction) or any(kind.dtype.itemsize < 4 for kind in node._input_metadata):
                return False
        return all(tensor.dtype.itemsize >= 4 for tensor in (self.tensor, *self.parameters))

    def of_each(self, gradients: Tensor) -> list[Tensor | None]:
        """Send many gradients back, ``[number, *tensor]`` to ``[number, *parameter]``; None where nothing arrives.

        Raises:
            NoExampleRule: torch cannot send them back together.
        """
        try:
            with quiet_vmap():
                return list(self._sent(gradients, are_many=True))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise NoExampleRule(f"Gradients cannot be carried back to parameters together ({reason}).") from error

    def of_sum(self, gradient: Tensor) -> list[Tensor]:
        """Send one gradient back."""
        pairs = zip(self._sent(gradient, are_many=False), self.parameters, strict=True)
        return [torch.zeros_like(parameter) if found is None else found for found, parameter in pairs]

    def _sent(self, gradients: Tensor, *, are_many: bool) -> Sequence[Tensor | None]:
        found: Sequence[Tensor | None] = torch.autograd.grad(
            self.tensor,
            self.parameters,
            grad_outputs=gradients.to(self.tensor.dtype),
            is_grads_batched=are_many,
            retain_graph=True,
            allow_unused=True,
        )
        return found

    def square_sums(self, gradients: Tensor) -> Tensor:
        """Return the squared lengths of many gradients after they were sent back, over all parameters together."""
        found = [square_sums(part) for part in self.of_each(gradients) if part is not None]
        return torch.stack(found).sum(0) if found else gradients.new_zeros(len(gradients))

    @functools.cached_property
    def rows_of(self) -> Tensor | None:
        """The parameter whose rows become those of the tensor, where lengths follow from a few numbers per row."""
        return full_parameter(self.tensor)

    def measure(self) -> tuple[Callable[[Tensor], Tensor], Tensor]:
        """Return a function that measures gradients where they arrive, and by how much a square may grow on the way.

        The largest growth says by how much rounding may grow.
        """
        if self.rows_of is None:
            return self.square_sums, self.gain()
        lengths = self.row_lengths(self.rows_of)
        return lengths.square_sums, lengths.gain

    def row_lengths(self, parameter: Tensor) -> RowLengths:
        """Find out how rows change, by sending back four gradients: one outside of the plane, three within it."""
        num_rows, kind = self.tensor.shape[0], torch.promote_types(self.tensor.dtype, torch.float32)
        direction = unit_directions(parameter, num_rows).to(kind)
        ones = torch.full_like(direction, direction.shape[1] ** -0.5)
        outside = self._signs().view(direction.shape)
        for unit in (ones, direction):
            outside = outside - (outside * unit).sum(1, keepdim=True) * unit
        sent = torch.stack([outside, ones, direction, ones + direction])
        arrived = [found for found in self.of_each(sent.view(4, *self.tensor.shape)) if found is not None]
        squares = torch.stack([found.reshape(4, num_rows, -1).square().sum(2) for found in arrived]).sum(0)
        along, other = squares[1], squares[2]
        across = (squares[3] - along - other) / 2
        coefficients = torch.stack([squares[0] / outside.square().sum(1), along, across, other], 1)
        return RowLengths(direction=direction, coefficients=coefficients)

    def _signs(self) -> Tensor:
        """Return numbers 1 and -1 without a pattern: they have a share of every direction."""
        kind = torch.promote_types(self.tensor.dtype, torch.float32)
        signs = torch.arange(1, self.tensor.numel() + 1, device=self.tensor.device, dtype=torch.float64).mul_(_SPREAD)
        return torch.where(signs.remainder_(1) < 0.5, -1.0, 1.0).to(kind).view(self.tensor.shape)

    def gain(self) -> Tensor:
        """Return how many times as large a square becomes on the way: that of the row that grows most."""
        number, signs = self.tensor.numel(), self._signs()
        num_rows = self.tensor.shape[0] if self.tensor.dim() > 1 else 1
        growth = signs.new_zeros(num_rows)
        for found in self.of_sum(signs):
            by_row = found.shape[:1] == (num_rows,) and num_rows > 1
            growth += square_sums(found.reshape(num_rows, -1) if by_row else found.reshape(1, -1))
        return growth.amax() * (num_rows / number)


@dataclass(frozen=True, kw_only=True, eq=False)
class Derived:
    """Gradients of parameters from those of a tensor that is computed from them; the parameters count as one vector.

    Attributes:
        part: The gradients of the computed tensor.
        way: From it to the parameters.
    """

    part: PerExample
    way: WayBack

    @property
    def shape_key(self) -> Hashable:
        shapes = tuple(tuple(parameter.shape) for parameter in self.way.parameters)
        return (type(self.part).__name__, self.part.shape_key, shapes, self.way.rows_of is not None)

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, rows: slice) -> Derived:
        return replace(self, part=self.part[rows])

    def in_full(self) -> Tensor:
        """Write the gradients out and send them back; ``[batch, size of all parameters]``."""
        gradients = written_out(self.part)
        pairs = zip(self.way.of_each(gradients), self.way.parameters, strict=True)
        return torch.cat(
            [
                gradients.new_zeros(len(self), each.numel()) if found is None else found.flatten(1)
                for found, each in pairs
            ],
            1,
        )

    def sums(self, weights: Tensor) -> list[Tensor]:
        """Return the weighted sum over examples, one tensor for each parameter.

        Guarantee:
            It is the weighted sum of the gradients that arrive for each example, because the way back is linear.
        """
        total = torch.zeros_like(self.way.tensor, memory_format=torch.contiguous_format)
        self.part.add_weighted_sum(weights, total)
        return self.way.of_sum(total)

    def add_weighted_sum(self, weights: Tensor, into: Tensor) -> None:
        into += torch.cat([found.reshape(-1) for found in self.sums(weights)])

    def without(self, bad: Tensor) -> Derived:
        return replace(self, part=self.part.without(bad))


@dataclass(frozen=True, kw_only=True)
class DerivedWritten(WrittenOut):
    """Write gradients out some examples at a time, and measure them where they arrive.

    Those of the computed tensor may be kept.
    """

    form = "derived"

    def fits(self, part: Derived) -> bool:
        """Within the memory limit if stored. A written-out gradient is stored already."""
        if not self.by.fits(part.part):
            return False
        if isinstance(part.part, Explicit):
            return self.store
        return not self.store or len(part) * part.way.tensor.numel() <= MAX_STORED

    def measure(self, part: Derived) -> tuple[Squares, PerExample]:
        """Write, send back and measure."""
        size = part.way.tensor.numel()
        square_sums_of, gain = part.way.measure()
        if self.store:
            written = part.part.gradients if isinstance(part.part, Explicit) else self.by.write(part.part)
            kept = replace(part, part=Explicit(gradients=written))
            sums = in_pieces(kept, size, lambda piece: square_sums_of(piece.part.gradients))
            # sum and norm come from the same numbers, but cancellation on the way back leaves rounding
            sizes = square_sums(written).mul_(gain)
            return Squares(sums=sums, sizes=sizes, floor=torch.finfo(sizes.dtype).eps * (1 << 13)), kept
        sums = in_pieces(part, size, lambda piece: square_sums_of(self.by.write(piece.part)))
        room = room_for_rounding(part.part)
        assert room.sizes is not None, "sums formed by other operations leave room"
        return replace(room, sums=sums, sizes=room.sizes * gain), part


DERIVED: Sequence[DerivedWritten] = tuple(
    DerivedWritten(by=by, store=store) for by in WRITERS for store in (True, False)
)
"""Strategies for gradients that are sent back; where several fit, they are timed."""
