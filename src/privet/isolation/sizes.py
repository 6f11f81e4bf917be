"""Compares a program on two numbers of examples: nothing in it may depend on that number, or on the order.

A loss divided by the length of its batch keeps examples apart and still breaks the bound: one more example changes the
contributions of all others. So does a weight by place in the batch. Such numbers come from Python, so no rule on one
trace sees them. They show when the same program is followed at two sizes.

Public numbers must then be of two kinds. *Constant* ones have the same shape at both sizes and are made from constant
ones in the same way. *Rows* are as many as the examples, and each is made like every other: filled with one number,
drawn at random, a copy of something constant. Rows are given a place, as if they were the examples', and follow the
same rules: an operation that adds them up, sorts them or cuts some out has no place for them. Everything else must not
reach the losses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import UntypedStorage

from privet.isolation.call import Call, argument_names, specs_in
from privet.isolation.place import Cause, Fault, Place, Rows, Spec, Verdict
from privet.isolation.traces import Entry, Trace
from privet.isolation.verdicts import FORGETTING, verdicts_of

_NUMBER = "its numbers depend on how many examples are in the batch"
_POSITION = "what becomes of an example depends on its place in the batch"
_COUNTING = frozenset(["arange", "linspace", "logspace", "randperm", "eye", "tril_indices", "triu_indices"])
# Operations that may take counted places without computing with them.
_VIEWING = frozenset(
    [
        "_to_copy", "clone", "detach", "alias", "view", "unsqueeze", "_unsafe_view", "reshape", "squeeze", "expand",
        "lift_fresh",
    ]
)  # fmt: skip
_INDEXING = frozenset(
    [
        "index", "_unsafe_index", "index_put", "index_put_", "_unsafe_index_put", "_index_put_impl_", "index_select",
        "_embedding_bag", "_embedding_bag_forward_only",
    ]
)  # fmt: skip
# Operations that make rows, each like every other.
_FILLING = frozenset(
    [
        "zeros", "ones", "full", "empty", "rand", "randn", "randint", "empty_strided", "new_zeros", "new_ones",
        "new_full", "new_empty", "new_empty_strided", "zeros_like", "ones_like", "full_like", "empty_like", "rand_like",
        "randn_like", "randint_like", "expand", "repeat",
    ]
)  # fmt: skip
# Those among them whose rows are equal.
_EQUAL = frozenset(
    [
        "zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like", "expand",
        "repeat",
    ]
)  # fmt: skip
_COPYING = frozenset(["expand", "repeat"])  # the rows are equal if the copied tensor is a constant
_CUTTING = frozenset(["slice", "select"])
# Their results of equal rows do not depend on the number of rows.
_IDEMPOTENT = frozenset(["max", "min", "amax", "amin", "any", "all"])
# Arguments that give lengths: their effect shows in the shapes of the results.
_LENGTHS = frozenset(["size", "shape", "split_size", "split_sizes", "repeats", "stride", "end", "N"])
# Those that some operations have besides: channels over groups are the channels of a filter, or of a result.
_SHOWN_BESIDES = {"convolution": frozenset(["groups"]), "convolution_backward": frozenset(["groups"])}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of two traces.

    Attributes:
        is_possible: Whether they are of the same operations, one by one.
        fault: The first thing that depends on the number of examples and reaches the losses.
    """

    is_possible: bool
    fault: Cause | None = None


def compare(one: Trace, other: Trace) -> Comparison:
    """Follow values that depend on the number of examples through a program to its losses.

    Where user code of the backward pass was followed, what it hands on counts like the losses.
    """
    entries = _used(one), _used(other)
    if len(entries[0]) != len(entries[1]) or not one.entries:
        return Comparison(False)
    first = _followed(one, other, entries, is_inner=False)
    if not first.is_possible or first.fault is None:
        return first
    # several rows for each example may lie side by side, or one after another through all examples
    second = _followed(one, other, entries, is_inner=True)
    return first if second.fault is not None else second


