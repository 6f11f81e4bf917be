"""Reconstruction attacks: exact where the theory is, and weaker the more is masked."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from privet.attacks.reconstruction.methods import (
    InvertingGradients,
    image_similarity,
    least_squares,
    least_squares_bound,
    least_squares_errors,
    total_variation,
)
from privet.errors import ArgumentError, DataError


def test_without_noise_least_squares_finds_the_input_also_from_what_a_mask_leaves() -> None:
    torch.manual_seed(0)
    constraints, inputs = torch.randn(40, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    gradients = inputs @ constraints.mT
    keep = torch.arange(40) % 3 == 0
    assert torch.allclose(least_squares(constraints, gradients), inputs)
    assert torch.allclose(least_squares(constraints, gradients, keep=keep), inputs)
    assert torch.allclose(least_squares(constraints, gradients[1], keep=keep), inputs[1])


def test_masked_equations_are_not_looked_at() -> None:
    torch.manual_seed(1)
    constraints, keep = torch.randn(30, 4), torch.arange(30) < 20
    gradients = constraints @ torch.ones(4)
    spoilt = torch.where(keep, gradients, torch.tensor(float("nan")))
    assert torch.allclose(least_squares(constraints, spoilt, keep=keep), torch.ones(4), atol=1e-4)


def test_too_few_equations_are_refused() -> None:
    with pytest.raises(ArgumentError, match="3 equations are left for 4 inputs"):
        least_squares(torch.randn(10, 4), torch.randn(10), keep=torch.arange(10) < 3)
    with pytest.raises(ArgumentError, match="one gradient per equation"):
        least_squares(torch.randn(10, 4), torch.randn(9))


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9, 0.99])
def test_the_error_of_least_squares_is_that_of_the_theorem_and_rises_with_the_rate(rate: float) -> None:
    torch.manual_seed(2)
    constraints = torch.randn(2000, 1, dtype=torch.float64)
    errors = least_squares_errors(constraints, noise_std=0.3, rate=rate, num_trials=400)
    bound = least_squares_bound(constraints, noise_std=0.3, rate=rate)
    standard_error = float(errors.std()) / math.sqrt(len(errors))
    assert float(errors.mean()) >= bound - 3 * standard_error
    # beyond the bound there is only what one over a mean misses of the mean of one over it
    assert float(errors.mean()) <= bound * (1 + 5 / (2000 * (1 - rate))) + 3 * standard_error


# ----------------------------------------------------------------------------------------------- inverting gradients


def victim() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 5))
    axis = torch.linspace(0, 1, 6)
    images = torch.stack([axis.expand(6, 6), axis.flip(0).expand(6, 6).mT, (axis.unsqueeze(1) - axis).abs()])
    return model, images.unsqueeze(1), torch.tensor([0, 3, 1])


def losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


def gradients_of(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    rows = []
    for index in range(len(images)):
        loss = losses(model(images[index : index + 1]), labels[index : index + 1]).sum()
        rows.append(torch.cat([value.reshape(-1) for value in torch.autograd.grad(loss, list(model.parameters()))]))
    return torch.stack(rows)


ATTACK = InvertingGradients(num_steps=160, total_variation=1e-3)


def test_images_are_rebuilt_from_their_gradients() -> None:
    model, images, labels = victim()
    observed = gradients_of(model, images, labels)
    found = ATTACK.attack(model, losses, observed, labels, (1, 6, 6))
    start = InvertingGradients(num_steps=1).attack(model, losses, observed, labels, (1, 6, 6))
    assert bool((found.costs < start.costs).all())
    assert float(image_similarity(found.images, images).mse.mean()) < 0.02
    assert float(image_similarity(start.images, images).mse.mean()) > 0.1
    assert float(found.images.min()) >= 0
    assert float(found.images.max()) <= 1


def test_images_are_attacked_each_by_itself() -> None:
    model, images, labels = victim()
    observed = gradients_of(model, images, labels)
    spoilt = observed.clone()
    spoilt[1:] = torch.randn_like(spoilt[1:])
    first, second = (ATTACK.attack(model, losses, seen, labels, (1, 6, 6)).images[0] for seen in (observed, spoilt))
    assert torch.allclose(first, second, atol=1e-4)
    pieces = InvertingGradients(num_steps=20, chunk_size=2).attack(model, losses, observed, labels, (1, 6, 6))
    whole = InvertingGradients(num_steps=20).attack(model, losses, observed, labels, (1, 6, 6))
    assert torch.allclose(pieces.images, whole.images, atol=1e-4)


def test_noise_and_masks_make_reconstructions_worse_also_for_an_attacker_who_knows_the_mask() -> None:
    model, images, labels = victim()
    clean = gradients_of(model, images, labels)
    generator = torch.Generator().manual_seed(4)
    noise = 0.05 * clean.norm(dim=1, keepdim=True) / clean.shape[1] ** 0.5
    noisy = clean + noise * torch.randn(clean.shape, generator=generator)
    order = torch.randperm(clean.shape[1], generator=generator)
    errors = []
    for rate in (0.0, 0.9, 0.98):
        keep = torch.ones(clean.shape[1], dtype=torch.bool)
        keep[order[: int(rate * len(order))]] = False
        found = ATTACK.attack(model, losses, noisy * keep, labels, (1, 6, 6), keep=keep)
        errors.append(float(image_similarity(found.images, images).mse.mean()))
    assert errors[0] < errors[1] < errors[2]


def test_an_attacker_who_does_not_know_the_mask_does_worse() -> None:
    model, images, labels = victim()
    observed = gradients_of(model, images, labels)
    keep = torch.rand(observed.shape[1], generator=torch.Generator().manual_seed(5)) > 0.7
    known = ATTACK.attack(model, losses, observed * keep, labels, (1, 6, 6), keep=keep)
    unknown = ATTACK.attack(model, losses, observed * keep, labels, (1, 6, 6))
    assert float(image_similarity(known.images, images).mse.mean()) < float(
        image_similarity(unknown.images, images).mse.mean()
    )


def test_of_several_restarts_the_best_counts() -> None:
    model, images, labels = victim()
    observed = gradients_of(model, images, labels)
    once = InvertingGradients(num_steps=10).attack(model, losses, observed, labels, (1, 6, 6), seed=6)
    often = InvertingGradients(num_steps=10, num_restarts=4).attack(model, losses, observed, labels, (1, 6, 6), seed=6)
    assert bool((often.costs <= once.costs).all())
    assert bool((often.costs < once.costs).any())


def test_attacks_that_make_no_sense_are_refused() -> None:
    model, _, labels = victim()
    with pytest.raises(DataError, match="one gradient per label"):
        ATTACK.attack(model, losses, torch.zeros(2, 10), labels, (1, 6, 6))
    with pytest.raises(ArgumentError, match="between low and high"):
        InvertingGradients(low=1.0, high=0.0)
    with pytest.raises(ArgumentError, match="num_steps"):
        InvertingGradients(num_steps=0)


# ---------------------------------------------------------------------------------------------------------- similarity


def test_a_copy_is_perfect_and_noise_is_not() -> None:
    torch.manual_seed(7)
    images = torch.rand(3, 3, 16, 16)
    same = image_similarity(images, images)
    assert bool((same.mse == 0).all())
    assert bool(same.psnr.isinf().all())
    assert torch.allclose(same.ssim, torch.ones(3, dtype=torch.float64))
    slightly = image_similarity((images + 0.02 * torch.randn_like(images)).clamp(0, 1), images)
    badly = image_similarity(torch.rand_like(images), images)
    assert bool((slightly.mse < badly.mse).all())
    assert bool((slightly.psnr > badly.psnr).all())
    assert bool((slightly.ssim > badly.ssim + 0.5).all())


def test_peak_signal_to_noise_is_twenty_decibel_for_a_tenth_of_the_range() -> None:
    images = torch.full((1, 1, 12, 12), 0.5)
    assert float(image_similarity(images + 0.1, images).psnr) == pytest.approx(20.0, abs=1e-4)
    assert float(image_similarity(255 * (images + 0.1), 255 * images, pixel_range=255.0).psnr) == pytest.approx(
        20.0, abs=1e-3
    )


def test_similarity_does_not_depend_on_the_unit_of_pixels() -> None:
    torch.manual_seed(8)
    left, right = torch.rand(2, 1, 14, 14), torch.rand(2, 1, 14, 14)
    assert torch.allclose(
        image_similarity(left, right).ssim, image_similarity(255 * left, 255 * right, pixel_range=255.0).ssim
    )
    with pytest.raises(DataError, match="image, channel, height, width"):
        image_similarity(left, right[:1])


def test_a_flat_image_has_no_variation() -> None:
    assert float(total_variation(torch.full((1, 5, 5), 0.3))) == 0.0
    steps = torch.tensor([0.0, 1.0]).repeat(4).expand(1, 8, 8)
    assert float(total_variation(steps)) == pytest.approx(1.0)
