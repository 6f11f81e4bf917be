"""Effects of random masks on private training: the terms of the convergence bound, and their measurement.

Masking before clipping reduces noise and clips the kept coordinates less, but loses signal (Zhu and Blaschko,
"Improving differentially private SGD via randomly sparsified gradients", 2023). Their bound (Theorem 3.5) on the mean
of ``P(|xi| < 3C/4) h(grad) |grad|`` over the run is ``U(r) = descent_term / kappa + (1 - r) / kappa * learning_rate *
noise_term`` with ``1 - r < kappa <= 1``. Only kappa decides whether a rate above zero can help, and it can be measured:
with ``kappa = 1 - r`` the bound increases with the rate, with ``kappa = sqrt(1 - r)`` its minimum is at
:attr:`ConvergenceTerms.optimal_rate`.

Not private: functions of gradients are exact functions of the examples. Use public data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privet import checks
from privet.errors import ArgumentError
from privet.gradients.engines.single_examples import single_example_function
from privet.gradients.engines.support import quiet_vmap

Losses = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class ConvergenceTerms:
    """The constants of the convergence bound; all of them are public or assumed.

    Attributes:
        clip_norm: The clipping threshold C.
        noise_multiplier: Standard deviation of the noise on the sum, over C; zero for clipping without noise, whose
            bound is that of Theorem 3.4, and at rate zero that of Theorem 3.3.
        num_coordinates: Number of trainable parameters.
        smoothness: Lipschitz constant G of the loss's gradient.
        expected_batch_size: Divisor of the noisy sum.
        learning_rate: Learning rate of plain gradient descent.
        num_steps: Number of steps.
        loss_drop: Initial loss minus the smallest possible loss.
        clipping_bias: Mean of the bias terms b', which are zero for symmetrically distributed gradients.
    """

    clip_norm: float
    noise_multiplier: float
    num_coordinates: int
    smoothness: float
    expected_batch_size: float
    learning_rate: float
    num_steps: int
    loss_drop: float
    clipping_bias: float = 0.0

    def __post_init__(self) -> None:
        checks.fields(self, checks.positive, "clip_norm", "smoothness", "expected_batch_size", "learning_rate")
        checks.fields(self, checks.count, "num_coordinates", "num_steps")
        checks.fields(self, checks.non_negative, "noise_multiplier", "loss_drop")
        checks.fields(self, checks.number, "clipping_bias")

    @property
    def noise_term(self) -> float:
        """Delta_sigma, the contribution of the noise: ``C^2 sigma^2 d G / (2 B^2)``."""
        noise = self.clip_norm * self.noise_multiplier / self.expected_batch_size
        return noise**2 * self.num_coordinates * self.smoothness / 2

    @property
    def descent_term(self) -> float:
        """Delta_C, the bound without noise: ``loss_drop / (learning_rate T) + learning_rate G C^2 / 2 - bias``."""
        descent = self.loss_drop / (self.learning_rate * self.num_steps)
        return descent + self.learning_rate * self.smoothness * self.clip_norm**2 / 2 - self.clipping_bias

    def bound(self, rate: float, *, kappa: float | None = None) -> float:
        """Return the bound U at a rate, with a measured ``kappa``, or with the heuristic ``sqrt(1 - rate)``."""
        left = 1 - checks.probability("rate", rate, allow_zero=True)
        share = math.sqrt(left) if kappa is None else checks.positive("kappa", kappa)
        return self.descent_term / share + left / share * self.learning_rate * self.noise_term

    @property
    def optimal_rate(self) -> float:
        """The minimum of the bound for ``kappa = sqrt(1 - r)``: ``1 - Delta_C / (learning_rate * Delta_sigma)``.

        The learning rate multiplies the noise term, as in the bound; equation 114 of the paper omits it. Zero if noise
        does not dominate, and without noise.
        """
        if not self.noise_term:
            return 0.0
        return max(0.0, 1 - max(0.0, self.descent_term) / (self.learning_rate * self.noise_term))


def noisy_descent_bound(
    rate: float,
    *,
    num_coordinates: int,
    smoothness: float,
    noise_std: float,
    gradient_deviation: float,
    batch_size: float,
    num_steps: int,
    loss_drop: float,
) -> float:
    """Return the bound on the mean squared gradient norm of masked descent with noise and no clipping (Theorem 3.2).

    ``2 G loss_drop / ((1 - rate) sqrt(T)) + (deviation^2 / B + d std^2 / B^2) / sqrt(T)``, for the learning rate
    ``1 / (G sqrt(T))``: without clipping a mask makes it larger and never smaller.

    Args:
        rate: Of the mask.
        num_coordinates: Number of trainable parameters d.
        smoothness: Lipschitz constant G of the loss's gradient.
        noise_std: Standard deviation of the noise on the sum.
        gradient_deviation: Bound on the distance of an example's gradient from the mean.
        batch_size: B.
        num_steps: T.
        loss_drop: Initial loss minus the smallest possible loss.
    """
    left = 1 - checks.probability("rate", rate, allow_zero=True)
    size, root = checks.positive("batch_size", batch_size), math.sqrt(checks.count("num_steps", num_steps))
    noise = checks.count("num_coordinates", num_coordinates) * checks.non_negative("noise_std", noise_std) ** 2
    spread = checks.non_negative("gradient_deviation", gradient_deviation) ** 2 / size + noise / size**2
    descent = 2 * checks.positive("smoothness", smoothness) * checks.non_negative("loss_drop", loss_drop)
    return descent / (left * root) + spread / root


def budget_noise_term(
    *,
    num_coordinates: int,
    clip_norm: float,
    constant: float,
    sampling_rate: float,
    num_steps: int,
    epsilon: float,
    delta: float,
) -> float:
    """Return the noise's part of the bound at a privacy budget (Corollary C.1.1).

    ``d C^2 u^2 q^2 log(1 / delta) / (2 sqrt(T) epsilon^2)``, for the learning rate ``1 / (G sqrt(T))``, batches of
    ``sqrt(T)`` and the noise ``u q sqrt(T log(1 / delta)) / epsilon`` of Abadi et al. (2016), whose constant ``u`` is
    not known: for an epsilon that holds, calibrate a plan. The publication says that the term decreases with T. That
    is so at a fixed sampling rate, that is for data sets that grow with T; at a fixed size N the rate is ``sqrt(T) /
    N``, and the term grows with ``sqrt(T)``.
    """
    root = math.sqrt(checks.count("num_steps", num_steps))
    share = checks.probability("sampling_rate", sampling_rate)
    length = checks.positive("clip_norm", clip_norm) * checks.positive("constant", constant) * share
    size = (
        checks.count("num_coordinates", num_coordinates) * length**2 * math.log(1 / checks.probability("delta", delta))
    )
    return size / (2 * root * checks.positive("epsilon", epsilon) ** 2)


def equivalent_clipping(clip_norm: float, *, momentum: float, new_momentum: float) -> float:
    """Return the threshold with the same total update under another momentum: ``C / (1 - momentum)`` stays the same.

    One noisy gradient changes the weights by ``learning_rate / (1 - momentum)`` times itself in total, signal and noise
    alike. This holds for heavy-ball momentum without dampening, not for Adam, which divides by the size of gradients.
    """
    old = checks.probability("momentum", momentum, allow_zero=True)
    new = checks.probability("new_momentum", new_momentum, allow_zero=True)
    return checks.positive("clip_norm", clip_norm) * (1 - new) / (1 - old)


def per_example_gradients(model: nn.Module, losses: Losses, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return every example's gradient ``[example, coordinate]`` of the trainable parameters, in order. Not private."""
    trained, outputs_of = single_example_function(model)

    def loss(values: dict[str, Tensor], example: Tensor, target: Tensor) -> Tensor:
        return losses(outputs_of(values, example), target.unsqueeze(0)).sum()

    with quiet_vmap():
        found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(trained, inputs, targets)
    return torch.cat([found[name].flatten(1) for name in trained], 1)


