"""Rules of operations that pick or place rows by number: tables, gathering, scattering, indexing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from privet.isolation.call import Call, Rule, beside_public, private
from privet.isolation.place import Mixes, NoRule, Place, Shape, Spec, Verdict, met
from privet.isolation.rules_rows import chosen_numbers, masked_rows

_MASKS = (torch.bool, torch.uint8)


def bags(call: Call) -> Sequence[Verdict]:
    """Sums of rows of a public table, in bags of equal size."""
    weight, numbers, offsets = call.args[0], call.args[1], call.args[2]
    place = numbers.place
    if weight.verdict is not None or place is None:
        raise NoRule("the table depends on the examples, or its bags do")
    if place.is_single:
        return call.everywhere(met([found for _, found in private(call.specs)]))
    step = None if offsets.iota is None else offsets.iota[1]
    if offsets.verdict is not None or step is None or place.after % step or offsets.shape[0] * step != numbers.shape[0]:
        raise NoRule("bags of different sizes")
    for spec, other in private(call.specs):
        if spec is not numbers and other != place:
            raise Mixes("weights of one example meet another")
    bag = Place(0, place.before, place.after // step, place.first, place.num)
    verdicts: list[Verdict] = [bag]
    for out in call.out_specs[1:]:
        is_number = out.shape[:1] == numbers.shape[:1]
        verdicts.append(place if is_number else (bag if out.shape[:1] == (bag.length,) else None))
    return verdicts


def gathered(call: Call) -> Sequence[Verdict]:
    """Numbers picked along one axis; all other axes stay in step."""
    spec, index = call.args[0], call.args[2] if call.has("index") else call.args[1]
    if call.arg("dim") is None or spec.ndim != index.ndim:
        raise NoRule("its numbers are spread before they pick")
    axis, place = int(call.arg("dim")) % max(spec.ndim, 1), spec.place
    if place is None:
        return call.everywhere(_from_table(spec, index, axis))
    if not place.is_single and place.axis == axis:
        if index.verdict is not None:
            raise NoRule("the rows of examples travel by number")
        raise Mixes("rows of the examples are picked by a fixed number")
    return call.everywhere(_in_step([spec, index], call.shape))


def _from_table(spec: Spec, index: Spec, axis: int) -> Verdict:
    """Return the verdict on numbers picked from a public table: each picks for itself, in the row of its own place."""
    place = index.place
    has_rows = place is not None and not place.is_single and place.axis != axis
    if place is not None and has_rows and spec.shape[place.axis] != index.shape[place.axis]:
        raise Mixes("an example picks from the row of a table that has the number of its place in the batch")
    return index.verdict


def scattered(call: Call) -> Sequence[Verdict]:
    """Numbers put along one axis; all other axes stay in step."""
    axis = int(call.arg("dim")) % max(call.args[0].ndim, 1)
    for _, place in private(call.specs):
        if not place.is_single and place.axis == axis:
            raise Mixes("rows of several examples are put into one")
    return call.everywhere(_in_step(call.specs, call.args[0].shape))


def _in_step(specs: Sequence[Spec], shape: Shape) -> Place:
    place = met([place for _, place in private(specs)])
    for spec in specs:
        is_beside = spec.verdict is None and spec.ndim == len(shape) and not place.is_single
        if is_beside and spec.shape[place.axis] != shape[place.axis]:
            raise Mixes("some examples are cut out of the batch")
    return place


def picked(call: Call) -> Sequence[Verdict]:
    """``index_select``, and operations that put rows along one axis by a vector of numbers."""
    spec, index = call.args[0], call.arg("index")
    axis = int(call.arg("dim")) % max(spec.ndim, 1)
    others = [other for other in call.specs if other is not index]
    if index.verdict is not None:
        if len(private(others)) == 0 and call.name == "index_select":
            place = index.place
            return call.everywhere(None if place is None else place.at(axis))
        if call.name == "index_select":
            raise NoRule("the rows of examples travel by number")
        raise Mixes("rows of several examples are put into one")
    found = []
    for _, place in private(others):
        if not place.is_single and place.axis == axis and not _counts(index, spec.shape[axis]):
            raise Mixes("rows of the examples are picked by a fixed number")
        found.append(place)
    return call.everywhere(met(found))


def _counts(index: Spec, length: int) -> bool:
    """Whether an index counts through all rows in order, so that it moves none."""
    return index.iota is not None and index.iota[1] == 1 and index.shape[index.iota[0]] == length


def _spread(indices: Sequence[Any]) -> list[Spec | None]:
    """Return the indices with every mask as one vector of numbers per axis of the mask."""
    spread: list[Spec | None] = []
    for index in indices:
        if isinstance(index, Spec) and index.dtype in _MASKS:
            if index.verdict is not None:
                raise NoRule(BY_MASK)
            spread += [Spec((-1,))] * max(index.ndim, 1)
        else:
            spread.append(index)
    return spread


def _where_picked(spec: Spec, indices: list[Spec | None], num_out: int) -> Place:
    """Return where the examples lie in ``spec[indices]``."""
    indices = indices + [None] * (spec.ndim - len(indices))
    used = [axis for axis, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    width = max(index.ndim for index in given)
    is_adjacent = used == list(range(used[0], used[-1] + 1))
    start = used[0] if is_adjacent else 0
    found = [place.at(place.axis + width - index.ndim + start) for index, place in private(given)]
    place = spec.place
    if place is not None:
        if place.is_single:
            found.append(place)
        elif place.axis in used:
            index = indices[place.axis]
            assert index is not None
            if index.verdict is not None:
                raise NoRule("the rows of examples travel by number")
            if not _counts(index, spec.shape[place.axis]) or index.iota is None:
                raise Mixes("rows of the examples are picked by a fixed number")
            found.append(place.at(index.iota[0] + width - index.ndim + start))
        else:
            before = sum(axis < place.axis and axis not in used for axis in range(spec.ndim))
            found.append(place.at(before + (width if not is_adjacent or place.axis > used[0] else 0)))
    return met(found)


def indexed(call: Call) -> Sequence[Verdict]:
    """``x[i, j, ...]`` with tensors of numbers, or ``x[mask]``."""
    first = call.args[1][0]
    if isinstance(first, Spec) and first.dtype in _MASKS and all(index is None for index in call.args[1][1:]):
        rows = masked_rows(call.args[0], first)
        if rows is not None:
            return [rows]
    return [_where_picked(call.args[0], _spread(call.args[1]), len(call.shape))]


def placed(call: Call) -> Sequence[Verdict]:
    """``x[i, j, ...] = values`` with tensors of numbers."""
    into, values = call.args[0], call.args[2]
    masked = _where_masked(into, call.args[1], values)
    if masked is not None:
        return call.everywhere(masked)
    indices = _spread(call.args[1])
    if all(index is None or index.verdict is None for index in indices) and values.verdict is None:
        return call.everywhere(_untouched(into, indices))
    target = into
    if into.place is None:
        counting = [
            axis for axis, index in enumerate(indices) if index is not None and _counts(index, into.shape[axis])
        ]
        example = next((place for _, place in private([values, *(i for i in indices if i is not None)])), None)
        assert example is not None, "a rule is asked where something is private"
        if example.is_single:
            return call.everywhere(
                met([place for _, place in private([values, *(i for i in indices if i is not None)])])
            )
        if len(counting) != 1 or example.length != into.shape[counting[0]]:
            return call.everywhere(_placed_beside(into, indices, values, example))
        target = Spec(into.shape, dtype=into.dtype, verdict=example.at(counting[0]))
    place = _where_picked(target, indices, 0)
    width = _picked_width(target, indices)
    if values.place is not None and values.place.at(values.place.axis + width - values.ndim) != place:
        raise Mixes("an example is written over another")
    return call.everywhere(target.verdict)


def _where_masked(into: Spec, indices: Sequence[Any], values: Spec) -> Place | None:
    """Return the place after ``x[mask] = values`` with values that are the same for every place that is picked.

    That is ``where(mask, values, x)``, an operation on elements: nothing is moved, and it does not matter how many
    places there are. None if the assignment is of another kind.
    """
    given = [(number, index) for number, index in enumerate(indices) if index is not None]
    if len(given) != 1:
        return None
    ((axis, mask),) = given
    if mask.dtype not in _MASKS or mask.ndim == 0:
        return None
    if values.ndim > into.ndim - axis - mask.ndim and any(size != 1 for size in values.shape):
        return None
    found = [place for _, place in private([into])]
    found += [place.at(place.axis + axis) for _, place in private([mask])]
    found += [place.at(place.axis + into.ndim - values.ndim) for _, place in private([values])]
    return met(found)


def _untouched(into: Spec, indices: Sequence[Spec | None]) -> Place:
    """Public numbers are written by public indices: the examples' axis must not be picked from."""
    place = into.place
    assert place is not None
    if not place.is_single and place.axis < len(indices) and indices[place.axis] is not None:
        index = indices[place.axis]
        assert index is not None
        if not _counts(index, into.shape[place.axis]):
            raise Mixes("some examples are overwritten")
    return place


