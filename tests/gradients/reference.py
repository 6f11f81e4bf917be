"""The slow truth: a per-example loop in double precision, clipped and summed by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from privet.gradients.capture.recorded import mark_batch
from privet.gradients.engines.engine import Engine, RunningEngine
from privet.isolation.watch import Waiver, Watch
from privet.mechanism.clipping import Clipping, ClippingRule
from privet.mechanism.grouping import Grouping, OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.sums import ClippedSum
from privet.training.batching import with_gradients

LossFunction = Callable[[nn.Module, Tensor], Tensor]


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, value) for name, value in model.named_parameters() if value.requires_grad]


def layout_of(model: nn.Module, grouping: Grouping | None = None) -> Layout:
    named = [(name, tuple(value.shape)) for name, value in trainable(model)]
    return Layout.of(named, grouping or OneGroup())


def loop_clipped_sum(
    model: nn.Module, loss: LossFunction, inputs: Tensor, clipping: Clipping, grouping: Grouping | None = None
) -> Tensor:
    """Clip and sum the gradients of one example after another, in float64."""
    double = copy.deepcopy(model).double()
    parameters = [value for _, value in trainable(double)]
    layout = layout_of(double, grouping)
    rule = clipping.for_groups(layout.num_groups)
    total = torch.zeros(layout.num_coordinates, dtype=torch.float64)
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    for index in range(len(inputs)):
        value = loss(double, inputs[index : index + 1])
        gradients = torch.autograd.grad(value.sum(), parameters, allow_unused=True)
        flat = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
        squares = torch.zeros(1, layout.num_groups, dtype=torch.float64)
        for group, gradient in zip(layout.groups, flat, strict=True):
            squares[0, group] += gradient.square().sum()
        factors = rule.factors(squares.sqrt())[0]
        for where, group, gradient in zip(layout.slices, layout.groups, flat, strict=True):
            total[where] += factors[group] * gradient.reshape(-1)
    return total


def engine_clipped_sum(
    engine: Engine,
    model: nn.Module,
    loss: LossFunction,
    inputs: Tensor,
    clipping: Clipping,
    grouping: Grouping | None = None,
    physical_batch_size: int | None = None,
    keep: Tensor | None = None,
    waive: Sequence[Waiver] = (),
) -> Tensor:
    """The same sum through an engine, in pieces of ``physical_batch_size``."""
    layout = layout_of(model, grouping)
    parameters = [value for _, value in trainable(model)]
    rule = clipping.for_groups(layout.num_groups)
    flat = parameters[0].new_zeros(layout.num_coordinates)
    into = ClippedSum(flat=flat, layout=layout, sensitivity=rule.sensitivity, keep=keep)
    running = engine.start(model, parameters, layout, Watch(waivers=waive))
    try:
        for part in inputs.split(physical_batch_size or max(1, len(inputs))):
            leaves: Sequence[Tensor] = ()
            if running.wants_input_gradients:
                part, leaves = with_gradients(part, len(part))
            part = part.clone()
            running.begin(len(part), leaves)
            mark_batch([part])
            running.add_clipped(loss(model, part), rule, into)
    finally:
        running.close()
    return into.flat


def started(
    engine: Engine,
    model: nn.Module,
    clipping: Clipping,
    grouping: Grouping | None = None,
    waive: Sequence[Waiver] = (),
) -> tuple[RunningEngine, ClippedSum, ClippingRule]:
    """An engine bound to a model for several batches, and an empty sum."""
    layout = layout_of(model, grouping)
    parameters = [value for _, value in trainable(model)]
    rule = clipping.for_groups(layout.num_groups)
    flat = parameters[0].new_zeros(layout.num_coordinates)
    into = ClippedSum(flat=flat, layout=layout, sensitivity=rule.sensitivity)
    return engine.start(model, parameters, layout, Watch(waivers=waive)), into, rule


def add(
    running: RunningEngine, model: nn.Module, inputs: Tensor, rule: ClippingRule, into: ClippedSum, loss: LossFunction
) -> Tensor:
    """Do one physical batch and return its norms."""
    part, leaves = with_gradients(inputs, len(inputs)) if running.wants_input_gradients else (inputs.clone(), ())
    running.begin(len(part), leaves)
    mark_batch([part])
    return running.add_clipped(loss(model, part), rule, into)


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


def median_norm(model: nn.Module, loss: LossFunction, inputs: Tensor) -> float:
    """A bound that clips about half of the examples."""
    double = copy.deepcopy(model).double()
    parameters = [value for _, value in trainable(double)]
    norms: list[float] = []
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    for index in range(len(inputs)):
        gradients: Sequence[Tensor | None] = torch.autograd.grad(
            loss(double, inputs[index : index + 1]).sum(), parameters, allow_unused=True
        )
        norms.append(float(torch.cat([g.reshape(-1) for g in gradients if g is not None]).norm()))
    return sorted(norms)[len(norms) // 2]
