"""Reconstruction: rebuild examples from their gradients, as an attacker in federated learning can.

Two attacks. Least squares, in closed form, for a layer whose gradient is linear in its input (Zhu and Blaschko 2021);
its error under masks is known (Zhu and Blaschko 2023, Theorem 5.1). Inverting Gradients, by optimisation, for any
network (Geiping et al. 2020): it changes images until their gradients have the direction of the observed gradients.

Both use the mask and compare the kept coordinates only: masks are public, and an attacker who ignores the mask is
weaker.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from privet import checks
from privet.errors import ArgumentError, DataError
from privet.gradients.engines.single_examples import single_example_function
from privet.gradients.engines.support import quiet_vmap

Losses = Callable[[Tensor, Tensor], Tensor]
# Fractions of the run after which the step size is divided by ten.
_DROPS = (3 / 8, 5 / 8, 7 / 8)
_BETAS, _TINY = (0.9, 0.999), 1e-8


def least_squares(constraints: Tensor, gradients: Tensor, *, keep: Tensor | None = None) -> Tensor:
    """Solve ``constraints @ x = gradient`` for the inputs x, using the kept equations only.

    Args:
        constraints: ``[equation, input]``, more equations than inputs.
        gradients: Observed gradients with noise, ``[equation]`` or ``[example, equation]``.
        keep: Boolean; True for equations whose gradients are not masked. None keeps all.

    Returns:
        The inputs, ``[input]`` or ``[example, input]``.
    """
    if constraints.dim() != 2 or gradients.shape[-1] != len(constraints):
        raise ArgumentError(
            f"least_squares needs one gradient per equation, got constraints {list(constraints.shape)} and gradients "
            f"{list(gradients.shape)}."
        )
    if keep is not None:
        constraints, gradients = constraints[keep], gradients[..., keep]
    if len(constraints) < constraints.shape[1]:
        raise ArgumentError(
            f"{len(constraints)} equations are left for {constraints.shape[1]} inputs: too few. Keep more equations."
        )
    solution: Tensor = torch.linalg.lstsq(constraints, gradients.reshape(-1, len(constraints)).mT).solution
    return solution.mT.reshape(*gradients.shape[:-1], -1)


def least_squares_bound(constraints: Tensor, *, noise_std: float, rate: float) -> float:
    """Return a lower bound on the expected squared error for one input (Zhu and Blaschko 2023, Theorem 5.1).

    The exact error is ``noise_std^2`` times the mean of ``1 / |kept constraints|^2`` over masks. The bound replaces it
    by one over the mean; the difference vanishes as the number of equations grows.
    """
    left = 1 - checks.probability("rate", rate, allow_zero=True)
    return checks.non_negative("noise_std", noise_std) ** 2 / (left * float(constraints.double().square().sum()))


def least_squares_errors(
    constraints: Tensor, *, noise_std: float, rate: float, num_trials: int, seed: int = 0
) -> Tensor:
    """Repeat the least-squares attack with fresh noise and fresh random masks; return the squared errors.

    The attack is linear, so the error does not depend on the input. ``constraints`` is ``[equation, input]``.
    """
    size, std = len(constraints), checks.non_negative("noise_std", noise_std)
    dropped = math.floor(checks.probability("rate", rate, allow_zero=True) * size)
    generator = torch.Generator(constraints.device).manual_seed(checks.count("seed", seed, minimum=0))
    found = []
    for _ in range(checks.count("num_trials", num_trials)):
        index = torch.randperm(size, generator=generator, device=constraints.device)[dropped:]
        noise = std * torch.randn(len(index), generator=generator, dtype=constraints.dtype, device=constraints.device)
        found.append(least_squares(constraints[index], noise).square().sum())
    return torch.stack(found)


@dataclass(frozen=True, kw_only=True, eq=False)
class Reconstructions:
    """Images rebuilt from gradients.

    Attributes:
        images: ``[image, ...]``, the best restart for each image.
        costs: Value of the objective at these images.
    """

    images: Tensor
    costs: Tensor


@dataclass(frozen=True, kw_only=True)
class InvertingGradients:
    """Change images until their gradients have the direction of the observed gradients (Geiping et al. 2020).

    Minimises ``1 - cosine(gradient, observed)`` plus ``total_variation`` times the total variation of the image, by
    Adam on the signs of the gradient, within pixel bounds. All images are attacked in one batch, independently. The
    attacker knows the labels, which usually follow from the last layer's gradient.

    Attributes:
        num_steps: Steps of each restart; the step size decreases tenfold after 3/8, 5/8 and 7/8 of them.
        learning_rate: Initial step size.
        total_variation: Weight of the total variation.
        num_restarts: Number of random initialisations; the result is the best one for each image.
        low: Smallest pixel value.
        high: Largest pixel value.
        chunk_size: Number of images per vmap chunk, to limit memory; None for all.
    """

    num_steps: int = 4800
    learning_rate: float = 0.1
    total_variation: float = 1e-4
    num_restarts: int = 1
    low: float = 0.0
    high: float = 1.0
    chunk_size: int | None = None

    def __post_init__(self) -> None:
        checks.fields(self, checks.count, "num_steps", "num_restarts")
        checks.fields(self, checks.positive, "learning_rate")
        checks.fields(self, checks.non_negative, "total_variation")
        if not checks.number("low", self.low) < checks.number("high", self.high):
            raise ArgumentError(
                f"Pixels lie between low and high, so low must be below high; got {self.low!r} and {self.high!r}."
            )
        if self.chunk_size is not None:
            checks.fields(self, checks.count, "chunk_size")

    def attack(
        self,
        model: nn.Module,
        losses: Losses,
        observed: Tensor,
        labels: Tensor,
        image_shape: tuple[int, ...],
        *,
        keep: Tensor | None = None,
        seed: int = 0,
    ) -> Reconstructions:
        """Reconstruct one image from each observed gradient.

        Args:
            model: The network with the weights that the gradients belong to.
            losses: Maps outputs and labels to one loss per example.
            observed: Gradients of the trainable parameters with noise and mask, ``[image, coordinate]``.
            labels: One per image.
            image_shape: Shape of one image.
            keep: True for coordinates that are not masked, ``[coordinate]`` or ``[image, coordinate]``; None keeps all.
            seed: Seed of the random initialisations.
        """
        if observed.dim() != 2 or len(observed) != len(labels):
            raise DataError(
                f"There must be one gradient per label; got {list(observed.shape)} for {len(labels)} labels."
            )
        flags = torch.ones_like(observed) if keep is None else keep.to(observed).expand_as(observed)
        cost = self._cost(model, losses)
        descend = torch.func.vmap(torch.func.grad_and_value(cost), chunk_size=self.chunk_size)
        generator = torch.Generator(observed.device).manual_seed(checks.count("seed", seed, minimum=0))
        best: Reconstructions | None = None
        for _ in range(self.num_restarts):
            start = torch.randn(len(observed), *image_shape, generator=generator, device=observed.device)
            images = self._descend(
                start.to(observed.dtype).clamp_(self.low, self.high), descend, observed, labels, flags
            )
            with quiet_vmap():
                costs = descend(images, labels, observed * flags, flags)[1].detach()
            best = _better(best, Reconstructions(images=images, costs=costs))
        assert best is not None, "there is at least one restart"
        return best

    def _cost(self, model: nn.Module, losses: Losses) -> Callable[..., Tensor]:
        trained, outputs_of = single_example_function(model)

        def loss(values: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            return losses(outputs_of(values, image), label.unsqueeze(0)).sum()

        def cost(image: Tensor, label: Tensor, observed: Tensor, flags: Tensor) -> Tensor:
            found = torch.func.grad(loss)(trained, image, label)
            flat = torch.cat([found[name].reshape(-1) for name in trained]) * flags
            lengths = (flat.square().sum() + _TINY).sqrt() * (observed.square().sum() + _TINY).sqrt()
            return 1 - (flat * observed).sum() / lengths + self.total_variation * total_variation(image)

        return cost

    def _descend(
        self,
        images: Tensor,
        descend: Callable[..., tuple[Tensor, Tensor]],
        observed: Tensor,
        labels: Tensor,
        flags: Tensor,
    ) -> Tensor:
        observed, mean, square = observed * flags, torch.zeros_like(images), torch.zeros_like(images)
        for step in range(self.num_steps):
            with quiet_vmap():
                signs = descend(images, labels, observed, flags)[0].detach().sign()
            mean.mul_(_BETAS[0]).add_(signs, alpha=1 - _BETAS[0])
            square.mul_(_BETAS[1]).addcmul_(signs, signs, value=1 - _BETAS[1])
            rate = self.learning_rate * 0.1 ** sum(step >= share * self.num_steps for share in _DROPS)
            down = (square / (1 - _BETAS[1] ** (step + 1))).sqrt_().add_(_TINY)
            images = (images - rate / (1 - _BETAS[0] ** (step + 1)) * mean / down).clamp_(self.low, self.high)
        return images


def _better(best: Reconstructions | None, found: Reconstructions) -> Reconstructions:
    if best is None:
        return found
    is_better = (found.costs < best.costs).view(-1, *[1] * (found.images.dim() - 1))
    return Reconstructions(
        images=torch.where(is_better, found.images, best.images), costs=torch.minimum(found.costs, best.costs)
    )


def total_variation(image: Tensor) -> Tensor:
    """Return the mean absolute difference between neighbouring pixels; zero for tensors of fewer than three axes."""
    if image.dim() < 3:
        return image.new_zeros(())
    return (image[..., 1:] - image[..., :-1]).abs().mean() + (image[..., 1:, :] - image[..., :-1, :]).abs().mean()


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSimilarity:
    """Similarity of reconstructions to their originals, one value per image.

    Attributes:
        mse: Mean squared error of pixels; 0 for a perfect copy.
        psnr: Peak signal-to-noise ratio in decibel; infinite for a perfect copy.
        ssim: Structural similarity (Wang et al. 2004), 1 for a perfect copy.
    """

    mse: Tensor
    psnr: Tensor
    ssim: Tensor


def image_similarity(found: Tensor, originals: Tensor, *, pixel_range: float = 1.0) -> ImageSimilarity:
    """Compare images ``[image, channel, height, width]`` with their originals."""
    if found.shape != originals.shape or found.dim() != 4:
        raise DataError(
            f"image_similarity compares images [image, channel, height, width]; got {list(found.shape)} and "
            f"{list(originals.shape)}."
        )
    peak = checks.positive("pixel_range", pixel_range)
    first, second = found.double(), originals.double()
    mse = (first - second).square().flatten(1).mean(1)
    return ImageSimilarity(mse=mse, psnr=10 * (peak**2 / mse).log10(), ssim=_ssim(first, second, peak))


def _ssim(first: Tensor, second: Tensor, peak: float) -> Tensor:
    """Structural similarity with the usual Gaussian window of 11 pixels, or the image size if that is smaller."""
    side = min(11, *first.shape[2:])
    places = torch.arange(side, dtype=first.dtype, device=first.device) - (side - 1) / 2
    bell = (-(places**2) / (2 * 1.5**2)).exp()
    window = (torch.outer(bell, bell) / bell.sum() ** 2).expand(first.shape[1], 1, side, side)

    def mean(images: Tensor) -> Tensor:
        return functional.conv2d(images, window, groups=images.shape[1])

    left, right = mean(first), mean(second)
    variance = mean(first**2) - left**2 + mean(second**2) - right**2
    covariance = mean(first * second) - left * right
    low, high = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    similarity = (2 * left * right + low) / (left**2 + right**2 + low) * (2 * covariance + high) / (variance + high)
    return similarity.flatten(1).mean(1)
