"""The computation of one program's gradients: prepared when the program is new, kept while it is recognised.

The rule of a use finds its operands by name, asks which of them are trained, reads the geometry of the layer and moves
the examples to the front. In a program that is known all of this is as it was. A bound rule does the rest: it turns the
inputs and the output gradient of a batch into per-example gradients, in the same form and from the same operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from privet.errors import NoExampleRule, PrivetError
from privet.gradients.capture.recorded import Reach, Recording, Source, Use, tensors_in
from privet.gradients.engines.alike import Alike, alike_in
from privet.gradients.engines.clipper import Clipper, Measurement
from privet.gradients.forms.derived import Derived, WayBack
from privet.gradients.forms.joining import joined
from privet.gradients.forms.per_example import ConvGeometry, Convolution, Explicit, Outer, PerExample
from privet.gradients.forms.writing import written_out
from privet.gradients.norms.planner import Planner
from privet.gradients.norms.product_precision import HALF
from privet.gradients.rules.example_axis import FRONT, ExampleAxis
from privet.gradients.rules.layer_rules import OWN_RULES, ROW_WISE, convolution, geometry_of, linear
from privet.gradients.rules.rule_tools import Operand, ParametersFreed, Rule, named_arguments, resolved, source_of
from privet.mechanism.layout import Layout

Formed = list[tuple[int, PerExample]]
"""The gradients of parameters, by their positions in the layout."""


class BoundRule(Protocol):
    """A rule bound to one use."""

    def form(self, inputs: Tensor, out_grads: Tensor) -> Formed:
        """Return the gradients of the use's parameters, from its input and the gradient of its output."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Bound:
    """A bound rule, and the tensors that it was bound to.

    Attributes:
        rule: The rule.
        shapes: The shapes of the input and of the output gradient.
        dtype: The type of both.
    """

    rule: BoundRule
    shapes: tuple[torch.Size, torch.Size]
    dtype: torch.dtype

    def form(self, use: Use) -> Formed | None:
        """Apply the rule to a use that a gradient has reached; None if the rule was bound to other shapes or types."""
        inputs, out_grads = use.args[0], use.out_grad
        if out_grads is None or (inputs.shape, out_grads.shape) != self.shapes:
            return None
        return self.rule.form(inputs, out_grads) if inputs.dtype == out_grads.dtype == self.dtype else None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Bound:
    """A rule with the positions of weight and bias; None for one that is not trained."""

    weight: int | None
    bias: int | None


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundLinear(_Bound):
    """:func:`linear` of bound parameters."""

    batch_size: int

    def form(self, inputs: Tensor, out_grads: Tensor) -> Formed:
        found: Formed = []
        out_grads = out_grads.reshape(self.batch_size, -1, out_grads.shape[-1])
        if self.weight is not None:
            by_position = inputs.reshape(self.batch_size, -1, inputs.shape[-1])
            found.append((self.weight, Outer(inputs=by_position, out_grads=out_grads)))
        if self.bias is not None:
            sums = out_grads.squeeze(1) if out_grads.shape[1] == 1 else out_grads.sum(1)
            found.append((self.bias, Explicit(gradients=sums)))
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundConvolution(_Bound):
    """:func:`convolution` of bound parameters, with its geometry."""

    geometry: ConvGeometry

    def form(self, inputs: Tensor, out_grads: Tensor) -> Formed:
        found: Formed = []
        if self.weight is not None:
            part = Convolution(inputs=inputs, out_grads=out_grads, geometry=self.geometry)
            found.append((self.weight, part))
        if self.bias is not None:
            found.append((self.bias, Explicit(gradients=out_grads.flatten(2).sum(2))))
        return found


def _linear(use: Use, batch_size: int) -> BoundRule | None:
    given = named_arguments(use, "input", "weight", "bias")
    weight, bias = _position(use, given["weight"]), _position(use, given.get("bias"))
    return BoundLinear(weight=weight, bias=bias, batch_size=batch_size)


def _convolution(use: Use, batch_size: int) -> BoundRule | None:
    given = named_arguments(use, "input", "weight", "bias", "stride", "padding", "dilation", "groups")
    geometry, sides = geometry_of(use, given)
    if sides:
        return None
    weight, bias = _position(use, given["weight"]), _position(use, given.get("bias"))
    return BoundConvolution(weight=weight, bias=bias, geometry=geometry)


def _position(use: Use, tensor: Tensor | None) -> int | None:
    source = source_of(use, tensor)
    if source is None:
        return None
    (position,) = source.parameters
    return position


