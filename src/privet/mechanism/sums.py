"""The two stages of a gradient sum: clipped and secret, then private.

Only :class:`PrivateSum` can write ``p.grad``. A sum without a bound or without noise cannot reach an optimizer, and the
type checker enforces it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol, runtime_checkable

from privet import checks
from privet.errors import LoopError
from privet.mechanism.geometry import Frame
from privet.mechanism.granularity import Kept
from privet.mechanism.layout import Layout
from privet.mechanism.sensitivity import Sensitivity

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from torch import Tensor
    from torch.nn import Parameter

    Quotient = Callable[[Tensor, float], Tensor]


class NormalSource(Protocol):
    """The source of noise: a keyed stream of standard normal numbers."""

    def add_normal(self, flat: Tensor, std: float) -> None:
        """Add a new N(0, std^2) draw, in double precision, to every element of a vector in place."""
        ...


class Scatter(Protocol):
    """Adds the sums of all ranks up, and keeps the part of them that this rank holds."""

    def add(self, form: Callable[[int, Tensor], None], flat: Tensor) -> None:
        """Add this rank's part of the sum over all ranks to ``flat``, parameter by parameter.

        Args:
            form: Adds this rank's part of the parameter at a position of the layout to zeros in its whole shape.
                Called once for each, in an order that is the same on all ranks.
            flat: This rank's part of the sum.

        Guarantee:
            Every rank takes part for every parameter, whatever it has of it. Nothing is rounded to less than single
            precision on the way.
        """
        ...

    def gathered(self, tensors: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Hold the numbers of these whole parameters for the length of the block, on all ranks at once."""
        ...

    def is_any(self, flag: bool) -> bool:
        """Whether a flag is set on any rank; asked on all ranks at once."""
        ...


@runtime_checkable
class NumberedSource(NormalSource, Protocol):
    """A source that can also repeat draws, by their numbers."""

    def new_number(self) -> int:
        """Return a number that this source has given to nobody."""
        ...

    def numbered(self, number: int) -> NormalSource:
        """Return a stream that is the same for the same number and independent of all other draws.

        It is good for one vector, and until the next call.
        """
        ...


@dataclass(kw_only=True, eq=False)
class ClippedSum:
    """The sum of clipped per-example gradients of one logical batch, before noise. Secret: never log it, never save it.

    Guarantee:
        ``flat`` moves by at most ``sensitivity`` when one unit is removed from the batch. Coordinates outside ``keep``
        are exactly zero. An empty batch is a sum of zeros.

    Attributes:
        flat: The sum.
        layout: The position of each parameter in the sum.
        sensitivity: The bound.
        is_held: Whether engines hold every contribution to the bound, independent of the clipping rule. False only for
            plans without clipping, which have no guarantee.
        keep: True for the coordinates that take part; None for all.
        kept: The same mask with precomputed forms; None if only ``keep`` is known.
        frame: The units of the sum and its bound; None for plain units.
        squares: Sums of squared clipped gradients over rows and columns, in the same units; secret. None if unused.
        places: One tensor per parameter, in the order of the layout, to which engines add instead of ``flat`` while a
            program that returns them is traced; None to add to ``flat``.
        scatter: Adds the sums of all ranks up where ``flat`` holds this rank's part alone; the layout is that of the
            whole. None where ``flat`` is the whole sum.
    """

    flat: Tensor
    layout: Layout
    sensitivity: Sensitivity
    is_held: bool = True
    keep: Tensor | None = None
    kept: Kept | None = None
    frame: Frame | None = None
    squares: Tensor | None = None
    places: Sequence[Tensor] | None = None
    scatter: Scatter | None = None

    def part(self, position: int) -> Tensor:
        """Return a view of the sum for the parameter at a position of the layout, in its shape."""
        if self.places is not None:
            return self.places[position]
        return self.flat[self.layout.slices[position]].view(self.layout.shapes[position])

    def clear(self) -> None:
        """Reset to the sum of an empty batch."""
        self.flat.zero_()
        if self.squares is not None:
            self.squares.zero_()

    def refuse_units(self, piece: str) -> NoReturn:
        """Refuse a sum in the units of a geometry, for noise that does not support units."""
        raise LoopError(
            f"{piece} needs a sum in plain units, but this one was clipped in the units of a geometry. Use "
            "EllipticalGaussian with the same geometry."
        )


@dataclass(kw_only=True, eq=False)
class PartViews:
    """Views of a flat vector, one for each parameter in its shape, made once for the same vector."""

    layout: Layout
    _flat: Tensor | None = None
    _parts: Sequence[Tensor] = ()

    def of(self, flat: Tensor) -> Sequence[Tensor]:
        """Return the views of a vector, in the order of the layout."""
        if flat is not self._flat:
            cut = zip(self.layout.slices, self.layout.shapes, strict=True)
            self._flat, self._parts = flat, tuple(flat[where].view(shape) for where, shape in cut)
        return self._parts


@dataclass(kw_only=True, eq=False)
class PrivateSum:
    """A clipped sum after noise, with an event built from the noise and the bound that were really used.

    Attributes:
        flat: The noisy sum.
        layout: The position of each parameter in the sum.
        event: The cost of its release.
        noise_std: Standard deviation of the noise on each kept coordinate; None if coordinates differ.
    """

    flat: Tensor
    layout: Layout
    event: DpEvent
    noise_std: float | None = None

    def write_gradients(
        self,
        parameters: Sequence[Parameter],
        *,
        divisor: float,
        divided: Quotient = operator.truediv,
        views: PartViews | None = None,
    ) -> None:
        """Set each parameter's ``.grad`` to its part of the sum over ``divisor``.

        Args:
            parameters: In the order of the layout.
            divisor: The divisor of the sum.
            divided: Computes the quotient, which must not be a view of the sum; by default in new memory each time.
            views: Those of the memory of the quotient, where it is the same each time.

        Guarantee:
            ``divisor`` is a public constant of the plan. Dividing by the actual number of sampled examples would reveal
            that number through the size of the noise. The gradients do not share memory with ``flat``: a view would
            show the sum of the next step before its noise.
        """
        if type(divisor) is not float or not 0 < divisor < math.inf:
            divisor = checks.positive("divisor", divisor)
        gradients = (views or PartViews(layout=self.layout)).of(divided(self.flat, divisor))
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient if gradient.dtype == parameter.dtype else gradient.to(parameter.dtype)
