"""Rules of rows that travel: sorted or picked by what is in the examples, computed upon, and brought back.

Mixtures of experts, packed sequences and graphs move rows about by number. A row that travels belongs to the example it
came from. As long as every operation treats each row like every other and for itself, examples stay apart, wherever the
rows lie. Where a row lies is another matter: its rank tells how many rows of other examples come before it, so a rank
may serve to bring rows back and for nothing else. The same holds for counts of keys: they may say where the rows of one
key end, to an operation that gives all rows of a key the same weights.

Guarantee:
    A result that is given a place or rows holds, for each example, numbers that depend on that example and on public
    numbers alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from privet.isolation.call import Call, specs_in
from privet.isolation.place import Mixes, NoRule, Place, Role, Rows, Spec, Verdict, regrouped

_ORDERS = itertools.count(1)
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_MASKS = (torch.bool, torch.uint8)
_RANK = "what becomes of a row depends on its rank among the rows of other examples"
_COPIES = frozenset(["_to_copy", "clone", "detach", "alias", "lift_fresh", "contiguous"])
_ADDING = frozenset(["index_add", "index_add_", "index_copy", "index_copy_"])
_PLACING = frozenset(["index_put", "index_put_", "_unsafe_index_put", "_index_put_impl_"])
_PICKING = frozenset(["index", "_unsafe_index"])
_DIVIDING = frozenset(["floor_divide", "div"])
_MOST_BINS = 1 << 20  # so many lie apart by more than rounding
_SEVERAL = 3


def sorted_rows(call: Call) -> Sequence[Verdict]:
    """``sort`` of a vector along the examples: its keys in order, and where they came from."""
    spec, place = call.first()
    is_ascending = not (call.has("descending") and call.arg("descending"))
    key = spec.serial if is_ascending and not spec.was_written else -1
    rows = Rows(0, next(_ORDERS), place.at(0), Role.NUMBERS, key=key, is_all=True)
    call.out_specs[0].below = None if spec.was_written else spec.below
    return [replace(rows, role=Role.SORTED if is_ascending else Role.CONTENT), rows]


def can_sort(call: Call) -> bool:
    """Whether an operation sorts a vector along the examples, and says where each went."""
    return call.name == "sort" and call.args[0].ndim == 1 and len(call.out_specs) == 2


def chosen_numbers(call: Call) -> Sequence[Verdict]:
    """``nonzero`` of a mask of the examples: where the chosen rows are."""
    spec: Spec = call.args[0]
    place = spec.place
    if place is None or place.is_single or call.name != "nonzero":
        raise NoRule("rows are chosen by what is in the examples")
    return [Rows(0, next(_ORDERS), place.at(0), Role.COLUMNS, column=place.axis)]


def masked_rows(spec: Spec, mask: Spec) -> Rows | None:
    """Return the finding on ``x[mask]``: the chosen rows; None where the mask does not lie as the examples do.

    A public mask with one entry for each example chooses some of the examples, whatever its numbers are. With more
    entries it could choose from tensors in which the examples lie at different places.
    """
    place, width = mask.place, mask.ndim
    if mask.verdict is None and spec.place is not None and (spec.place.before, spec.place.after) == (1, 1):
        place = spec.place if width == 1 and spec.place.axis == 0 else None
    if place is None or place.is_single or width == 0 or mask.was_written or mask.serial < 0:
        return None
    if spec.place != place or spec.shape[:width] != mask.shape:
        return None
    origin = regrouped(place, mask.shape, (math.prod(mask.shape),))
    return Rows(0, -mask.serial - 1, origin, Role.CONTENT)


def put_by_mask(into: Spec, mask: Spec, values: Spec) -> Place | None:
    """Return the place after ``x[mask] = rows`` with rows that were chosen by the same mask; None for other values."""
    rows = values.verdict
    if not isinstance(rows, Rows) or mask.was_written or mask.dtype not in _MASKS or isinstance(mask.verdict, Rows):
        return None
    # a vector that is public lies as the rows did that it chose
    place = rows.origin.at(0) if mask.verdict is None and mask.ndim == 1 else mask.place
    if place is None:
        return None
    is_same = rows.order == -mask.serial - 1 and rows.axis in (0, -1) and rows.role is Role.CONTENT
    is_wide = values.ndim == into.ndim - mask.ndim + 1 + rows.axis * (rows.axis < 0)
    is_wide = is_wide and into.shape[: mask.ndim] == mask.shape
    return place if is_same and is_wide and into.verdict in (None, place) else None


def counts_of(spec: Spec, call: Call) -> Rows | None:
    """Return the finding on counts of keys, if there is a bin for each; None if there is not."""
    if spec.below is None or spec.was_written:
        return None
    if call.name == "histc":
        bins = int(call.arg("bins"))
        if (call.arg("min"), call.arg("max")) != (0, bins - 1) or not spec.below <= bins <= _MOST_BINS:
            return None
    verdict = spec.verdict
    if isinstance(verdict, Rows):
        return replace(verdict, role=Role.COUNTS) if verdict.role is Role.SORTED else None
    if isinstance(verdict, Place) and spec.ndim == 1:
        return Rows(0, 0, verdict.at(0), Role.COUNTS, key=spec.serial, is_all=True)
    return None


def travelling(call: Call, rule: Callable[[Call], Sequence[Verdict]] | None) -> Sequence[Verdict]:
    """Return the verdicts on an operation among whose arguments are rows that travel.

    Args:
        call: The operation.
        rule: Its ordinary rule.

    Raises:
        Mixes: if it computes with where the rows lie, or lets rows meet.
        NoRule: if no rule says what it does.
    """
    special = _special(call)
    if special is not None:
        return special
    found = [spec.verdict for spec in call.specs if spec.verdict is not None]
    rows = [verdict for verdict in found if isinstance(verdict, Rows)]
    first = rows[0]
    if any(verdict.role not in (Role.CONTENT, Role.SORTED) for verdict in rows):
        raise Mixes(_RANK)
    is_one_order = all(verdict.order == first.order and verdict.origin.same_examples(first.origin) for verdict in rows)
    if len(rows) < len(found) or not is_one_order:
        raise Mixes("rows in an order that the examples give meet rows in another")
    if rule is None:
        raise NoRule("it has no rule")
    return _row_by_row(call, rule, first)


def _row_by_row(call: Call, rule: Callable[[Call], Sequence[Verdict]], rows: Rows) -> Sequence[Verdict]:
    """Ask the ordinary rule, with every row an example of its own: then no row meets another."""
    if any(isinstance(spec.verdict, Rows) and spec.verdict.axis < 0 for spec in call.specs):
        raise NoRule("a single row has no axis of rows")
    lengths = {spec.shape[spec.verdict.axis] for spec in call.specs if isinstance(spec.verdict, Rows)}
    if len(lengths) != 1:
        raise NoRule("rows of different numbers")
    (length,) = lengths
    shapes = [spec.shape for spec in call.out_specs]
    if length < 2:  # the rule must hold for more rows as well, however few there are today
        length, shapes = _SEVERAL, _shapes_of_more(call)
    asked = Call(
        call.operation,
        [_as_examples(arg, length) for arg in call.args],
        {name: _as_examples(value, length) for name, value in call.kwargs.items()},
        [Spec(shape, dtype=spec.dtype) for spec, shape in zip(call.out_specs, shapes, strict=True)],
    )
    verdicts: list[Verdict] = []
    for verdict in rule(asked):
        if verdict is None:
            verdicts.append(None)
        elif isinstance(verdict, Place) and verdict.before == verdict.after == 1 and verdict.num == length:
            verdicts.append(replace(rows, axis=verdict.axis, role=Role.CONTENT))
        else:
            raise NoRule("rows in an order that the examples give are folded into others")
    return verdicts


def _shapes_of_more(call: Call) -> list[tuple[int, ...]]:
    """Return the shapes of the results if there were several rows."""

    def meta(value: Any) -> Any:
        if isinstance(value, Spec):
            return torch.empty(_as_examples(value, _SEVERAL).shape, dtype=value.dtype, device="meta")
        return [meta(item) for item in value] if isinstance(value, list | tuple) else value

    try:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
            given = {name: meta(value) for name, value in call.kwargs.items()}
            found = call.operation(*map(meta, call.args), **given)
    except (RuntimeError, NotImplementedError, IndexError, TypeError) as error:
        raise NoRule("it takes so few rows by their number") from error
    results = [found] if isinstance(found, torch.Tensor) else [item for item in found if isinstance(item, torch.Tensor)]
    if len(results) != len(call.out_specs):
        raise NoRule("it takes so few rows by their number")
    return [tuple(result.shape) for result in results]


def _as_examples(value: Any, length: int) -> Any:
    if isinstance(value, Spec):
        if not isinstance(value.verdict, Rows):
            return value
        shape = tuple(length if axis == value.verdict.axis else size for axis, size in enumerate(value.shape))
        return Spec(shape, dtype=value.dtype, verdict=Place(value.verdict.axis, 1, 1, 0, length), serial=value.serial)
    if isinstance(value, list | tuple):
        return [_as_examples(item, length) for item in value]
    return value


def _special(call: Call) -> Sequence[Verdict] | None:
    """Return the verdicts on operations that know of the order of rows; None for all others."""
    name, first = call.name, call.args[0] if call.args else None
    verdict = first.verdict if isinstance(first, Spec) else None
    if name in _COPIES and isinstance(verdict, Rows):
        call.out_specs[0].below = first.below if isinstance(first, Spec) else None
        return call.everywhere(verdict)
    if isinstance(verdict, Rows):
        found = _of_numbers(call, verdict)
        if found is not None:
            return found
    if name in _PICKING:
        return _picked(call)
    if name == "index_select":
        return _selected(call)
    if name in _ADDING:
        return _brought_back(call, int(call.arg("dim")), call.arg("index"), call.arg("source"))
    if name in _PLACING:
        return _placed(call)
    if name == "_grouped_mm":
        return _grouped(call)
    return None


def _of_numbers(call: Call, rows: Rows) -> Sequence[Verdict] | None:
    """Operations on the numbers of an order itself."""
    name, spec = call.name, call.args[0]
    if name in ("histc", "bincount") and len(specs_in(call.args)) == 1:
        found = counts_of(spec, call)
        if found is None:
            raise Mixes("it counts the rows of all examples")
        return [found]
    if name in ("cumsum", "cumsum_") and rows.role is Role.COUNTS:
        return [replace(rows, role=Role.ENDS)]
    if name == "sort" and not call.arg("descending") and _is_permutation(spec):
        return [None, replace(rows, role=Role.RANKS)]
    if name in _DIVIDING and rows.role is Role.NUMBERS:
        return _divided(call, rows)
    if name in ("view", "_unsafe_view", "reshape", "squeeze") and rows.role is not Role.COLUMNS:
        if call.shape == spec.shape:
            return call.everywhere(rows)
        is_one = rows.axis >= 0 and spec.shape[rows.axis] == 1 and rows.role is Role.CONTENT
        if is_one and call.shape == spec.shape[: rows.axis] + spec.shape[rows.axis + 1 :]:
            return call.everywhere(replace(rows, axis=-1))  # a single row, as torch assigns it
    if rows.role is Role.COLUMNS:
        return _columns(call, rows)
    return None


def _divided(call: Call, rows: Rows) -> Sequence[Verdict] | None:
    """``numbers // k``: each of ``k`` neighbouring rows of one example has the number of one wider row."""
    by = call.args[1]
    is_floored = call.name == "floor_divide" or (call.has("rounding_mode") and call.arg("rounding_mode") == "floor")
    if not is_floored or not isinstance(by, int) or by < 1 or rows.origin.after % by:
        return None
    return [replace(rows, origin=replace(rows.origin, after=rows.origin.after // by))]


def _is_permutation(spec: Spec) -> bool:
    """Whether a vector numbers every row of the origin once."""
    rows = spec.verdict
    if not isinstance(rows, Rows) or rows.role is not Role.NUMBERS or not rows.is_all or spec.was_written:
        return False
    return spec.ndim == 1 and spec.shape[0] == rows.origin.length


def _columns(call: Call, rows: Rows) -> Sequence[Verdict] | None:
    """Take the columns of ``nonzero`` apart."""
    if call.name in ("unbind", "unbind_copy") and int(call.arg("dim")) % 2 == 1:
        columns: Sequence[int] = range(len(call.out_specs))
    elif call.name == "select" and int(call.arg("dim")) % 2 == 1:
        columns = [int(call.arg("index")) % call.args[0].shape[1]]
    elif call.name in ("squeeze", "view", "reshape") and call.args[0].shape[1] == 1 and len(call.shape) == 1:
        columns = [0]
    else:
        return None
    return [
        replace(rows, axis=0, role=Role.NUMBERS if column == rows.column else Role.CONTENT, column=-1)
        for column in columns
    ]


def _only_index(call: Call) -> tuple[int, Spec] | None:
    given = [(axis, index) for axis, index in enumerate(call.args[1]) if index is not None]
    return given[0] if len(given) == 1 else None


def _picked(call: Call) -> Sequence[Verdict] | None:
    found = _only_index(call)
    if found is None:
        indices = [index for index in call.args[1] if isinstance(index, Spec)]
        if any(isinstance(index.verdict, Rows) and index.verdict.role is not Role.CONTENT for index in indices):
            raise NoRule("rows travel by number along one axis among several")
        return None
    return _taken(call.args[0], *found)


def _selected(call: Call) -> Sequence[Verdict] | None:
    return _taken(call.args[0], int(call.arg("dim")) % max(call.args[0].ndim, 1), call.arg("index"))


def _taken(spec: Spec, axis: int, index: Spec) -> Sequence[Verdict] | None:
    """``x[numbers]``: the rows that the numbers name; or ``rows[ranks]``: rows where they came from."""
    rows = index.verdict
    if not isinstance(rows, Rows) or index.ndim != 1:
        return None
    if rows.role is Role.NUMBERS:
        if not _lies_at(spec, axis, rows.origin):
            raise NoRule("rows travel by the numbers of other rows")
        return [replace(rows, axis=axis, role=Role.CONTENT)]
    if rows.role is Role.RANKS:
        given = spec.verdict
        if not isinstance(given, Rows) or given.order != rows.order or given.axis != axis or not rows.is_all:
            raise Mixes(_RANK)
        if given.role not in (Role.CONTENT, Role.SORTED):
            raise Mixes(_RANK)
        return [rows.origin.at(axis)]
    return None


def _lies_at(spec: Spec, axis: int, origin: Place) -> bool:
    return spec.place is not None and spec.place == origin.at(axis)


def _brought_back(call: Call, dim: int, index: Spec, values: Spec) -> Sequence[Verdict]:
    """Rows are added to, or put in the place of, the rows that they came from."""
    into: Spec = call.args[0]
    axis = dim % max(into.ndim, 1)
    rows = index.verdict
    if not isinstance(rows, Rows) or rows.role is not Role.NUMBERS or index.ndim != 1:
        raise Mixes("rows of several examples are put into one")
    given = values.verdict
    is_in_step = isinstance(given, Rows) and given.order == rows.order and given.axis == axis
    is_content = isinstance(given, Rows) and given.role in (Role.CONTENT, Role.SORTED)
    is_same_for_all = values.verdict is None and values.ndim <= 1 and all(size == 1 for size in values.shape)
    if not (is_in_step and is_content) and not is_same_for_all:
        raise Mixes("rows in an order that the examples give are put where others came from")
    place = rows.origin.at(axis)
    if not place.fits(into.shape) or (into.verdict is not None and into.verdict != place):
        raise Mixes("rows are put elsewhere than they came from")
    return call.everywhere(place)


def _placed(call: Call) -> Sequence[Verdict]:
    """``x[numbers] = rows``, and the ranks of rows: ``ranks[numbers] = arange``."""
    found = _only_index(call)
    into, values = call.args[0], call.args[2]
    if found is None:
        raise NoRule("rows travel by number along one axis among several")
    axis, index = found
    by_mask = put_by_mask(into, index, values) if axis == 0 else None
    if by_mask is not None:
        return call.everywhere(by_mask)
    rows = index.verdict
    is_adding = bool(call.arg("accumulate")) if call.has("accumulate") else False
    if isinstance(rows, Rows) and values.verdict is None and values.iota == (0, 1) and values.ndim == 1:
        is_whole = _is_permutation(index) and not is_adding
        if is_whole and into.verdict in (None, rows.origin) and into.shape == index.shape == values.shape:
            return call.everywhere(replace(rows, role=Role.RANKS))
        raise Mixes(_RANK)
    if isinstance(values.verdict, Rows) and values.ndim != into.ndim:
        raise NoRule("rows are put by number into a tensor with other axes")
    return _brought_back(call, axis, index, values)


def _grouped(call: Call) -> Sequence[Verdict]:
    """``grouped_mm``: rows in the order of their keys, each with the matrix of its key."""
    rows, weight = call.args[0], call.args[1]
    ends = call.arg("offs")
    bias = call.arg("bias") if call.has("bias") else None
    if not isinstance(rows.verdict, Rows) or not isinstance(ends, Spec) or not isinstance(ends.verdict, Rows):
        raise Mixes("where a group of rows ends depends on other examples")
    if weight.verdict is not None or weight.ndim != 3 or rows.ndim != 2 or bias is not None:
        raise NoRule("the matrices of the groups depend on the examples")
    same = rows.verdict.key == ends.verdict.key and rows.verdict.is_all and rows.verdict.key >= 0
    if not same or ends.verdict.role is not Role.ENDS or rows.verdict.role is not Role.CONTENT:
        raise Mixes("where a group of rows ends depends on other examples")
    if rows.verdict.axis != 0:
        raise Mixes("it sums over rows of several examples")
    return call.everywhere(rows.verdict)
