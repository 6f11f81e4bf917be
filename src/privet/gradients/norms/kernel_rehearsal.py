"""The norms of a first physical batch, rehearsed to learn which kernels they need.

Rules and strategies run with tensors that have a shape but no memory, which takes a moment; what they would launch is
noted instead. The kernels can then be built before they are needed; see :mod:`privet.gradients.norms.kernel_building`.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from privet.gradients.capture.in_place import Function
from privet.gradients.capture.recorded import Recording, Use
from privet.gradients.norms.kernels import Launch, rehearsal
from privet.gradients.norms.planner import Planner
from privet.gradients.rules.example_axis import candidates
from privet.gradients.rules.layer_rules import RULES
from privet.gradients.rules.rule_tools import Rule, resolved

_log = logging.getLogger("privet")


def launches_of(recording: Recording, rules: Mapping[Function, Rule], planner: Planner) -> list[Launch]:
    """Return what will be launched to measure and sum the gradients of a recorded forward pass, as far as is known."""
    first = {_shape_of_use(use): use for use in reversed(recording.uses)}
    with rehearsal() as launches, torch.no_grad():
        for use in first.values():
            try:
                _rehearse(_without_memory(use), recording.batch_size, rules, planner)
            except Exception as error:  # noqa: BLE001 -- some operations need memory; their kernels are built later
                _log.debug("'%s' was not rehearsed: %s.", use.name, error)
    return launches


def _rehearse(use: Use, size: int, rules: Mapping[Function, Rule], planner: Planner) -> None:
    axes = candidates(use.output_shape, size)
    rule = RULES.get(use.function)
    if not axes or rule is None or rules.get(use.function) is not rule:  # a user's rule may do more than compute
        return
    for found in rule(use, axes[0], size):
        _, part = resolved(*found)
        weights = torch.empty(size, dtype=torch.float32, device="meta")
        for strategy in planner.options(part):
            kept = strategy.measure(part)[1]
            kept.add_weighted_sum(weights, torch.empty_like(kept[:1].in_full()[0]))


def _without_memory(use: Use) -> Use:
    """Return the use with tensors of the same shapes that hold nothing, and a gradient that has come back."""
    copies: dict[int, Tensor] = {}

    def copied(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in copies:
            copies[id(value)] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        return copies[id(value)]

    args, kwargs = pytree.tree_map(copied, (use.args, use.kwargs))
    return replace(
        use,
        args=args,
        kwargs=kwargs,
        sources=[replace(source, tensor=copied(source.tensor), made_from=None, undo=None) for source in use.sources],
        statistics=None if use.statistics is None else (copied(use.statistics[0]), copied(use.statistics[1])),
        out_grad=torch.empty(use.output_shape, dtype=use.output_dtype, device="meta"),
        edge=None,
        receive=None,
        versions=(),
    )


def _shape_of_use(use: Use) -> Hashable:
    def shape(value: Any) -> Hashable:
        return (value.shape, value.stride(), value.dtype) if isinstance(value, Tensor) else repr(value)

    leaves: Sequence[Any] = pytree.tree_leaves((use.args, use.kwargs))
    return use.function, use.output_shape, tuple(map(shape, leaves))
