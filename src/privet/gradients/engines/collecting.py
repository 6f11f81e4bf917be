"""Turns the output gradients of recorded uses into per-example gradients, while a backward pass runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from privet.errors import NoExampleRule, PrivetError
from privet.gradients.capture.recorded import Reach, Recording, Source, Use
from privet.gradients.engines.engine import Clipper, Measurement
from privet.gradients.engines.support import quiet_vmap
from privet.gradients.forms.joining import joined
from privet.gradients.forms.per_example import Explicit, PerExample
from privet.gradients.norms.planner import Planner
from privet.gradients.rules.example_axis import ExampleAxis
from privet.gradients.rules.rule_tools import Operand, Rule, resolved


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
    _waiting: dict[int, list[PerExample]] = field(default_factory=dict)  # of parameters that are used more than once
    _derived: list[tuple[Source, PerExample]] = field(default_factory=list)

    def receive(self, use: Use) -> None:
        """Apply the rule of a use whose output gradient has arrived, then let go of the gradient."""
        for tensor, version in use.versions:
            if tensor._version != version:
                raise _changed(use)
        rule, axis = self.prepared.rules[use.number], self.prepared.axes[use.number]
        for source, part in _formed(rule, use, axis, self.batch_size):
            if source.derived:
                self._derived.append((source, part))
            else:
                (position,) = source.parameters
                if self.prepared.num_uses[position] == 1:
                    self.clipper.take(position, part)
                else:
                    self._waiting.setdefault(position, []).append(part)
        use.release()  # the clipper has what the sum needs; the rest of the layer's inputs is freed

    def finish(self) -> None:
        """Carry derived gradients back, and join the uses of every parameter that had several."""
        for source, part in self._derived:
            for position, pulled in _pull_back(source.tensor, part, source.parameters, self.parameters):
                self._waiting.setdefault(position, []).append(pulled)
        for position, parts in self._waiting.items():
            self.clipper.take(position, parts[0] if len(parts) == 1 else joined(parts))


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


def _changed(use: Use) -> NoExampleRule:
    return NoExampleRule(
        f"An input of operation '{use.name}' was changed in place after the operation used it, so its gradient can no "
        "longer be formed. Replace the in-place operation that follows by its ordinary form."
    )


def _pull_back(
    derived: Tensor, part: PerExample, positions: frozenset[int], parameters: Sequence[nn.Parameter]
) -> list[tuple[int, PerExample]]:
    """Carry per-example gradients of a derived tensor back to the parameters it was computed from."""
    order = sorted(positions)
    with quiet_vmap():
        pulled: Sequence[Tensor | None] = torch.autograd.grad(
            derived,
            [parameters[position] for position in order],
            grad_outputs=part.in_full().to(derived.dtype),
            is_grads_batched=True,
            retain_graph=True,
            allow_unused=True,
        )
    return [
        (position, Explicit(gradients=gradients))
        for position, gradients in zip(order, pulled, strict=True)
        if gradients is not None
    ]
