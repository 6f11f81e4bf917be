"""Holds a rule against the truth: one example's rows are changed, and nobody else's may differ in the result."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from privet.isolation.call import Call, name_of
from privet.isolation.place import Cause, Place, Spec, Verdict, single
from privet.isolation.verdicts import verdicts_of

# So many ways to lay examples out are tried for every sample.
_MOST_LAYOUTS = 16
# So many examples are changed, one by one.
_CHANGED = 2


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A call of an operation with real numbers."""

    operation: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    iotas: dict[int, tuple[int, int]] = field(default_factory=dict)  # which tensors, by number, count their places
    stand_in: Callable[..., Any] | None = None  # does the same where this machine lacks the operation

    @property
    def name(self) -> str:
        return name_of(self.operation)

    @property
    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(leaf, Tensor)]

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Carry the operation out on other numbers, with the same random draws; return the tensors it gives."""
        leaves, spec = pytree.tree_flatten((self.args, self.kwargs))
        given = iter(copied(tensor) for tensor in tensors)
        args, kwargs = pytree.tree_unflatten([next(given) if isinstance(x, Tensor) else x for x in leaves], spec)
        torch.manual_seed(7)
        result = (self.stand_in or self.operation)(*args, **kwargs)
        found = list(result) if isinstance(result, tuple | list) else [result]
        return [value for value in found if isinstance(value, Tensor)]


def copied(tensor: Tensor) -> Tensor:
    """Return the same numbers in memory of their own, laid out in the same way."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)


_SINGLE = (single(0), single(1))


def places_in(shape: Sequence[int], num: int) -> Iterator[Place]:
    """Yield all places that ``num`` examples can have in a tensor of this shape."""
    for axis, size in enumerate(shape):
        if size and size % num == 0:
            rest = size // num
            for before in (before for before in range(1, rest + 1) if rest % before == 0):
                yield Place(axis, before, rest // before, 0, num)


def layouts(tensors: Sequence[Tensor], seed: int = 0) -> list[tuple[Place | None, ...]]:
    """Return ways to lay examples out over the arguments of a call: in one of them, in some, in all."""
    found: list[tuple[Place | None, ...]] = []
    draw = random.Random(seed)
    lengths = {size for tensor in tensors for size in tensor.shape}
    for num in (2, 4) if any(size % 4 == 0 for size in lengths) else (2, 3):
        options = [[None, *places_in(tensor.shape, num)] for tensor in tensors]
        alone = [
            tuple(place if at == number else None for at in range(len(tensors)))
            for number, places in enumerate(options)
            for place in places[1:]
        ]
        # the same place in all that can have it is what programs do
        everywhere = list(dict.fromkeys(place for places in options for place in places[1:]))
        same = [tuple(place if place in places else None for places in options) for place in everywhere]
        # other examples here than there, and one example alone beside many
        strange = [[*places, *(replace(place, first=num) for place in places[1:]), *_SINGLE] for places in options]
        together = [tuple(draw.choice(places) for places in options) for _ in range(_MOST_LAYOUTS // 4)]
        together += [tuple(draw.choice(places) for places in strange) for _ in range(_MOST_LAYOUTS // 4)]
        for kind in (alone, same):
            plain = [layout for layout in kind if all(place is None or place.length == num for place in layout)]
            found += plain + draw.sample(kind, min(_MOST_LAYOUTS // 8, len(kind)))
        found += together
    return [layout for layout in dict.fromkeys(found) if any(place is not None for place in layout)]


def rows_of(place: Place, shape: Sequence[int], example: int) -> Tensor:
    """Return a mask of what belongs to one example."""
    if place.is_single:
        return torch.full(tuple(shape), place.first == example)
    index = torch.arange(shape[place.axis]) // place.after % place.num + place.first == example
    return index.view([-1 if axis == place.axis else 1 for axis in range(len(shape))]).expand(tuple(shape))


def changed(tensor: Tensor, rows: Tensor, seed: int) -> Tensor:
    """Return a tensor with other numbers of the same kind in some rows."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, max(1, tensor.numel()), (tensor.numel(),), generator=generator)
    others = tensor.reshape(-1)[drawn].reshape(tensor.shape)
    if tensor.is_floating_point() or tensor.is_complex():
        others = others * 0.75 + 0.1
    result = copied(tensor)
    result.copy_(torch.where(rows, others, tensor))
    return result


def verdicts(sample: Sample, layout: Sequence[Place | None], results: Sequence[Tensor]) -> Sequence[Verdict]:
    """Return what the rules say of the results."""
    leaves, spec = pytree.tree_flatten((sample.args, sample.kwargs))
    places = iter(enumerate(layout))

    def described(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        number, place = next(places)
        iota = sample.iotas.get(number)
        return Spec(tuple(leaf.shape), dtype=leaf.dtype, verdict=place, iota=iota, strides=leaf.stride())

    args, kwargs = pytree.tree_unflatten([described(leaf) for leaf in leaves], spec)
    outs = [
        Spec(tuple(out.shape), dtype=out.dtype, strides=out.stride(), offset=int(out.storage_offset()))
        for out in results
    ]
    return verdicts_of(Call(sample.operation, args, kwargs, outs))


def contradiction(
    sample: Sample, layout: Sequence[Place | None], before: Sequence[Tensor], said: Sequence[Verdict]
) -> str:
    """Return where the truth contradicts what the rules said of the results ``before``; empty if nowhere."""
    tensors = sample.tensors
    present = {place.first + number for place in layout if place is not None for number in range(place.num)}
    for example in sorted(present)[-_CHANGED:]:
        others = [
            tensor if place is None else changed(tensor, rows_of(place, tensor.shape, example), example)
            for tensor, place in zip(tensors, layout, strict=True)
        ]
        try:
            after = sample.run(others)
        except RuntimeError:
            continue  # such numbers are refused
        for number, (one, other, verdict) in enumerate(zip(before, after, said, strict=True)):
            if isinstance(verdict, Cause):
                continue
            if verdict == single(example):
                continue
            if one.shape != other.shape:
                return f"result {number} changes its shape"
            own = torch.zeros(one.shape, dtype=torch.bool) if verdict is None else rows_of(verdict, one.shape, example)
            differs = ~torch.isclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True) & ~own
            if bool(differs.any()):
                return f"result {number} at {verdict}: example {example} changes the rows of others, {list(layout)}"
    return ""