_BINDERS: Mapping[Rule, Callable[[Use, int], BoundRule | None]] = {linear: _linear, convolution: _convolution}


def bound(use: Use, rule: Rule, axis: ExampleAxis, batch_size: int) -> Bound | None:
    """Bind the rule of a use, for the next runs of its program; None for a use that its rule looks at every time.

    Bound are uses in full precision whose examples lie in front and whose parameters are plain ones: no view and
    nothing computed from them.
    """
    binder = _BINDERS.get(rule)
    is_plain = not any(source.derived or source.undo is not None for source in use.sources)
    if binder is None or axis != FRONT or not is_plain or not use.args or not isinstance(use.args[0], Tensor):
        return None
    inputs = use.args[0]
    if inputs.dtype in HALF or inputs.dtype != use.output_dtype:
        return None
    found = binder(use, batch_size)
    return None if found is None else Bound(rule=found, shapes=(inputs.shape, use.output_shape), dtype=inputs.dtype)


@dataclass(eq=False)
class Prepared:
    """How the gradients of one program are computed; kept for the runs in which the program is recognised.

    Attributes:
        axes: How the examples lie in the output of each use.
        rules: The rule of each use.
        reach: Where a backward pass may stop, and how many uses must be heard of.
        num_uses: How often each parameter is used: one that is used once can be handed on at once.
        shapes: The shape of each use's output.
        planner: Which planner was asked, and which revision of its choices holds.
        is_by_rules: Whether rules form the gradients, and not a backward pass for each example.
        measured: How the norms of each parameter's gradients are measured.
        alike: For each use the uses that are handled together with it, if there are any; empty if no use has some.
        bound: For each use its rule bound to it, if it is handled alone and can be.
    """

    axes: Sequence[ExampleAxis]
    rules: Sequence[Rule]
    reach: Reach
    num_uses: Mapping[int, int]
    shapes: Sequence[torch.Size]
    planner: Planner
    is_by_rules: bool = True
    revision: int = -1
    measured: Mapping[int, Measurement] = field(default_factory=dict)
    alike: Sequence[Alike | None] = ()
    bound: Sequence[Bound | None] = ()

    def bind(self, recording: Recording, layout: Layout) -> None:
        """Prepare the next runs: before the uses are released, and for those that follow the first one."""
        size = recording.batch_size
        if size == 1:  # any axis of length one may have been taken for that of a single example
            return

        def may_join(use: Use, rule: Rule) -> bool:
            is_plain = not any(source.derived or source.undo is not None for source in use.sources)
            return rule in ROW_WISE and is_plain and all(self.num_uses[place] == 1 for place in use.positions)

        found = alike_in(recording.uses, self.axes, self.rules, may_join, layout.groups)
        by_number = {number: some for some in found for number in some.numbers}
        alike = [by_number.get(number) for number in range(len(self.shapes))]
        self.alike = alike if found else ()
        plain = zip(recording.uses, self.rules, self.axes, alike, strict=True)
        self.bound = [bound(use, rule, axis, size) if some is None else None for use, rule, axis, some in plain]

    def fits(self, recording: Recording, planner: Planner) -> bool:
        """Whether a recognised forward pass can be handled in this way: shapes and the planner's choices still hold."""
        if self.planner is not planner or self.revision != planner.revision or len(self.shapes) != len(recording.uses):
            return False
        for use, shape in zip(recording.uses, self.shapes, strict=True):
            if use.output_shape != shape:
                return False
        return recording.follower is not None and recording.follower.tracer is None


