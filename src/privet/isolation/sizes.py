"""Compares a program on two numbers of examples: nothing in it may depend on how many there are.

A loss divided by the length of its batch keeps examples apart and still breaks the bound: one more example changes what
all others contribute. Such a number comes from Python, so no rule on tensors sees it. It shows when the same program is
followed at two sizes: constants that differ, public vectors as long as the batch that are added up, counted places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch._ops import OpOverload

from privet.isolation import rules_axes, rules_products
from privet.isolation.call import Call, name_of, specs_in
from privet.isolation.place import Cause, Fault, Mixes, NoRule, Place, Spec
from privet.isolation.table import rule_of
from privet.isolation.tracer import Entry, Trace

_NUMBER = "its numbers depend on how many examples are in the batch"
_POSITION = "what becomes of an example depends on its place in the batch"
# The largest of many copies is the largest of a few: masks are asked like that.
_OF_COPIES = frozenset(["max", "min", "amax", "amin", "aminmax", "any", "all", "argmax", "argmin"])
# Operations that compute along axes; others only arrange numbers anew.
_COMPUTING = frozenset([*rules_axes.RULES, *rules_products.RULES])
_COUNTING = frozenset(["arange", "linspace", "logspace", "randperm", "eye", "tril_indices", "triu_indices"])
# Operations that may take counted places without computing with them.
_PICKING = frozenset(
    [
        "index",
        "_unsafe_index",
        "index_put",
        "index_put_",
        "index_select",
        "_embedding_bag",
        "_embedding_bag_forward_only",
        "_to_copy",
        "clone",
        "detach",
        "alias",
        "view",
        "unsqueeze",
        "_unsafe_view",
        "reshape",
        "squeeze",
        "expand",
        "lift_fresh",
        "slice",
        "select",
    ]
)
# Whole numbers that are values and no lengths.
_VALUES = frozenset(["high", "low", "fill_value", "value", "other", "alpha", "beta", "exponent", "min", "max"])
_TYPES = ("number", "Scalar", "float", "Optional[float]", "Optional[number]", "Optional[Scalar]", "Tensor", "bool")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two traces have to say to each other.

    Attributes:
        is_possible: Whether they are of the same operations, one by one.
        fault: The first thing that depends on the number of examples and reaches the losses.
    """

    is_possible: bool
    fault: Cause | None = None


def compare(one: Trace, other: Trace) -> Comparison:
    """Follow what depends on the number of examples through a program to its last result, the losses."""
    if len(one.entries) != len(other.entries) or not one.entries:
        return Comparison(False)
    tainted: dict[int, Cause] = {}
    counted: set[int] = set()
    long: dict[int, list[int]] = {}
    for entry, twin in zip(one.entries, other.entries, strict=True):
        if entry.call.operation is not twin.call.operation or len(entry.call.out_specs) != len(twin.call.out_specs):
            return Comparison(False)
        cause = _cause_at(entry, twin, tainted, counted, long)
        for spec, same in zip(entry.call.out_specs, twin.call.out_specs, strict=True):
            if cause is not None:
                tainted[spec.serial] = cause
            differing = [
                axis for axis, sizes in enumerate(zip(spec.shape, same.shape, strict=False)) if sizes[0] != sizes[1]
            ]
            if differing and spec.verdict is None:
                long[spec.serial] = differing
        if cause is not None:
            for serial in entry.mutated:
                tainted[serial] = cause
    return Comparison(True, tainted.get(one.losses) if one.losses is not None else None)


def _cause_at(
    entry: Entry, twin: Entry, tainted: dict[int, Cause], counted: set[int], long: dict[int, list[int]]
) -> Cause | None:
    call, name = entry.call, name_of(entry.call.operation)
    specs = call.specs
    for spec in specs:
        if spec.serial in tainted:
            return tainted[spec.serial]
    if name in _COUNTING and _lengths(entry) != _lengths(twin):
        counted.update(spec.serial for spec in call.out_specs)
        return None
    if any(spec.serial in counted for spec in specs):
        if name not in _PICKING:
            return Cause(Fault.MIXES, name, _POSITION, entry.line)
        if not name.startswith(("index", "_unsafe_index", "_embedding_bag")):
            counted.update(spec.serial for spec in call.out_specs)
        return None
    if _values_differ(call.operation, call.args, call.kwargs, twin.call.args, twin.call.kwargs):
        return Cause(Fault.MIXES, name, _NUMBER, entry.line)
    if entry.constant != twin.constant:
        return Cause(Fault.MIXES, name, _NUMBER, entry.line)
    if all(spec.verdict is None for spec in specs) and _counts_examples(entry, twin, long):
        return Cause(Fault.MIXES, name, "it counts the examples", entry.line)
    return None


def _counts_examples(entry: Entry, twin: Entry, long: dict[int, list[int]]) -> bool:
    """Whether public numbers, one or more for each example, are brought together: what lets examples meet counts them.

    The rules decide, as if every such row were an example's.
    """
    call, name = entry.call, name_of(entry.call.operation)
    rows = [(spec, axis) for spec in call.specs for axis in long.get(spec.serial, ())]
    if not rows:
        return False
    if name in ("nonzero", "bincount", "histc"):
        return _lengths(entry) == _lengths(twin)
    is_whole = not any(spec.dtype is not None and spec.dtype.is_floating_point for spec in call.specs)
    rule = rule_of(call.operation)
    if name not in _COMPUTING or rule is None or (name in _OF_COPIES and is_whole):
        return False
    for spec, axis in rows:
        try:
            rule(_as_if(call, spec, Place(axis, 1, 1, 0, spec.shape[axis])))
        except Mixes:
            return True
        except NoRule:
            continue
    return False


def _as_if(call: Call, spec: Spec, place: Place) -> Call:
    """Return the call as if one of its tensors held examples."""
    private = Spec(spec.shape, dtype=spec.dtype, verdict=place, iota=spec.iota, strides=spec.strides)

    def exchanged(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [exchanged(item) for item in value]
        return private if value is spec else value

    named = {name: exchanged(value) for name, value in call.kwargs.items()}
    return Call(call.operation, [exchanged(value) for value in call.args], named, call.out_specs)


def _lengths(entry: Entry) -> list[Any]:
    return [spec.shape for spec in entry.call.out_specs]


@lru_cache(maxsize=4096)
def _value_arguments(operation: OpOverload) -> tuple[frozenset[int], frozenset[str]]:
    """Return the arguments that are values and not lengths or axes, by number and by name."""
    found = [
        (number, argument.name)
        for number, argument in enumerate(operation._schema.arguments)
        if str(argument.type) in _TYPES or argument.name in _VALUES
    ]
    return frozenset(number for number, _ in found), frozenset(name for _, name in found)


def _values_differ(
    operation: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], other: Sequence[Any], named: dict[str, Any]
) -> bool:
    numbers, names = _value_arguments(operation)
    if name_of(operation) in _COUNTING:
        return False
    if any(_differ(args[number], other[number]) for number in numbers if number < min(len(args), len(other))):
        return True
    return any(_differ(value, named.get(name)) for name, value in kwargs.items() if name in names)


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, Spec) or isinstance(other, Spec) or specs_in([one]):
        return False
    return bool(one != other) and not (one != one and other != other)
