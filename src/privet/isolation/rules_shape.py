"""Rules of views and of joining and cutting tensors: the same numbers in another arrangement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from privet.isolation.call import Call, Rule
from privet.isolation.place import (
    Mixes,
    NoRule,
    Place,
    Shape,
    Spec,
    Verdict,
    aligned,
    from_storage,
    met,
    regrouped,
    single,
    storage_stride,
)


def _place(call: Call) -> tuple[Spec, Place]:
    spec: Spec = call.args[0]
    if spec.place is None:
        raise NoRule("another argument than the first depends on the examples")
    return spec, spec.place


def view(call: Call) -> Sequence[Verdict]:
    """Another shape of the same numbers."""
    spec, place = _place(call)
    if call.has("dtype"):  # the same bits as numbers of another type
        return as_numbers(call)
    return call.everywhere(regrouped(place, spec.shape, call.shape))


def permuted(call: Call) -> Sequence[Verdict]:
    """Axes in another order."""
    spec, place = _place(call)
    order = list(range(spec.ndim))
    if call.has("dims"):
        order = [int(axis) % spec.ndim for axis in call.arg("dims")]
    elif call.has("dim0"):
        one, other = int(call.arg("dim0")) % max(spec.ndim, 1), int(call.arg("dim1")) % max(spec.ndim, 1)
        if order:
            order[one], order[other] = order[other], order[one]
    elif call.name == "adjoint":
        order[-2:] = order[-1], order[-2]
    else:
        order.reverse()
    return call.everywhere(place if place.is_single else place.at(order.index(place.axis)))


def expanded(call: Call) -> Sequence[Verdict]:
    """Copies along axes of length one, or new ones in front."""
    spec, place = _place(call)
    return call.everywhere(aligned(place, spec.ndim, len(call.shape)))


def repeated(call: Call) -> Sequence[Verdict]:
    """The whole tensor several times along each axis."""
    spec, place = _place(call)
    if place.is_single:
        return call.everywhere(place)
    repeats = [int(number) for number in call.arg("dims" if call.has("dims") else "repeats")]
    repeats = [1] * (spec.ndim - len(repeats)) + repeats
    axis = place.axis + len(repeats) - spec.ndim
    return call.everywhere(replace(place, axis=axis, before=place.before * repeats[axis]))


def unsqueezed(call: Call) -> Sequence[Verdict]:
    """A new axis of length one."""
    spec, place = _place(call)
    new = int(call.arg("dim")) % (spec.ndim + 1)
    return call.everywhere(place.at(place.axis + (place.axis >= new)))


def squeezed(call: Call) -> Sequence[Verdict]:
    """Axes of length one left out; the examples' is longer."""
    spec, place = _place(call)
    if place.is_single:
        return call.everywhere(place)
    if call.has("dim"):
        given = call.arg("dim")
        names = given if isinstance(given, list | tuple) else [given]
        axes = {int(axis) % spec.ndim for axis in names}
    else:
        axes = set(range(spec.ndim))
    gone = sum(axis < place.axis and spec.shape[axis] == 1 for axis in axes)
    return call.everywhere(place.at(place.axis - gone))


def selected(call: Call) -> Sequence[Verdict]:
    """One row along an axis."""
    spec, place = _place(call)
    if place.is_single:
        return call.everywhere(place)
    axis, index = int(call.arg("dim")) % spec.ndim, int(call.arg("index"))
    if axis == place.axis:
        return call.everywhere(single(_example_of(place, index % spec.shape[axis])))
    return call.everywhere(place.at(place.axis - (axis < place.axis)))


def _example_of(place: Place, row: int) -> int:
    return place.first + row // place.after % place.num


def sliced(call: Call) -> Sequence[Verdict]:
    """Some consecutive rows, or every few, along an axis."""
    spec, place = _place(call)
    if place.is_single:
        return call.everywhere(place)
    axis = int(call.arg("dim")) % spec.ndim
    if axis != place.axis:
        return call.everywhere(place)
    size = spec.shape[axis]
    start, end, step = call.arg("start"), call.arg("end"), int(call.arg("step"))
    first, last = _bounds(start, end, size)
    return call.everywhere(_rows(place, first, last, step))


def _bounds(start: int | None, end: int | None, size: int) -> tuple[int, int]:
    first = 0 if start is None else int(start)
    last = size if end is None else int(end)
    first = max(0, first + size if first < 0 else min(first, size))
    last = max(0, last + size if last < 0 else min(last, size))
    return first, last