def _placed_beside(into: Spec, indices: Sequence[Spec | None], values: Spec, example: Place) -> Place:
    """Values of the examples are written into a public tensor, along axes that are not the examples'."""
    if any(index is not None and index.verdict is not None for index in indices) or values.place is None:
        raise Mixes("rows of several examples are put into one")
    for axis in range(into.ndim):
        if axis >= len(indices) or indices[axis] is None:
            trial = Spec(into.shape, dtype=into.dtype, verdict=example.at(axis))
            if example.length == into.shape[axis]:
                width = _picked_width(trial, indices)
                moved = values.place.at(values.place.axis + width - values.ndim)
                if _where_picked(trial, list(indices), 0) == moved:
                    return example.at(axis)
    raise NoRule("examples are written into a public tensor by number")


def _picked_width(spec: Spec, indices: Sequence[Spec | None]) -> int:
    given = [index for index in indices if index is not None]
    return max(index.ndim for index in given) + spec.ndim - len(given)


def taken(call: Call) -> Sequence[Verdict]:
    """``take``: numbers of a public tensor at places that may be the examples'."""
    if call.args[0].verdict is not None:
        raise NoRule("the rows of examples travel by number")
    return call.everywhere(call.arg("index").verdict)


def contained(call: Call) -> Sequence[Verdict]:
    """``isin``: each element is looked up in a public set."""
    among = call.arg("test_elements") if call.has("test_elements") else None
    if isinstance(among, Spec) and among.place is not None and not among.place.is_single:
        raise Mixes("elements are looked up among all examples")
    if call.arg("assume_unique"):
        raise NoRule("assume_unique sorts the elements of all examples together")
    return call.everywhere(met([place for _, place in private(call.specs)]))


