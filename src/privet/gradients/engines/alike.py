"""Uses of equal shape in one program: their gradients are formed together, as those of one use with more examples.

A deep network of narrow layers takes longer to launch than to compute. Twelve projections of the same shape, one behind
the other along the axis of the examples, are one projection of twelve times as many examples: rule, norms and sums run
once for all of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from privet.gradients.capture.recorded import Use, is_batch, tensors_in
from privet.gradients.rules.example_axis import ExampleAxis
from privet.gradients.rules.rule_tools import Rule

# A use with more numbers than the first (inputs and outputs of all examples) is worth a call of its own. Uses together
# hold at most the second number before their gradients are formed and they are let go of.
_SMALL, _SMALL_ON_DEVICE = 1 << 15, 1 << 18
_TOGETHER, _TOGETHER_ON_DEVICE = 1 << 19, 1 << 22


@dataclass(frozen=True, kw_only=True, eq=False)
class Alike:
    """Uses of one program by the same rule, on parameters and examples of the same shapes.

    Attributes:
        numbers: Their numbers among the uses of the program.
        positions: For each parameter of the first use, by position, the parameters in its place in all of them.
        inputs: The places of the tensors of the batch among the arguments; named ones come after the others.
        axis: The axis along which they are put one behind the other.
        shape: The shape of each output.
        dtype: Its type.
    """

    numbers: tuple[int, ...]
    positions: Mapping[int, tuple[int, ...]]
    inputs: tuple[int, ...]
    axis: int
    shape: torch.Size
    dtype: torch.dtype

    def as_one(self, uses: Sequence[Use]) -> Use | None:
        """Return the uses, which gradients have reached, as one; None if a gradient is not of the kind foreseen."""
        first, gradients = uses[0], list[Tensor]()
        for use in uses:
            gradient = use.out_grad
            if gradient is None or gradient.shape != self.shape or gradient.dtype != self.dtype:
                return None
            gradients.append(gradient)
        args, named = list(first.args), dict(first.kwargs)
        for place in self.inputs:
            if place < len(args):
                args[place] = torch.cat([use.args[place] for use in uses], self.axis)
            else:
                name = list(named)[place - len(args)]
                named[name] = torch.cat([use.kwargs[name] for use in uses], self.axis)
        statistics = first.statistics
        if statistics is not None:
            means, deviations = zip(*[use.statistics for use in uses if use.statistics is not None], strict=True)
            statistics = torch.cat(means, self.axis), torch.cat(deviations, self.axis)
        return replace(
            first, args=tuple(args), kwargs=named, out_grad=torch.cat(gradients, self.axis), statistics=statistics
        )


def alike_in(
    uses: Sequence[Use],
    axes: Sequence[ExampleAxis],
    rules: Sequence[Rule],
    may_join: Callable[[Use, Rule], bool],
    groups: Sequence[int],
) -> list[Alike]:
    """Find the uses of a program that can be handled together.

    Args:
        uses: The uses of the program, before any of them is released.
        axes: How the examples lie in the output of each.
        rules: The rule of each.
        may_join: Whether a use may be joined with others: gradients reach it, its rule looks at rows and shapes alone,
            and its parameters are used nowhere else.
        groups: The clipping group of each parameter, by position.
    """
    found: defaultdict[Hashable, list[int]] = defaultdict(list)
    for number, (use, axis, rule) in enumerate(zip(uses, axes, rules, strict=True)):
        key = _key(use, axis, rule, groups) if axis.stacking is not None and may_join(use, rule) else None
        if key is not None:
            found[key].append(number)
    return [
        _alike([uses[number] for number in numbers], numbers, axes[numbers[0]])
        for members in found.values()
        for numbers in _parts(members, uses[members[0]])
        if len(numbers) > 1
    ]


def _alike(uses: Sequence[Use], numbers: Sequence[int], axis: ExampleAxis) -> Alike:
    assert axis.stacking is not None
    by_place = [[_position(source.parameters) for source in use.sources] for use in uses]
    return Alike(
        numbers=tuple(numbers),
        positions={positions[0]: positions for positions in zip(*by_place, strict=True)},
        inputs=tuple(place for place, value in enumerate(_values(uses[0])) if is_batch(value)),
        axis=axis.stacking,
        shape=uses[0].output_shape,
        dtype=uses[0].output_dtype,
    )


def _parts(numbers: Sequence[int], use: Use) -> Iterator[Sequence[int]]:
    """Cut a list of uses such that no part holds too much; last uses first, as a backward pass meets them."""
    is_on_device = _device_of(use).type != "cpu"
    size, most = _size(use), _TOGETHER_ON_DEVICE if is_on_device else _TOGETHER
    if size > (_SMALL_ON_DEVICE if is_on_device else _SMALL):
        return
    length = max(2, most // max(1, size))
    for end in range(len(numbers), 0, -length):
        yield numbers[max(0, end - length) : end]


def _values(use: Use) -> tuple[Any, ...]:
    return (*use.args, *use.kwargs.values())


def _device_of(use: Use) -> torch.device:
    return use.sources[0].tensor.device


def _size(use: Use) -> int:
    inputs: int = sum(value.numel() for value in _values(use) if is_batch(value))
    return inputs + math.prod(use.output_shape)


def _position(parameters: frozenset[int]) -> int:
    (position,) = parameters
    return position


def _key(use: Use, axis: ExampleAxis, rule: Rule, groups: Sequence[int]) -> Hashable | None:
    """Return the properties that uses must share to be handled together; None for a use that stays alone."""
    tracked = {id(source.tensor): place for place, source in enumerate(use.sources)}
    signs: list[Hashable] = []
    for value in _values(use):
        if isinstance(value, Tensor):
            if id(value) not in tracked and not is_batch(value):
                return None
            signs.append((tracked.get(id(value), -1), value.shape, value.dtype, value.device))
        elif tensors_in(value):
            return None
        else:
            signs.append((type(value), tuple(value) if isinstance(value, list) else value))
    by_group = tuple(groups[_position(source.parameters)] for source in use.sources)
    has_statistics = use.statistics is not None
    if has_statistics and axis.stacking != 0:
        return None
    key = (
        use.function, rule, axis, tuple(use.kwargs), tuple(signs), by_group, has_statistics,
        use.output_shape, use.output_dtype, use.output_index, use.written is None,
    )  # fmt: skip
    try:
        hash(key)
    except TypeError:
        return None
    return key