def _rows(place: Place, first: int, last: int, step: int) -> Place:
    """Return the place of rows ``first`` to ``last`` of the examples' axis.

    Raises:
        Mixes: unless they are whole repetitions of all examples, or all rows of some consecutive ones.
    """
    if step == 1 and first == 0 and last == place.length:
        return place
    block = place.num * place.after
    if step == 1 and first % block == 0 and last % block == 0 and last > first:
        return replace(place, before=(last - first) // block)
    if step == 1 and place.before == 1 and first % place.after == 0 and last % place.after == 0 and last > first:
        num, begin = (last - first) // place.after, place.first + first // place.after
        return single(begin) if num == 1 else Place(place.axis, 1, place.after, begin, num)
    if place.after % step == 0 and first < step and last == place.length:  # every few rows of each example
        return replace(place, after=place.after // step)
    if step == 1 and first // place.after == (last - 1) // place.after and last > first:
        return single(_example_of(place, first))
    raise Mixes("some examples are cut out of the batch")


def _cut(call: Call, axis: int) -> Sequence[Verdict]:
    """Return the verdicts on consecutive parts of a tensor."""
    _, place = _place(call)
    if place.is_single or axis != place.axis:
        return call.everywhere(place)
    verdicts: list[Verdict] = []
    begin = 0
    for out in call.out_specs:
        end = begin + out.shape[axis]
        verdicts.append(_rows(place, begin, end, 1))
        begin = end
    return verdicts


def split(call: Call) -> Sequence[Verdict]:
    """Consecutive parts along an axis."""
    return _cut(call, int(call.arg("dim")) % max(call.args[0].ndim, 1))


def unbound(call: Call) -> Sequence[Verdict]:
    """All rows along an axis."""
    spec, place = _place(call)
    axis = int(call.arg("dim")) % spec.ndim
    if place.is_single:
        return call.everywhere(place)
    if axis == place.axis:
        return [single(_example_of(place, row)) for row in range(len(call.out_specs))]
    return call.everywhere(place.at(place.axis - (axis < place.axis)))


def joined(call: Call) -> Sequence[Verdict]:
    """Tensors end to end along an axis; parts that hold the examples one after another become the batch again."""
    tensors: list[Spec] = [spec for spec in call.args[0] if spec.shape != (0,)]
    axis = int(call.arg("dim")) % max(len(call.shape), 1)
    return call.everywhere(end_to_end([(spec.verdict, spec.shape) for spec in tensors], axis))


def stacked(call: Call) -> Sequence[Verdict]:
    """Tensors side by side along a new axis."""
    tensors: list[Spec] = list(call.args[0])
    axis = int(call.arg("dim")) % len(call.shape)
    parts: list[tuple[Verdict, Shape]] = []
    for spec in tensors:
        place = spec.place
        moved = None if place is None else place.at(place.axis + (place.axis >= axis))
        parts.append((moved, (*spec.shape[:axis], 1, *spec.shape[axis:])))
    return call.everywhere(end_to_end(parts, axis))


def end_to_end(parts: Sequence[tuple[Verdict, Shape]], axis: int) -> Place:
    """Return the place of the examples in tensors that are joined along an axis."""
    places = [verdict for verdict, _ in parts if isinstance(verdict, Place)]
    if all(place == places[0] for place in places) and (places[0].is_single or places[0].axis != axis):
        return places[0]
    if len(places) < len(parts):
        raise Mixes("rows that are no examples come between the examples")
    if all(place.is_single for place in places):
        return _in_turn([(place.first, shape[axis]) for place, (_, shape) in zip(places, parts, strict=True)], axis)
    if any(place.is_single or place.axis != axis for place in places):
        raise Mixes("parts that hold their examples at different places are joined")
    after = places[0].after
    if any(place.after != after for place in places):
        raise Mixes("parts with different numbers of rows per example are joined")
    if all(place.same_examples(places[0]) for place in places):
        return replace(places[0], before=sum(place.before for place in places))
    expected = places[0].first
    for place in places:
        if place.before != 1 or place.first != expected:
            raise Mixes("examples are joined in another order than they came in")
        expected += place.num
    return Place(axis, 1, after, places[0].first, expected - places[0].first)


def _in_turn(rows: Sequence[tuple[int, int]], axis: int) -> Place:
    """Return the place of tensors of one example each that are joined: (example, length) in order."""
    sizes = {size for _, size in rows}
    if len(sizes) != 1:
        raise NoRule("examples have different numbers of rows")
    size = sizes.pop()
    # several rows of one example in a row count as one block
    blocks: list[list[int]] = []
    for example, _ in rows:
        if blocks and blocks[-1][0] == example:
            blocks[-1][1] += 1
        else:
            blocks.append([example, 1])
    counts = {count for _, count in blocks}
    order = [example for example, _ in blocks]
    num = len(dict.fromkeys(order))
    if len(counts) != 1 or len(order) % num or order != list(range(order[0], order[0] + num)) * (len(order) // num):
        raise Mixes("examples are joined in another order than they came in")
    return Place(axis, len(order) // num, size * counts.pop(), order[0], num)


def diagonal(call: Call) -> Sequence[Verdict]:
    """The diagonal of two axes, as a new last one."""
    spec, place = _place(call)
    if place.is_single:
        return call.everywhere(place)
    axes = {int(call.arg(name)) % spec.ndim for name in ("dim1", "dim2")}
    if place.axis in axes:
        raise Mixes("an example meets others on the diagonal")
    return call.everywhere(place.at(place.axis - sum(axis < place.axis for axis in axes)))


def embedded_diagonal(call: Call) -> Sequence[Verdict]:
    """The last axis as the diagonal of two new ones."""
    spec, place = _place(call)
    axes = sorted(int(call.arg(name)) % len(call.shape) for name in ("dim1", "dim2"))
    if place.is_single:
        return call.everywhere(place)
    if place.axis == spec.ndim - 1:
        raise Mixes("examples are set on a diagonal")
    rest = [axis for axis in range(len(call.shape)) if axis not in axes]
    return call.everywhere(place.at(rest[place.axis]))


def strided(call: Call) -> Sequence[Verdict]:
    """Any view of memory."""
    spec, place = _place(call)
    if place.is_single:
        return call.everywhere(place)
    (out,) = call.out_specs
    return [_from_memory(spec, place, out)]


def _from_memory(spec: Spec, place: Place, out: Spec) -> Place:
    if place.first or any(size > 1 and step == 0 for size, step in zip(spec.shape, spec.strides, strict=True)):
        raise NoRule("memory is read in its own order")
    stride = storage_stride(place, spec)
    if from_storage(stride, place.num, spec) != place:
        raise NoRule("the examples do not begin where memory begins")
    try:
        return from_storage(stride, place.num, out)
    except NoRule as error:
        raise Mixes(str(error)) from None


def as_numbers(call: Call) -> Sequence[Verdict]:
    """Complex numbers as pairs, or pairs as complex numbers, on a last axis; the same bits in another type."""
    spec, place = _place(call)
    if not place.is_single and place.axis >= min(spec.ndim, len(call.shape)):
        raise Mixes("examples are taken for parts of a number")
    if not place.is_single and call.shape[place.axis] != spec.shape[place.axis]:
        raise Mixes("a view cuts through the examples")
    return call.everywhere(place)


def moved_source(call: Call) -> Sequence[Verdict]:
    """A part of the first tensor replaced by the second: rows of the same examples."""
    into, source = call.args[0], call.args[1]
    if into.place is None and source.place is None:
        raise NoRule("no examples")
    name = call.name
    wanted = into.place
    if name == "select_scatter":
        axis = int(call.arg("dim")) % into.ndim
        moved = None if source.place is None else source.place.at(source.place.axis + (source.place.axis >= axis))
    else:
        axis = int(call.arg("dim")) % into.ndim
        moved = source.place
    places = [place for place in (wanted, moved) if place is not None]
    found = met(places)
    if not found.is_single and found.axis == axis:
        raise Mixes("examples are written over others")
    return call.everywhere(found)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias", "view_copy", "flatten", "unflatten"), view),
    **dict.fromkeys(("permute", "transpose", "t", "transpose_", "t_", "permute_copy", "numpy_T", "adjoint"), permuted),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), expanded),
    "repeat": repeated,
    "tile": repeated,
    "unsqueeze": unsqueezed,
    "unsqueeze_": unsqueezed,
    "squeeze": squeezed,
    "squeeze_": squeezed,
    "select": selected,
    "slice": sliced,
    **dict.fromkeys(
        ("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "chunk", "unsafe_chunk"), split
    ),
    "unbind": unbound,
    "cat": joined,
    "concat": joined,
    "stack": stacked,
    "diagonal": diagonal,
    "diag_embed": embedded_diagonal,
    "as_strided": strided,
    "as_strided_": strided,
    "view_as_real": as_numbers,
    "view_as_complex": as_numbers,
    "real": as_numbers,
    "imag": as_numbers,
    "select_scatter": moved_source,
    "slice_scatter": moved_source,
}