@dataclass(kw_only=True, eq=False)
class Collector:
    """Turns output gradients into per-example gradients while the backward pass runs, so they can be freed early."""

    prepared: Prepared
    batch_size: int
    parameters: Sequence[nn.Parameter]
    clipper: Clipper
    has_code_on_the_way: bool = False  # whether the program may change gradients of derived tensors
    _heard: dict[int, list[Use]] = field(default_factory=dict)  # uses that wait for others of their shape
    _waiting: dict[int, list[PerExample]] = field(default_factory=dict)  # of parameters that are used more than once
    _derived: list[tuple[Source, PerExample]] = field(default_factory=list)

    def receive(self, use: Use) -> None:
        """Apply the rule of a use whose output gradient has arrived, unless it waits for others of its shape.

        For programs in which some uses are handled together, and sums to which they can be added together.
        """
        alike = self.prepared.alike[use.number]
        if alike is None:
            self.take(use)
            return
        heard = self._heard.setdefault(alike.numbers[0], [])
        heard.append(use)
        if len(heard) == len(alike.numbers):
            del self._heard[alike.numbers[0]]
            self._take_together(alike, heard)

    def take(self, use: Use) -> None:
        """Apply the rule of a use, then let go of its tensors."""
        use.check_unchanged()
        known = self.prepared.bound[use.number] if self.prepared.bound else None
        formed = None if known is None else known.form(use)
        is_foreseen = formed is not None
        for position, part in self._formed_by_rule(use) if formed is None else formed:
            if self.prepared.num_uses[position] == 1:
                self.clipper.take(position, part, is_foreseen=is_foreseen)
            else:
                self._waiting.setdefault(position, []).append(part)
        use.release()  # the clipper has what the sum needs; the rest of the layer's inputs is freed

    def _formed_by_rule(self, use: Use) -> Formed:
        """Return the gradients of plain parameters; those of derived tensors are kept for the end."""
        found: Formed = []
        for source, part in self._operands(use):
            if source.derived:
                self._derived.append((source, part))
            else:
                (position,) = source.parameters
                found.append((position, part))
        return found

    def _operands(self, use: Use) -> list[Operand]:
        """Apply the rule of a use; parameters whose numbers it needs are gathered again where they were freed."""
        rule, axis = self.prepared.rules[use.number], self.prepared.axes[use.number]
        if rule in OWN_RULES:
            try:
                return _formed(rule, use, axis, self.batch_size)
            except ParametersFreed:
                pass
        with self.clipper.gathered(tensors_in((use.args, use.kwargs))):
            return _formed(rule, use, axis, self.batch_size)

    def _take_together(self, alike: Alike, uses: list[Use]) -> None:
        """Apply the rule of uses of one shape once, as to one use with more examples."""
        uses.sort(key=_number)
        for use in uses:
            use.check_unchanged()
        one = alike.as_one(uses)
        if one is None:
            for use in uses:
                self.take(use)
            return
        rule, axis = self.prepared.rules[one.number], self.prepared.axes[one.number]
        for source, part in rule(one, axis, len(uses) * self.batch_size):
            (position,) = source.parameters
            self.clipper.take_layers(alike.positions[position], part)
        for use in uses:
            use.release()

    def finish(self) -> None:
        """Carry derived gradients back, and join the uses of every parameter that had several."""
        for uses in self._heard.values():  # the others of their shape were not reached this time
            for use in uses:
                self.take(use)
        if self._derived:
            self._send_back_derived()
        for position, parts in self._waiting.items():
            self.clipper.take(position, parts[0] if len(parts) == 1 else joined(parts))

    def _send_back_derived(self) -> None:
        """Send gradients of tensors that were computed from parameters back to these."""
        by_tensor: dict[int, tuple[Source, list[PerExample]]] = {}
        for source, part in self._derived:
            by_tensor.setdefault(id(source.tensor), (source, []))[1].append(part)
        num_ways = Counter(position for source, _ in by_tensor.values() for position in source.parameters)
        for source, parts in by_tensor.values():
            part, positions = parts[0] if len(parts) == 1 else joined(parts), sorted(source.parameters)
            parameters = tuple(self.parameters[position] for position in positions)
            way = WayBack(tensor=source.tensor, parameters=parameters)
            # norms of a parameter are those of all its gradients together
            is_only = all(num_ways[position] == 1 and position not in self._waiting for position in positions)
            is_plain = is_only and not self.has_code_on_the_way and way.is_linear
            if is_plain and self.clipper.may_take_derived(positions, part, source.tensor.numel()):
                self.clipper.take_derived(positions, Derived(part=part, way=way))
                continue
            with self.clipper.gathered(parameters):
                found = way.of_each(written_out(part))
            for position, gradients in zip(positions, found, strict=True):
                if gradients is not None:
                    self._waiting.setdefault(position, []).append(Explicit(gradients=gradients))


def _formed(rule: Rule, use: Use, axis: ExampleAxis, batch_size: int) -> list[Operand]:
    """Return the gradients that a rule forms, carried back as far as that needs no autograd."""
    try:
        found = rule(use, axis, batch_size)
        return [operand if operand[0].undo is None else resolved(*operand) for operand in found]
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        if isinstance(error, PrivetError):
            raise
        reason = " ".join(str(error).split())[:200]
        raise NoExampleRule(f"The rule of '{use.name}' does not fit how it was called ({reason}).") from error


def _number(use: Use) -> int:
    return use.number
