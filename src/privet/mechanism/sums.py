"""The two stages of a gradient sum: bounded but secret, then private.

Only :class:`PrivateSum` can write ``p.grad``. A sum that was not bounded, or not noised, has no way to an optimizer,
and the type checker sees it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol

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
    """Where noise comes from: a keyed stream of standard normal numbers."""

    def add_normal(self, flat: Tensor, std: float) -> None:
        """Add a fresh N(0, std^2) draw, made in double precision, to every element of a vector in place."""
        ...


@dataclass(kw_only=True, eq=False)
class ClippedSum:
    """The sum of clipped per-example gradients of one logical batch, before noise. Secret: never log it, never save it.

    Guarantee:
        ``flat`` moves by at most ``sensitivity`` when one unit is removed from the batch. Coordinates outside ``keep``
        are exactly zero. An empty batch is a sum of zeros.

    Attributes:
        flat: The sum.
        layout: Where each parameter lies in it.
        sensitivity: The bound.
        is_held: Whether engines hold every contribution to the bound, whatever the clipping rule says. False for plans
            without clipping only, whose guarantee is that there is none.
        keep: True for the coordinates that take part; None for all.
        kept: The same choice in the forms that save work; None where only ``keep`` is known.
        frame: The units in which the sum and its bound are stated; None for plain ones.
        squares: Sums of squared clipped gradients over rows and columns, in the same units and as secret; None if they
            are not asked for.
        places: What the parts of single parameters are added to in place of ``flat``, in the layout's order, while a
            program is traced that returns them; None adds to ``flat``.
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

    def part(self, position: int) -> Tensor:
        """Return the part of the parameter at a position of the layout, in its shape, to be added to in place."""
        if self.places is not None:
            return self.places[position]
        return self.flat[self.layout.slices[position]].view(self.layout.shapes[position])

    def clear(self) -> None:
        """Start over from an empty batch."""
        self.flat.zero_()
        if self.squares is not None:
            self.squares.zero_()

    def refuse_units(self, piece: str) -> NoReturn:
        """Refuse noise that is made for plain units, where the sum was clipped in those of a geometry."""
        raise LoopError(
            f"{piece} needs a sum in plain units, but this one was clipped in those of a geometry. Use "
            "EllipticalGaussian with the same geometry."
        )


@dataclass(kw_only=True, eq=False)
class PrivateSum:
    """A clipped sum after noise, with the event built from the noise and the bound that were really used.

    Attributes:
        flat: The noisy sum.
        layout: Where each parameter lies in it.
        event: What releasing it costs.
        noise_std: Standard deviation of the noise on each kept coordinate; None where coordinates differ.
    """

    flat: Tensor
    layout: Layout
    event: DpEvent
    noise_std: float | None = None

    def write_gradients(
        self, parameters: Sequence[Parameter], *, divisor: float, divided: Quotient = operator.truediv
    ) -> None:
        """Set each parameter's ``.grad`` to its part of the sum over ``divisor``.

        Args:
            parameters: In the layout's order.
            divisor: By what the sum is divided.
            divided: Returns the quotient, which must not be a view of the sum; in new memory each time by default.

        Guarantee:
            ``divisor`` is a public constant of the plan. Dividing by the number of examples really drawn would reveal
            that number through the size of the noise. The gradients have memory of their own: a view of ``flat`` would
            show the next step's sum before its noise.
        """
        if type(divisor) is not float or not 0 < divisor < math.inf:
            divisor = checks.positive("divisor", divisor)
        gradients = divided(self.flat, divisor)
        for parameter, where, shape in zip(parameters, self.layout.slices, self.layout.shapes, strict=True):
            parameter.grad = gradients[where].view(shape).to(parameter.dtype)
