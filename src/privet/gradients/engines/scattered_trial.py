"""The trial of a proven program whose parameters are sharded: its sums and norms against autograd's.

As :func:`privet.gradients.engines.trial.check_sums` and :func:`privet.gradients.engines.holding.check_norms`, with two
differences. Every backward pass gathers parameters on all ranks, so its number must not depend on numbers of examples:
four are run, and a fault of one rank is told to all of them. And no whole gradient of the model is ever held: each
parameter's is compared when autograd has formed it, and let go of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from privet.errors import UnsupportedModel
from privet.gradients.engines.holding import too_long, typical
from privet.gradients.engines.support import took_no_part
from privet.gradients.engines.trial import Trial, no_sum
from privet.gradients.sharding.gradients import each_gradient
from privet.mechanism.layout import Layout
from privet.mechanism.sums import Scatter

# Examples whose norms are compared: the longest and one of middle length.
_NUM_COMPARED = 2
_NUM_HALVES = 2


def not_scattered(reason: str) -> UnsupportedModel:
    """Return the error for a program that sharded parameters cannot run."""
    return UnsupportedModel(
        f"The model is sharded, and no rule proves its program or forms its gradients: {reason}. Experiments and "
        "backward passes for single examples would gather all parameters many times, as often as the examples of each "
        "rank ask for, and ranks must gather together. Train the model unsharded, or write the operation in another "
        "way."
    )


def check_scattered(
    trial: Trial, weighted_part: Callable[[int, Tensor], Tensor], weights: Tensor, norms: Tensor, lengths: Tensor,
    parameters: Sequence[nn.Parameter], layout: Layout, *, tolerance: tuple[float, float], scatter: Scatter,
) -> None:  # fmt: skip
    """Refuse a program whose per-example gradients do not add up to autograd's, or are longer than they were measured.

    Args:
        trial: Of a proven program.
        weighted_part: Gives the sum over examples of weight times gradient of the parameter at a position.
        weights: One per example, zero for padding and for examples that are not finite.
        norms: The norms that the engine measured, ``[batch, group]``; NaN for the same examples.
        lengths: Length of each example's gradient, zero where the weight is.
        parameters: The whole parameters, in the layout's order.
        layout: Their names, shapes and groups.
        tolerance: Differences that rounding explains: a share of a gradient, and one of the whole gradient's length.
        scatter: Tells all ranks of a fault.

    Raises:
        UnsupportedModel: on all ranks, naming the parameters on the rank that found the fault.
    """
    fault = _sums_differ(trial, weighted_part, weights, lengths, parameters, layout, tolerance)
    fault = _norms_differ(trial, norms, parameters, layout, tolerance) or fault
    if scatter.is_any(fault is not None):
        raise fault or _fault_elsewhere()


def accompany(losses: Tensor, parameters: Sequence[nn.Parameter], scatter: Scatter) -> None:
    """Take part in the backward passes of another rank's trial, with a program of this rank that needs none.

    Raises:
        UnsupportedModel: the other rank found a fault.
    """
    nothing = torch.zeros_like(losses)
    for _ in range(_NUM_HALVES + _NUM_COMPARED):
        with each_gradient(parameters, lambda position, gradient: None):
            _send_back(losses, nothing, parameters)
    if scatter.is_any(False):
        raise _fault_elsewhere()


def _fault_elsewhere() -> UnsupportedModel:
    return UnsupportedModel(
        "Another rank found that the per-example gradients of its examples are not autograd's. Its message names the "
        "parameters."
    )


def _sums_differ(
    trial: Trial, weighted_part: Callable[[int, Tensor], Tensor], weights: Tensor, lengths: Tensor,
    parameters: Sequence[nn.Parameter], layout: Layout, tolerance: tuple[float, float],
) -> UnsupportedModel | None:  # fmt: skip
    """Compare the sums of both halves of the batch; a fault of the program shows in both."""
    relative, absolute = tolerance
    wrong, reached = set(range(len(parameters))), set[int]()
    for half in trial.halves():
        chosen = weights * half
        slack, unlike = absolute * (chosen * lengths).sum(), set[int]()

        def compare(
            position: int, truth: Tensor, chosen: Tensor = chosen, slack: Tensor = slack, unlike: set[int] = unlike
        ) -> None:
            found, truth = weighted_part(position, chosen), truth.to(chosen.dtype)
            reached.add(position)
            if bool((found - truth).norm() > relative * truth.norm() + slack):
                unlike.add(position)

        with each_gradient(parameters, compare):
            _send_back(trial.losses, chosen, parameters)
        if bool((chosen > 0).any()):
            wrong &= unlike
    idle = sorted(name for place, name in enumerate(layout.names) if place not in reached)
    if idle and len(weights) > 1:
        return took_no_part(idle)
    names = sorted(layout.names[position] for position in wrong)
    return no_sum(names) if names and bool((weights > 0).any()) else None


def _norms_differ(
    trial: Trial, norms: Tensor, parameters: Sequence[nn.Parameter], layout: Layout, tolerance: tuple[float, float]
) -> UnsupportedModel | None:
    """Compare the norms of two sound examples, where there are two."""
    relative, absolute = tolerance
    wrong, chosen = set(layout.groups), typical(trial.losses, norms)
    for number in range(_NUM_COMPARED):
        place = chosen[number] if number < len(chosen) else None
        squares = norms.new_zeros(layout.num_groups, dtype=torch.float64)

        def add(position: int, truth: Tensor, squares: Tensor = squares) -> None:
            squares[layout.groups[position]] += truth.double().square().sum()

        one = torch.zeros_like(trial.losses)
        if place is not None:
            one[place] = 1
        with each_gradient(parameters, add):
            _send_back(trial.losses, one, parameters)
        if place is not None:
            truth = squares.sqrt().to(norms.dtype)
            slack = relative * truth + absolute * torch.linalg.vector_norm(truth)
            wrong &= set((truth - norms[place] > slack).nonzero().flatten().tolist())
    return too_long(wrong, layout) if chosen and wrong else None


def _send_back(losses: Tensor, weights: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    sound = weights > 0
    with torch.enable_grad():
        # no sound example leaves a sum of nothing, whose backward pass gathers parameters like any other
        loss = (losses[sound] * weights[sound].to(losses.dtype)).sum()
    torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