@dataclass(frozen=True, kw_only=True)
class Kappa:
    """The factor that a random mask leaves of the bound's left-hand side.

    Attributes:
        value: Kappa; NaN if no gradient is close enough to the mean, so that the bound is empty.
        near_mean: Fraction of gradients within three quarters of the threshold from their mean, without a mask.
        rate: The mask's rate.
    """

    value: float
    near_mean: float
    rate: float

    @property
    def premise_holds(self) -> bool:
        """Whether enough gradients are close to their mean, the premise of ``kappa < 1`` (Lemma 3.3)."""
        return self.near_mean >= math.sqrt(1 - self.rate)


def measured_kappa(gradients: Tensor, *, clip_norm: float, rate: float, num_masks: int = 32, seed: int = 0) -> Kappa:
    """Measure kappa on per-example gradients ``[example, coordinate]``, as the mean over random masks (equation 62)."""
    bound = checks.positive("clip_norm", clip_norm)
    share = checks.probability("rate", rate, allow_zero=True)
    rows = _rows(gradients).double()
    mean = rows.mean(0)
    rest = rows - mean
    generator = torch.Generator(rows.device).manual_seed(checks.count("seed", seed, minimum=0))
    before, near = _bounded_part(mean, rest, bound)
    kept = rows.shape[1] - math.floor(share * rows.shape[1])
    total = 0.0
    for _ in range(checks.count("num_masks", num_masks)):
        index = torch.randperm(rows.shape[1], generator=generator, device=rows.device)[:kept]
        total += _bounded_part(mean[index], rest[:, index], bound)[0]
    return Kappa(value=total / num_masks / before if before > 0 else math.nan, near_mean=near, rate=share)


def _bounded_part(mean: Tensor, rest: Tensor, bound: float) -> tuple[float, float]:
    """Return ``P(|rest| < 3C/4) h(mean) |mean|`` with ``h(x) = min(|x|, C/4)``, and that probability."""
    near = float((rest.norm(dim=1) < 0.75 * bound).double().mean())
    length = float(mean.norm())
    return near * min(length, bound / 4) * length, near


