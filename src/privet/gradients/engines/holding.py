"""Checks that all engines share: of a batch and its losses, and of every example's part of a sum.

A clipping rule declares a bound, noise is scaled to it and the ledger is charged from it. A rule that lets more through
than it declares would break the guarantee in silence, so its factors are limited here, whatever it returns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import torch
from torch import Tensor, nn

from privet.errors import LoopError, LossError, UnsupportedModel
from privet.gradients.capture.recorded import is_batch
from privet.mechanism.clipping import ClippingRule, per_group
from privet.mechanism.geometry import Frame
from privet.mechanism.layout import Layout
from privet.mechanism.sensitivity import Norm, Sensitivity


def check_may_begin(capture: object, parameters: Sequence[nn.Parameter], layout: Layout) -> None:
    """Refuse a second batch before the losses of the first, and hooks on parameters.

    Autograd would call the hooks with a sum over examples, which no engine forms.

    Raises:
        LoopError: a batch is open.
        UnsupportedModel: naming the parameters with hooks.
    """
    if capture is not None:
        raise LoopError("A physical batch is still open: call step.backward(losses) before asking for the next one.")
    hooked = {
        place
        for place, parameter in enumerate(parameters)
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks
    }
    if hooked:
        raise UnsupportedModel(
            f"Parameters {sorted(layout.names[place] for place in hooked)} have hooks on their gradients "
            "(register_hook). Autograd would call them with a sum over examples, which does not exist in private "
            "training before noise is added. Remove the hooks, and change gradients after step.update() or in the "
            "optimizer."
        )


def check_losses(losses: object, batch_size: int) -> Tensor:
    """Return the losses if they are one number per example of the physical batch; explain the fault otherwise."""
    if not isinstance(losses, Tensor):
        raise LossError(f"The losses must be a tensor with one number per example, got {type(losses).__name__}.")
    if losses.dim() == 0:
        raise LossError(
            "The loss is a scalar. A mean or a sum over the batch has no per-example gradients: pass one "
            "loss per example, for instance cross_entropy(..., reduction='none')."
        )
    if losses.dim() != 1 or len(losses) != batch_size:
        raise LossError(
            f"The losses must have the shape [{batch_size}] (one per example of this physical batch), and have "
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


def held_factors(rule: ClippingRule, norms: Tensor, sensitivity: Sensitivity, num_coordinates: int) -> Tensor:
    """Return the rule's factors for norms ``[batch, group]``, none of them above ``bound / norm`` of its group.

    Guarantee:
        ``0 <= factor`` and ``norm * factor <= bound`` for every example and group, up to rounding in the last place,
        for any rule: one that returns factors too large, negative, infinite or NaN, or that writes into the norms. The
        bound is the one that noise is scaled to. It rests on the norms being those of the gradients that are summed:
        the engine measures them, and its trial compares them with autograd's (:func:`check_norms`). Nothing is read
        back from the device.

    A rule that keeps its bound gets its own factors. Two things move: a factor of ``bound / cutoff`` at a norm within
    rounding of the cutoff may lose its last bit; and a gradient so short that its squares vanish (below 1e-14 or so in
    single precision) is taken to be as long as it may be.

    Raises:
        LoopError: the bound is not stated per group, or not in Euclidean length, or the factors have another shape.
    """
    if len(sensitivity.bounds) != norms.shape[1] or sensitivity.norm is not Norm.L2:
        raise LoopError(
            f"A sum of {norms.shape[1]} parameter groups needs one bound on the Euclidean length of each; the clipping "
            f"rule declares {len(sensitivity.bounds)} in {sensitivity.norm.name}."
        )
    # a square below the smallest normal number may have been lost, in every coordinate
    shortest = math.sqrt(num_coordinates * torch.finfo(norms.dtype).tiny)
    limits = per_group(sensitivity.bounds, norms) / norms.clamp_min(shortest)
    factors = _one_by_one(rule, norms.clone())  # a rule that writes into its argument must change nothing else
    return factors.minimum(limits).clamp_min(0.0).nan_to_num(nan=0.0, posinf=0.0).to(norms.dtype)


def _one_by_one(rule: ClippingRule, norms: Tensor) -> Tensor:
    """Return the factors of a rule that is shown one example at a time, all of them in one pass.

    Guarantee:
        A factor depends on the norms of its own example and on the rule, at every step: within torch.vmap no
        operation reaches another row, and none hands numbers to Python.

    Raises:
        LoopError: the rule's code needs more than one row, or numbers in Python.
    """

    def of_one(row: Tensor) -> Tensor:
        found: object = rule.factors(row.unsqueeze(0))
        if not isinstance(found, Tensor) or found.shape != (1, len(row)):
            shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise LoopError(f"{type(rule).__name__} made factors of shape {shape} of [1, {len(row)}].")
        return found.squeeze(0)

    if not len(norms):
        return torch.ones_like(norms)
    try:
        factors: Tensor = torch.vmap(of_one)(norms)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:120]
        raise LoopError(
            f"{type(rule).__name__} cannot be computed for one example at a time ({reason}). "
            "A clipping rule is shown the norms of one example, and must do with torch's operations: torch.where "
            "instead of if, no .item(), no writes of its results into tensors made elsewhere."
        ) from error
    return factors


def check_norms(
    losses: Tensor, norms: Tensor, parameters: Sequence[nn.Parameter], layout: Layout, *,
    keep: Tensor | None, frame: Frame | None, tolerance: tuple[float, float],
) -> None:  # fmt: skip
    """Compare the norms of two sound gradients of a batch, the longest and one of middle length, with autograd's.

    A rule that measures wrongly shows in both; the rounding of one wild example in one.

    Args:
        losses: One per example; their graph is kept.
        norms: The norms that the engine measured, ``[batch, group]``.
        parameters: In the layout's order.
        layout: Where each parameter lies.
        keep: The coordinates that take part, or None for all.
        frame: The units in which the norms are, or None for plain ones.
        tolerance: Differences that rounding explains: a share of a norm, and one of the whole gradient's.

    Raises:
        UnsupportedModel: if both are shorter than autograd finds: a rule of an operation measures wrongly.
    """
    relative, absolute = tolerance
    wrong = set(layout.groups)
    chosen = typical(losses, norms)
    for place in chosen:
        found = norms[place]
        truth = _norms_of(losses, place, parameters, layout, keep=keep, frame=frame).to(found.dtype)
        slack = relative * truth + absolute * torch.linalg.vector_norm(truth)
        # too long a norm breaks nothing, and some are raised on purpose where rounding may hide a part
        wrong &= set((truth - found > slack).nonzero().flatten().tolist())
        if not wrong:
            return
    if chosen:
        raise too_long(wrong, layout)


def too_long(groups: AbstractSet[int], layout: Layout) -> UnsupportedModel:
    """Return the error that names the parameters of groups whose gradients are longer than they were measured."""
    names = [name for name, group in zip(layout.names, layout.groups, strict=True) if group in groups]
    return UnsupportedModel(
        f"Per-example gradients of {names} are longer than the engine measured, so nothing would hold them to the "
        "bound: an operation on these parameters has a rule that measures wrongly. Correct the rule, or leave it out "
        "of BookKeeping(rules=...)."
    )


def typical(losses: Tensor, norms: Tensor) -> list[int]:
    """Return the places of the longest gradient and of one in the middle, among those that are finite."""
    lengths = torch.linalg.vector_norm(norms, dim=1)
    sound = (lengths.isfinite() & losses.detach().isfinite()).nonzero().flatten()
    if not len(sound):
        return []
    ordered = sound[lengths[sound].argsort()].tolist()
    return sorted({ordered[-1], ordered[(len(ordered) - 1) // 2]})


def widest(device: torch.device) -> torch.dtype:
    """Return the widest real numbers that a device can compute with: Apple's have no double precision."""
    return torch.float32 if device.type == "mps" else torch.float64


def _norms_of(
    losses: Tensor, place: int, parameters: Sequence[nn.Parameter], layout: Layout, *,
    keep: Tensor | None, frame: Frame | None,
) -> Tensor:  # fmt: skip
    kind = widest(losses.device)
    one = torch.zeros_like(losses)
    one[place] = 1
    found: Sequence[Tensor | None] = torch.autograd.grad(
        losses, parameters, grad_outputs=one, retain_graph=True, allow_unused=True
    )
    pairs = zip(found, parameters, strict=True)
    flat = torch.cat(
        [(torch.zeros_like(value) if part is None else part).detach().reshape(-1).to(kind) for part, value in pairs]
    )
    flat = flat if keep is None else flat * keep
    flat = flat if frame is None else frame.whitened(flat)
    squares = flat.new_zeros(layout.num_groups)
    for where, group in zip(layout.slices, layout.groups, strict=True):
        squares[group] += flat[where].square().sum()
    return squares.sqrt()
