"""What an attacker rebuilds of public test pictures from what a run would release of their gradients.

The attacker of the worst case: it knows the network, the label, the mask and every other record of the batch, so that
all it lacks is one clipped gradient under the run's noise. The network is the recipe's as it begins, where gradients
say most. Gradients as they are, without clipping and noise, are the control: an attack that fails there proves nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from privet.attacks.rebuilt import Mean, RebuiltFigures, RebuiltReport
from privet.attacks.reconstruction import InvertingGradients, likeness
from privet.datasets.info import Normalisation
from privet.effects.sparsification import per_example_gradients
from privet.errors import RecipeError
from privet.mechanism.layout import Layout
from privet.mechanism.noise import spherical_gaussian_multiplier
from privet.plan import Plan
from privet.runs.building import build_model, choose_device, load_tested
from privet.runs.recipe import Recipe
from privet.runs.resuming import stored_plan
from privet.runs.run_files import RunFiles, write_json
from privet.runs.side_effects import classifier_recipe

CONTROL, RELEASED = "gradients as they are", "as this run releases them"


@dataclass(frozen=True, kw_only=True, eq=False)
class RebuiltPictures:
    """Pictures, what was rebuilt of them, and how like they are.

    Attributes:
        report: The figures.
        originals: The pictures ``[picture, channel, height, width]`` from 0 to 1.
        rebuilt: What became of them, by the names of the report's rows.
    """

    report: RebuiltReport
    originals: Tensor
    rebuilt: dict[str, Tensor]


class _OfPixels(nn.Module):
    """A network that takes pixels from 0 to 1, as an attacker moves them."""

    def __init__(self, network: nn.Module, normalisation: Normalisation) -> None:
        super().__init__()
        self.network, self.normalisation = network, normalisation

    def forward(self, pixels: Tensor) -> Tensor:
        shift, scale = (
            pixels.new_tensor(values).reshape(1, -1, 1, 1)
            for values in (self.normalisation.shift, self.normalisation.scale)
        )
        features = (pixels - shift) / scale
        bounds = self.normalisation.bounds
        result: Tensor = self.network(features if bounds is None else features.clamp(*bounds))
        return result


def examine_reconstruction(
    folder: str | Path, *, device: str = "auto", num_images: int = 8, num_steps: int = 300, seed: int = 0
) -> RebuiltPictures:
    """Attack the gradients of a few test pictures, bare and as the run releases them; the figures are kept with it.

    Args:
        folder: The run's folder.
        device: Where to attack.
        num_images: How many pictures, the first ones of the test split.
        num_steps: Of the attack.
        seed: Of the network's weights, the mask, the noise and the attack's beginnings.

    Raises:
        RecipeError: the records are not public, are no pictures, or the run clips or adds noise in a manner for which
            this attack is not made.
    """
    files = RunFiles(folder=Path(folder))
    recipe, plan, where = classifier_recipe(files), stored_plan(files), choose_device(device)
    _check(recipe, plan)
    normalisation = recipe.info.normalisation(recipe.normalisation)
    test = load_tested(recipe).test
    features, labels = test.features[:num_images].to(where), test.labels[:num_images].to(where)
    shift, scale = (features.new_tensor(v).reshape(1, -1, 1, 1) for v in (normalisation.shift, normalisation.scale))
    originals = (features * scale + shift).clamp(0, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _OfPixels(build_model(recipe, where), normalisation).eval()
    gradients = per_example_gradients(model, _losses, originals, labels)
    attack = InvertingGradients(num_steps=num_steps)
    shape = tuple(originals.shape[1:])
    rebuilt = {CONTROL: attack.attack(model, _losses, gradients, labels, shape, seed=seed).images}
    noise_std = None
    if not plan.not_private_because:
        observed, keep, noise_std = _released(gradients, model, plan, seed)
        found = attack.attack(model, _losses, observed, labels, shape, keep=keep, seed=seed)
        rebuilt[RELEASED] = found.images
    report = RebuiltReport(
        num_images=len(originals),
        num_steps=num_steps,
        mask_rate=plan.mask.final_rate,
        noise_std=noise_std,
        rows=tuple(_figures(name, pictures, originals) for name, pictures in rebuilt.items()),
    )
    write_json(files.reconstruction, report.to_dict())
    return RebuiltPictures(report=report, originals=originals, rebuilt=rebuilt)


def _check(recipe: Recipe, plan: Plan) -> None:
    if not recipe.is_public:
        raise RecipeError(
            "Reconstruction shows records as they are, and these are not public. It is for public test data only: set "
            "data_is_public = true in the recipe if they are."
        )
    if len(recipe.info.input_shape) != 3:
        raise RecipeError(f"The records of {recipe.dataset!r} are no pictures, so there is nothing to rebuild.")
    if plan.not_private_because:
        return
    if not plan.clipping.is_fixed or spherical_gaussian_multiplier(plan.noise) is None:
        raise RecipeError(
            f"The attack knows fixed clipping and Gaussian noise, and the run has {type(plan.clipping).__name__} and "
            f"{type(plan.noise).__name__}."
        )


def _released(gradients: Tensor, model: nn.Module, plan: Plan, seed: int) -> tuple[Tensor, Tensor, float]:
    """Mask, clip and noise every gradient as the run does with the sum of a batch that holds nothing else."""
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


def _losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


def _figures(name: str, pictures: Tensor, originals: Tensor) -> RebuiltFigures:
    alike = likeness(pictures, originals)
    mse, psnr, ssim = (Mean.of(values.tolist()) for values in (alike.mse, alike.psnr, alike.ssim))
    # few pictures make the interval of Student's t reach beyond what is possible
    mse, ssim = replace(mse, low=max(mse.low, 0.0)), replace(ssim, low=max(ssim.low, -1.0), high=min(ssim.high, 1.0))
    return RebuiltFigures(name=name, mse=mse, psnr=psnr, ssim=ssim)