def chosen(call: Call) -> Sequence[Verdict]:
    """``nonzero``: where the chosen rows are."""
    return chosen_numbers(call)


def travels(call: Call) -> Sequence[Verdict]:
    """Rows that are chosen by the contents of the examples."""
    raise NoRule("rows are chosen by what is in the examples")


BY_MASK = "rows are picked by a mask that depends on the examples"
TRAVELLING = [
    "nonzero",
    "masked_select",
    "masked_scatter",
    "masked_scatter_",
    "_unique2",
    "unique_dim",
    "put_",
    "unique_consecutive",
    "repeat_interleave",
    "nonzero_static",
    "_pack_padded_sequence",
]

RULES: dict[str, Rule] = {
    "embedding": beside_public("weight", "indices", "the table depends on the examples"),
    "_embedding_bag": bags,
    "_embedding_bag_forward_only": bags,
    "take": taken,
    "isin": contained,
    "gather": gathered,
    "take_along_dim": gathered,
    **dict.fromkeys(
        ("scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_"), scattered
    ),
    **dict.fromkeys(
        ("index_select", "index_add", "index_add_", "index_copy", "index_copy_", "index_fill", "index_fill_"), picked
    ),
    **dict.fromkeys(("index", "_unsafe_index"), indexed),
    **dict.fromkeys(("index_put", "index_put_", "_unsafe_index_put", "_index_put_impl_"), placed),
    **dict.fromkeys(
        TRAVELLING,
        travels,
    ),
    "nonzero": chosen,
}