def noise_norm_ratio(num_coordinates: int, *, rate: float, num_draws: int = 1, seed: int = 0) -> float:
    """Return the mean norm of masked noise over that of the unmasked noise (Figure 1c): about ``sqrt(1 - rate)``."""
    size = checks.count("num_coordinates", num_coordinates)
    dropped = math.floor(checks.probability("rate", rate, allow_zero=True) * size)
    rng = np.random.default_rng(checks.count("seed", seed, minimum=0))
    found = []
    for _ in range(checks.count("num_draws", num_draws)):
        squares = np.square(rng.standard_normal(size))  # independent coordinates: the first ones can be the masked ones
        found.append(math.sqrt(squares[dropped:].sum() / squares.sum()))
    return float(np.mean(found))


def gradient_norm_ratio(gradients: Tensor, keep: Tensor, *, clip_norm: float) -> float:
    """Return the norm of the mean clipped gradient on the kept coordinates, masked over unmasked (Figure 1d).

    Between 1, if nothing is clipped, and about ``1 / sqrt(1 - rate)``, if everything is clipped.
    """
    bound, rows = checks.positive("clip_norm", clip_norm), _rows(gradients).double()
    if keep.dtype != torch.bool or keep.shape != rows.shape[1:] or not bool(keep.any()):
        raise ArgumentError(f"keep must be a boolean vector of {rows.shape[1]} coordinates with at least one True.")
    without = _mean_clipped(rows, bound)[keep].norm()
    return float(_mean_clipped(rows[:, keep], bound).norm() / without)


def _mean_clipped(rows: Tensor, bound: float) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1).clamp_min(torch.finfo(rows.dtype).tiny)
    return (rows * (bound / lengths).clamp_max(1.0).unsqueeze(1)).mean(0)


def projected_deviations(gradients: Tensor, *, num_axes: int = 2, seed: int = 0) -> Tensor:
    """Return the deviations of gradients from their mean along random Gaussian directions (Figures 6 to 9)."""
    rows = _rows(gradients).double()
    generator = torch.Generator(rows.device).manual_seed(checks.count("seed", seed, minimum=0))
    size = (rows.shape[1], checks.count("num_axes", num_axes))
    axes = torch.randn(size, generator=generator, dtype=rows.dtype, device=rows.device)
    return torch.mm(rows - rows.mean(0), axes)


@dataclass(frozen=True, kw_only=True)
class Symmetry:
    """Result of a test for symmetry about the origin.

    Attributes:
        energy_distance: Between the points and their reflections; zero for a symmetric distribution.
        p_value: Fraction of random sign flips of single points with at least this distance.
        effect: The distance as a share of the mean distance between points and reflections, doubled: from 0 for a
            symmetric distribution to 1. Unlike the p-value it does not change with the number of points, but for about
            one over that number.
    """

    energy_distance: float
    p_value: float
    effect: float


def symmetry(points: Tensor, *, num_flips: int = 199, seed: int = 0) -> Symmetry:
    """Test whether the distribution of the points is symmetric about the origin, by random sign flips."""
    rows = _rows(points).double()
    generator = torch.Generator(rows.device).manual_seed(checks.count("seed", seed, minimum=0))
    apart, across = torch.cdist(rows, rows), torch.cdist(rows, -rows)

    def distance(signs: Tensor) -> float:
        # flipping both points keeps their distance; flipping one gives the distance to its reflection
        same = signs.unsqueeze(0) * signs.unsqueeze(1) > 0
        within, between = torch.where(same, apart, across), torch.where(same, across, apart)
        return float(2 * between.mean() - 2 * within.mean())

    found = distance(torch.ones(len(rows), dtype=rows.dtype, device=rows.device))
    count = 0
    for _ in range(checks.count("num_flips", num_flips)):
        signs = torch.randint(0, 2, (len(rows),), generator=generator, device=rows.device) * 2 - 1
        count += distance(signs) >= found
    spread = 2 * float(across.mean())
    return Symmetry(
        energy_distance=found,
        p_value=(1 + count) / (1 + num_flips),
        effect=found / spread if spread else 0.0,
    )


def times_masked(keeps: Iterable[Tensor | None], num_coordinates: int) -> NDArray[np.int64]:
    """Count the masks that drop each coordinate (Figure 12); None is a mask that keeps all. Public."""
    counts = np.zeros(checks.count("num_coordinates", num_coordinates), dtype=np.int64)
    for keep in keeps:
        if keep is not None:
            counts += keep.logical_not().cpu().numpy()
    return counts


def frequency_distance(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    """Return the Kolmogorov-Smirnov distance between two distributions of :func:`times_masked`."""
    if not len(first) or not len(second):
        raise ArgumentError("frequency_distance compares the counts of at least one coordinate on each side.")
    values = np.union1d(first, second)
    below = [np.searchsorted(np.sort(counts), values, side="right") / len(counts) for counts in (first, second)]
    return float(np.abs(below[0] - below[1]).max())


def _rows(gradients: Tensor) -> Tensor:
    if gradients.dim() != 2 or 0 in gradients.shape:
        raise ArgumentError(
            f"Gradients must be [example, coordinate] and not empty, got shape {list(gradients.shape)}."
        )
    return gradients.detach()
