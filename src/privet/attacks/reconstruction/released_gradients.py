"""Worst-case reconstruction attack on a plan: rebuild images from the gradients that a run under the plan releases.

The attacker knows the network, the label, the mask and every other record of the batch; only one clipped gradient with
the plan's noise is unknown. Gradients without clipping and noise are the control: an attack that fails on the control
proves nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from privet.attacks.reconstruction.methods import InvertingGradients, image_similarity
from privet.attacks.reconstruction.result import Mean, RebuiltFigures, RebuiltReport
from privet.errors import RecipeError
from privet.mechanism.layout import Layout
from privet.mechanism.noise import spherical_gaussian_multiplier
from privet.plan import Plan

CONTROL, RELEASED = "gradients as they are", "as this run releases them"


@dataclass(frozen=True, kw_only=True, eq=False)
class RebuiltPictures:
    """Originals, rebuilt images and their similarity.

    Attributes:
        report: The similarity measures.
        originals: The images, ``[image, channel, height, width]``, pixels from 0 to 1.
        rebuilt: The rebuilt images, by the names of the report's rows.
    """

    report: RebuiltReport
    originals: Tensor
    rebuilt: dict[str, Tensor]


def rebuild_pictures(
    model: nn.Module, gradients: Tensor, originals: Tensor, labels: Tensor, plan: Plan, *, num_steps: int, seed: int
) -> RebuiltPictures:
    """Attack the gradients of images, without protection (the control) and as the plan releases them.

    Args:
        model: A network on pixels from 0 to 1.
        gradients: Per-example gradients of its losses, ``[image, coordinate]``.
        originals: The images.
        labels: Their classes, which the attacker knows.
        plan: The calibrated plan. For a plan without privacy only the control runs.
        num_steps: Steps of the attack.
        seed: Seed of the mask, the noise and the initialisations of the attack.

    Raises:
        RecipeError: the attack does not support the plan's clipping or noise.
    """
    attack = InvertingGradients(num_steps=num_steps)
    shape = tuple(originals.shape[1:])
    rebuilt = {CONTROL: attack.attack(model, class_losses, gradients, labels, shape, seed=seed).images}
    noise_std = None
    if not plan.not_private_because:
        check_plan(plan)
        observed, keep, noise_std = _released(gradients, model, plan, seed)
        found = attack.attack(model, class_losses, observed, labels, shape, keep=keep, seed=seed)
        rebuilt[RELEASED] = found.images
    report = RebuiltReport(
        num_images=len(originals),
        num_steps=num_steps,
        mask_rate=plan.mask.final_rate,
        noise_std=noise_std,
        rows=tuple(_figures(name, pictures, originals) for name, pictures in rebuilt.items()),
    )
    return RebuiltPictures(report=report, originals=originals, rebuilt=rebuilt)


def class_losses(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy of every image."""
    return functional.cross_entropy(outputs, labels, reduction="none")


def check_plan(plan: Plan) -> None:
    """Refuse a plan that the attack does not support; a plan without privacy passes.

    Raises:
        RecipeError: the clipping changes during the run, or the noise is not Gaussian.
    """
    if plan.not_private_because:
        return
    if not plan.clipping.is_fixed or spherical_gaussian_multiplier(plan.noise) is None:
        raise RecipeError(
            f"The attack supports fixed clipping and Gaussian noise, and the run has "
            f"{type(plan.clipping).__name__} and {type(plan.noise).__name__}."
        )


def _released(gradients: Tensor, model: nn.Module, plan: Plan, seed: int) -> tuple[Tensor, Tensor, float]:
    """Apply mask, clipping and noise to every gradient, as the run does to a batch of one record."""
    generator = torch.Generator(gradients.device).manual_seed(seed)
    order = torch.rand(gradients.shape, generator=generator, device=gradients.device).argsort(1)
    keep = order >= math.floor(plan.mask.final_rate * gradients.shape[1])
    named = [(name, value.shape) for name, value in model.named_parameters() if value.requires_grad]
    layout = Layout.of(named, plan.grouping)
    num_groups = max(layout.groups) + 1
    parts = torch.split(gradients * keep, list(layout.sizes), dim=1)
    squares = gradients.new_zeros(len(gradients), num_groups)
    for part, group in zip(parts, layout.groups, strict=True):
        squares[:, group] += part.square().sum(1)
    rule = plan.clipping.for_groups(num_groups)
    factors = rule.factors(squares.sqrt())
    clipped = torch.cat([part * factors[:, group, None] for part, group in zip(parts, layout.groups, strict=True)], 1)
    multiplier = spherical_gaussian_multiplier(plan.noise)
    assert multiplier is not None, "other noise is refused before the attack, and a stored plan is calibrated"
    noise_std = multiplier * rule.sensitivity.total
    noise = torch.randn(gradients.shape, generator=generator, device=gradients.device)
    return (clipped + noise_std * noise) * keep, keep, float(noise_std)


def _figures(name: str, pictures: Tensor, originals: Tensor) -> RebuiltFigures:
    similarity = image_similarity(pictures, originals)
    mse, psnr, ssim = (Mean.of(values.tolist()) for values in (similarity.mse, similarity.psnr, similarity.ssim))
    # for few images the Student's t interval can exceed the range of the measure
    mse, ssim = replace(mse, low=max(mse.low, 0.0)), replace(ssim, low=max(ssim.low, -1.0), high=min(ssim.high, 1.0))
    return RebuiltFigures(name=name, mse=mse, psnr=psnr, ssim=ssim)