def _used(trace: Trace) -> list[Entry]:
    """Return the operations without copies that autograd keeps for itself where an input wants gradients."""
    used = {spec.serial for entry in trace.entries for spec in entry.call.specs} | {trace.losses}
    used.update(serial for serial, _ in trace.sent_back)
    return [
        entry
        for entry in trace.entries
        if entry.call.name != "detach" or any(spec.serial in used for spec in entry.call.out_specs)
    ]


def _followed(
    one: Trace, other: Trace, entries: tuple[Sequence[Entry], Sequence[Entry]], *, is_inner: bool
) -> Comparison:
    state = _State(one, other, is_inner)
    for entry, twin in zip(*entries, strict=True):
        if entry.call.operation is not twin.call.operation or len(entry.call.out_specs) != len(twin.call.out_specs):
            return Comparison(False)
        state.note(entry, twin)
    return Comparison(True, state.fault)


@dataclass(slots=True)
class _State:
    """Findings on the tensors of the first trace, by serial number."""

    one: Trace
    other: Trace
    is_inner: bool  # whether fresh rows are taken to have the examples as their innermost axis
    tainted: dict[int, Cause] = field(default_factory=dict)
    memory: dict[int, Cause] = field(default_factory=dict)  # a write through one tensor is read through others
    rows: dict[int, Place] = field(default_factory=dict)
    counted: set[int] = field(default_factory=set)
    equal: set[int] = field(default_factory=set)  # rows that are the same numbers, not only drawn in the same way
    parts: set[int] = field(default_factory=set)  # one of such rows: a constant, until it is written to
    varied: set[int] = field(default_factory=set)  # memory that was written to
    made: set[int] = field(default_factory=set)

    @property
    def fault(self) -> Cause | None:
        """The cause that reaches the losses or a gradient, if any does."""
        if self.one.losses is None:
            return None
        for serial, memory in ((self.one.losses, self.one.memory_of_losses), *self.one.sent_back):
            found = self.tainted.get(serial) or self.memory.get(memory)
            if found is not None:
                return found
        return None

    def note(self, entry: Entry, twin: Entry) -> None:
        """Go on by one operation."""
        call = entry.call
        inherited = None if call.name in FORGETTING else self._inherited(call.specs)
        cause = inherited or self._from_python(entry, twin) or self._follow(entry, twin)
        cause = cause or self._written(entry)
        self.made.update(spec.serial for spec in call.out_specs)
        if cause is not None:
            written = [spec for spec in call.specs if spec.serial in entry.mutated]
            self._taint(call, (*call.out_specs, *written), cause, is_written=bool(entry.mutated))

    def _taint(self, call: Call, specs: Iterable[Spec], cause: Cause, *, is_written: bool) -> None:
        """Note a cause for some tensors, and for the memory of those that are no mere views of others."""
        given = {spec.memory for spec in call.specs}
        for spec in specs:
            self.tainted[spec.serial] = cause
            if is_written or spec.memory not in given:
                self.memory[spec.memory] = cause

    def _inherited(self, specs: Iterable[Spec]) -> Cause | None:
        for spec in specs:
            found = self.tainted.get(spec.serial) or self.memory.get(spec.memory)
            if found is not None:
                return found
        return None

    def _from_python(self, entry: Entry, twin: Entry) -> Cause | None:
        """Return a cause if numbers that came from Python differ."""
        name = entry.call.name
        if name not in _COUNTING and _arguments_differ(entry.call, twin.call):
            return Cause(Fault.MIXES, name, _NUMBER, entry.line)
        if _counts(entry, twin):
            return None
        if entry.constant != twin.constant:
            return Cause(Fault.MIXES, name, _NUMBER, entry.line)
        for spec, same in zip(entry.call.specs, twin.call.specs, strict=False):
            if spec.verdict is None and spec.serial not in self.made:
                constants = self.one.constants.get(spec.serial), self.other.constants.get(same.serial)
                if spec.shape != same.shape or constants[0] != constants[1]:
                    return Cause(Fault.MIXES, name, _NUMBER, entry.line)
        return None

    def _follow(self, entry: Entry, twin: Entry) -> Cause | None:
        """Give rows their places; return a cause where they have none."""
        call, name = entry.call, entry.call.name
        if (name in _COUNTING and _shapes(call) != _shapes(twin.call)) or _counts(entry, twin):
            self.counted.update(spec.serial for spec in call.out_specs)
            return None
        if any(spec.serial in self.counted for spec in call.specs):
            if name in _VIEWING:
                self.counted.update(spec.serial for spec in call.out_specs)
                return None
            if name not in _INDEXING or not self._picks_from_examples(call):
                return Cause(Fault.MIXES, name, _POSITION, entry.line)
        if name in _IDEMPOTENT and self._is_of_equal_rows(call, twin.call):
            return None
        for spec, same, verdict in zip(call.out_specs, twin.call.out_specs, self._verdicts(call), strict=True):
            if isinstance(verdict, Cause):
                cause = verdict if isinstance(spec.verdict, Cause) else replace(verdict, line=entry.line)
                self._taint(call, [spec], cause, is_written=bool(entry.mutated))
                continue
            sizes = enumerate(zip(spec.shape, same.shape, strict=False))
            differing = [axis for axis, (size, other) in sizes if size != other]
            if verdict is None and differing and name in _FILLING:
                verdict = self._filled(call, spec, same, differing)
            if spec.verdict is None and self._is_part(call, spec, verdict) and not differing:
                continue
            if not self._is_in_step(spec, same, verdict, differing):
                cause = Cause(Fault.MIXES, name, _POSITION, entry.line)
                self._taint(call, [spec], cause, is_written=bool(entry.mutated))
            elif spec.verdict is None and isinstance(verdict, Place):
                self.rows[spec.serial] = verdict
        return None

    def _is_of_equal_rows(self, call: Call, twin: Call) -> bool:
        """Whether the only argument has equal rows, and the only result is a constant then."""
        specs = call.specs
        if len(specs) != 1 or len(call.out_specs) != 1 or _shapes(call) != _shapes(twin):
            return False
        return specs[0].serial in self.equal and specs[0].memory not in self.varied

    def _written(self, entry: Entry) -> Cause | None:
        """Note which memory is written to; return a cause if that singles out one of several rows."""
        found = None
        for spec in entry.call.specs:
            if spec.serial in entry.mutated:
                self.varied.add(spec.memory)
                if spec.serial in self.parts:
                    found = Cause(Fault.MIXES, entry.call.name, _POSITION, entry.line)
        return found

    def _is_part(self, call: Call, spec: Spec, verdict: Verdict) -> bool:
        """Note which rows are equal, and whether a result is one of them: that is a constant."""
        name, first = call.name, next(iter(call.specs), None)
        is_view = first is not None and (name in _VIEWING or name in _CUTTING)
        is_copied = name not in _COPYING or (first is not None and first.serial not in self.rows)
        if (name in _EQUAL and is_copied) or (is_view and first is not None and first.serial in self.equal):
            self.equal.add(spec.serial)
        if first is None or not is_view or first.memory in self.varied:
            return False
        is_one = isinstance(verdict, Place) and verdict.is_single and first.serial in self.equal and name in _CUTTING
        if is_one or first.serial in self.parts:
            self.parts.add(spec.serial)
            return True
        return False

    def _picks_from_examples(self, call: Call) -> bool:
        """Whether counted places pick rows of the examples, or beside them, and not of a public table."""
        first = call.args[1] if "embedding_bag" in call.name else call.args[0]
        return first.verdict is not None or first.serial in self.rows

    def _verdicts(self, call: Call) -> Sequence[Verdict]:
        """Return where examples and rows lie in the results."""
        if not any(spec.serial in self.rows and spec.verdict is None for spec in call.specs):
            return [spec.verdict for spec in call.out_specs]
        args = [self._with_place(arg) for arg in call.args]
        kwargs = {name: self._with_place(value) for name, value in call.kwargs.items()}
        return verdicts_of(Call(call.operation, args, kwargs, [_copy(spec, None) for spec in call.out_specs]))

    def _with_place(self, value: Any) -> Any:
        if isinstance(value, Spec):
            return (
                _copy(value, self.rows[value.serial]) if value.verdict is None and value.serial in self.rows else value
            )
        if isinstance(value, list | tuple):
            return [self._with_place(item) for item in value]
        return value

    def _filled(self, call: Call, spec: Spec, same: Spec, differing: Sequence[int]) -> Place | None:
        """Return the place of fresh rows, if there are so many for each example."""
        num, other = self.one.num_examples, self.other.num_examples
        if len(differing) != 1:
            return None
        (axis,) = differing
        each = spec.shape[axis] // num
        if (num * each, other * each) != (spec.shape[axis], same.shape[axis]):
            return None
        source = call.args[0] if call.name == "repeat" else None
        inner = -1 if source is None else axis + source.ndim - spec.ndim
        period = 1 if source is None or inner < 0 else source.shape[inner]
        if period == 0 or each % period:
            return None
        return Place(axis, each // period, period, 0, num) if self.is_inner else Place(axis, 1, each, 0, num)

    def _is_in_step(self, spec: Spec, same: Spec, verdict: Verdict, differing: Sequence[int]) -> bool:
        """Whether a result has rows for all examples, as many for each at both sizes, and nothing else differs."""
        if isinstance(verdict, Rows):
            is_same = isinstance(spec.verdict, Rows) and verdict.like(spec.verdict) and verdict.like(same.verdict)
            return is_same and all(axis == verdict.axis for axis in differing)
        if not isinstance(verdict, Place):
            return verdict is None and spec.verdict is None and not differing
        if isinstance(spec.verdict, Place) and (verdict != spec.verdict or not _is_like(spec.verdict, same.verdict)):
            return False
        return verdict.num == self.one.num_examples and all(axis == verdict.axis for axis in differing)


def _is_like(place: Place, other: Verdict) -> bool:
    """Whether a place is the same but for the number of examples."""
    return isinstance(other, Place) and replace(place, num=other.num) == other


def _copy(spec: Spec, verdict: Verdict) -> Spec:
    found = Spec(
        spec.shape, dtype=spec.dtype, verdict=verdict, iota=spec.iota, strides=spec.strides, offset=spec.offset,
        serial=spec.serial,
    )  # fmt: skip
    found.below, found.was_written = spec.below, spec.was_written
    return found


def _counts(entry: Entry, twin: Entry) -> bool:
    """Whether a list from Python counts its own places at either size: ``range(len(batch))``."""
    if entry.constant is None or entry.constant == twin.constant:
        return False
    return entry.call.out_specs[0].iota is not None and twin.call.out_specs[0].iota is not None


def _shapes(call: Call) -> list[Any]:
    return [spec.shape for spec in call.out_specs]


def _arguments_differ(one: Call, other: Call) -> bool:
    names = list(argument_names(one.operation))
    if len(one.args) != len(other.args) or one.kwargs.keys() != other.kwargs.keys():
        return True
    given = [(names[number], *pair) for number, pair in enumerate(zip(one.args, other.args, strict=True))]
    given += [(name, value, other.kwargs[name]) for name, value in one.kwargs.items()]
    shown = _LENGTHS | _SHOWN_BESIDES.get(one.name, frozenset())
    return any(_differ(value, same) for name, value, same in given if name not in shown)


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, Spec) or isinstance(other, Spec) or specs_in([one]):
        return False
    if isinstance(one, UntypedStorage) and isinstance(other, UntypedStorage):
        # memory that torch itself hands on, as for the weights of a recurrent layer; a program that asks for it reads
        return one.nbytes() != other.nbytes()
    return bool(one != other) and not (one != one and other != other)
