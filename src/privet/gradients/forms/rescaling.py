"""Per-example gradients in the units of a geometry, without writing them out.

The gradient of a linear map is an outer product of output gradient and input. Dividing its rows and columns by
their units is dividing these two factors, after which norms and sums are taken as always: shaped clipping costs two
small products.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from privet.gradients.forms.per_example import Convolution, Explicit, Lookup, Outer, PerExample, TiedTable
from privet.gradients.norms.product_precision import HALF
from privet.mechanism.geometry import Factors, along


def rescaled(part: PerExample, factors: Factors, shape: tuple[int, ...]) -> PerExample:
    """Return the gradients of one parameter divided by its units.

    Args:
        part: The gradients in whatever form they are kept.
        factors: The units.
        shape: Of the parameter.

    Guarantee:
        The gradients written out from the result are those of ``part`` over the units, up to rounding; norms and sums
        are taken from the result alone, so rounding cannot make a contribution longer than it was measured. A form
        that has no factors, and units that have none, are written out.
    """
    if factors.rows is None and factors.columns is None and factors.entries is None:
        return part
    if factors.entries is None:
        if isinstance(part, Outer) and _is_matrix(part, shape):
            return _outer(part, factors, shape)
        if isinstance(part, Convolution) and part.geometry.weight_shape == shape:
            return _convolution(part, factors)
        if isinstance(part, Lookup):
            return _lookup(part, factors)
        if isinstance(part, TiedTable) and _is_matrix(part.outer, shape):
            return TiedTable(lookup=_lookup(part.lookup, factors), outer=_outer(part.outer, factors, shape))
    return Explicit(gradients=factors.over(part.in_full()))


def _is_matrix(part: Outer, shape: tuple[int, ...]) -> bool:
    sizes = (part.out_grads.shape[2], part.inputs.shape[2])
    return len(shape) >= 2 and sizes == (shape[0], math.prod(shape[1:]))


def _over(tensor: Tensor, factor: Tensor | None, axis: int) -> Tensor:
    if factor is None:
        return tensor
    # half precision has too few exponents for a change of units
    return (tensor.float() if tensor.dtype in HALF else tensor) / along(factor, axis, tensor.dim())


def _outer(part: Outer, factors: Factors, shape: tuple[int, ...]) -> Outer:
    columns = factors.columns
    if columns is not None and len(columns) > 1 and len(shape) > 2:
        columns = columns.repeat_interleave(math.prod(shape[2:]))
    inputs, out_grads = _over(part.inputs, columns, 2), _over(part.out_grads, factors.rows, 2)
    if (inputs.dtype in HALF) != (out_grads.dtype in HALF):
        inputs, out_grads = inputs.float(), out_grads.float()
    return replace(part, inputs=inputs, out_grads=out_grads)


def _convolution(part: Convolution, factors: Factors) -> Convolution:
    columns = factors.columns
    if columns is not None and len(columns) > 1:
        columns = columns.repeat(part.geometry.groups)
    inputs, out_grads = _over(part.inputs, columns, 1), _over(part.out_grads, factors.rows, 1)
    if (inputs.dtype in HALF) != (out_grads.dtype in HALF):
        inputs, out_grads = inputs.float(), out_grads.float()
    return replace(part, inputs=inputs, out_grads=out_grads)


def _lookup(part: Lookup, factors: Factors) -> Lookup:
    out_grads = _over(part.out_grads, factors.columns, 2)
    if factors.rows is not None:
        units = factors.rows.expand(part.num_rows)[part.ids] if len(factors.rows) == 1 else factors.rows[part.ids]
        out_grads = out_grads / units.unsqueeze(2)
    return replace(part, out_grads=out_grads)
