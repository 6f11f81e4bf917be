"""Sums of squared, clipped per-example gradients over the rows and over the columns of every parameter.

For a linear map that saw one position the squares of an outer product are products of squares, so nothing is written
out; any other form is written out for a few examples at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from privet.gradients.forms.per_example import Outer, PerExample
from privet.mechanism.layout import Layout
from privet.mechanism.second_moments import axis_sizes

# Elements written out at a time: they bound the extra memory.
_WRITTEN_OUT = 1 << 22


def add_axis_squares(part: PerExample, factors: Tensor, position: int, layout: Layout, into: Tensor) -> None:
    """Add the squares of factor times gradient, summed over examples and over each axis, to their places.

    Args:
        part: The gradients of one parameter, in the units of the step.
        factors: The clipping factor of each example, zero for examples that must not count; ``[batch]``.
        position: Of the parameter in the layout.
        layout: Of the model.
        into: All rows and columns of all parameters, in the order of the layout; in double precision.

    Guarantee:
        One example adds at most its squared clipped length to the rows, and as much to the columns.
    """
    sizes = axis_sizes(layout)
    start = sum(rows + columns for rows, columns in sizes[:position])
    num_rows, num_columns = sizes[position]
    by_row = into[start : start + num_rows]
    by_column = into[start + num_rows : start + num_rows + num_columns]
    shape = layout.shapes[position]
    if isinstance(part, Outer) and part.inputs.shape[1] == 1 and len(shape) == 2:
        out = (part.out_grads[:, 0].double() * factors[:, None]).square()
        entering = part.inputs[:, 0].double().square()
        by_row.add_(entering.sum(1) @ out)
        by_column.add_(out.sum(1) @ entering)
        return
    step = max(1, _WRITTEN_OUT // max(1, layout.sizes[position]))
    for first in range(0, len(part), step):
        rows = slice(first, first + step)
        _add_written_out(part[rows].in_full(), factors[rows], shape, by_row, by_column)


def _add_written_out(
    gradients: Tensor, factors: Tensor, shape: tuple[int, ...], by_row: Tensor, by_column: Tensor
) -> None:
    flat = gradients.reshape(len(gradients), -1).double()
    squares = torch.square(flat * factors[:, None]).sum(0)
    by_row.add_(squares.view(len(by_row), -1).sum(1))
    if len(by_column):
        by_column.add_(squares.view(shape[0], shape[1], -1).sum((0, 2)))
