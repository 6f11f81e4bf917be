"""What every gradient engine does: turn per-example losses into a clipped sum.

An engine decides how norms and sums are computed, never what they are. Choosing another engine, another precision or
another physical batch size cannot change a guarantee.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from privet.errors import LossError
from privet.gradients.capture import is_batch
from privet.gradients.per_example import Explicit, PerExample
from privet.mechanism.clipping import ClippingRule
from privet.mechanism.layout import Layout
from privet.mechanism.sums import ClippedSum


class RunningEngine(Protocol):
    """An engine bound to one model for the length of a session."""

    def begin(self, batch_size: int) -> None:
        """Watch the forward pass of one physical batch of this many examples."""
        ...

    def add_clipped(self, losses: Tensor, rule: ClippingRule, into: ClippedSum) -> Tensor:
        """Add the clipped gradients of the watched batch to ``into`` and return the norms ``[batch, group]``.

        Guarantee:
            ``into.flat`` moves by the sum over examples of factor times gradient, each term within
            ``into.sensitivity``. An example with a non-finite gradient adds exactly zero. ``p.grad`` is not touched.
            The norms are private.
        """
        ...

    def abandon(self) -> None:
        """Stop watching and forget the physical batch; harmless when nothing is watched."""
        ...

    def close(self) -> None:
        """Leave the model as it was found."""
        ...


@runtime_checkable
class Engine(Protocol):
    """A choice of engine: a performance knob, never part of a plan."""

    def start(self, model: nn.Module, parameters: Sequence[nn.Parameter], layout: Layout) -> RunningEngine:
        """Bind to a model and its trainable parameters, in the layout's order."""
        ...


def check_losses(losses: object, batch_size: int) -> Tensor:
    """Return the losses if they are one number per example of the physical batch; explain what is wrong otherwise."""
    if not isinstance(losses, Tensor):
        raise LossError(f"step.backward() takes a tensor of per-example losses, got {type(losses).__name__}.")
    if losses.dim() == 0:
        raise LossError(
            "step.backward() got a scalar loss. A mean or a sum over the batch has no per-example gradients: pass one "
            "loss per example, for instance cross_entropy(..., reduction='none')."
        )
    if losses.dim() != 1 or len(losses) != batch_size:
        raise LossError(
            f"step.backward() needs losses of shape [{batch_size}] (one per example of this physical batch), got "
            f"{list(losses.shape)}. Reduce every axis but the example axis, for instance losses.mean(dim=1)."
        )
    if not losses.requires_grad:
        raise LossError(
            "The losses do not depend on any trainable parameter. Were they computed under torch.no_grad(), or "
            "detached?"
        )
    if not is_batch(losses):
        raise LossError(
            "The losses do not depend on the examples that step.microbatches() handed out. Compute them from those "
            "examples with torch operations; data from another loader would escape the guarantee."
        )
    return losses


def clip_and_add(gradients: Mapping[int, PerExample], rule: ClippingRule, into: ClippedSum, batch_size: int) -> Tensor:
    """Measure, clip and sum per-example gradients; ``gradients`` maps a parameter's position in the layout to them.

    Guarantee:
        As in :meth:`RunningEngine.add_clipped`. Parameters that are absent contribute zero.
    """
    layout = into.layout
    if into.keep is not None:
        gradients = {position: _masked(part, into, position) for position, part in gradients.items()}
    squares = into.flat.new_zeros(layout.num_groups, batch_size)
    for position, part in gradients.items():
        squares[layout.groups[position]] += part.square_norms()
    norms = squares.mT.sqrt()
    bad = norms.isfinite().all(1).logical_not()
    factors = rule.factors(norms).masked_fill(bad.unsqueeze(1), 0)
    if bool(bad.any()):
        gradients = {position: part.without(bad) for position, part in gradients.items()}
    for position, part in gradients.items():
        total = part.weighted_sum(factors[:, layout.groups[position]])
        into.flat[layout.slices[position]] += total.reshape(-1)
    return norms


def _masked(part: PerExample, into: ClippedSum, position: int) -> PerExample:
    assert into.keep is not None
    kept = into.keep[into.layout.slices[position]].view(into.layout.shapes[position])
    return Explicit(gradients=torch.where(kept, part.in_full(), 0))
