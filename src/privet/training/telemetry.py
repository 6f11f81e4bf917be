"""Values that the guarantee does not cover, kept apart by type.

The mean loss, the lengths of gradients, the share of clipped examples and the true batch size are exact functions of
private data. They are collected only when somebody asks for them, go nowhere but to the receiver that was handed in,
and never into the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from privet.mechanism.noise import Noise, spherical_gaussian_multiplier
from privet.training.loop_events import Observer

if TYPE_CHECKING:
    from torch import Tensor

    from privet.mechanism.clipping import ClippingRule
    from privet.mechanism.sums import ClippedSum

# From the shortest to the longest gradient of a batch, in tenths.
NORM_LEVELS = tuple(tenth / 10 for tenth in range(11))


@dataclass(frozen=True, kw_only=True)
class Unprotected:
    """Diagnostics of one logical step. Not private: publish them only for public data.

    The clipped share counts the examples that the rule held back in any group: shortened by a threshold, dropped above
    a cutoff, normalised. An empty batch has no mean loss, no clipped share and no lengths.

    Attributes:
        step: Which step.
        mean_loss: Of the batch.
        clipped_share: Share of the batch that was held back.
        batch_size: How many examples the batch had.
        norm_quantiles: Lengths of the examples' gradients before clipping, at ``NORM_LEVELS``.
        noise_to_signal: Expected length of the noise over that of the clipped sum; None where the noise is not the
            same in every direction, or the sum is zero.
    """

    step: int
    mean_loss: float | None
    clipped_share: float | None
    batch_size: int
    norm_quantiles: tuple[float, ...] | None = None
    noise_to_signal: float | None = None


Receiver = Callable[[Unprotected], None]


class Telemetry(Observer):
    """Collects the figures of each step for one receiver. Nobody else sees them."""

    def __init__(self, receiver: Receiver) -> None:
        """Hand the figures of each step to ``receiver``."""
        self._receiver = receiver
        self.sum_restarts()

    def sum_restarts(self) -> None:
        self._loss_sum, self._clipped = 0.0, 0
        self._norms: list[Tensor] = []
        self._noise_to_signal: float | None = None

    def batch_added(self, losses: Tensor, norms: Tensor, rule: ClippingRule) -> None:
        self._loss_sum += float(losses.detach().sum())
        # the factor of a vanishing gradient is the rule's scale; an example with a smaller one is clipped or dropped
        scale = rule.factors(norms.new_zeros(1, norms.shape[1]))
        self._clipped += int((rule.factors(norms) < scale).any(1).sum())
        self._norms.append(norms.detach().square().sum(1).sqrt())

    def before_noise(self, clipped: ClippedSum, noise: Noise) -> None:
        self._noise_to_signal = noise_to_signal(noise, clipped)

    def after_update(self, step: int, num_examples: int) -> None:
        figures = Unprotected(
            step=step,
            mean_loss=self._loss_sum / num_examples if num_examples else None,
            clipped_share=self._clipped / num_examples if num_examples else None,
            batch_size=num_examples,
            norm_quantiles=norm_quantiles(self._norms),
            noise_to_signal=self._noise_to_signal,
        )
        self.sum_restarts()
        self._receiver(figures)


def norm_quantiles(norms: Sequence[Tensor]) -> tuple[float, ...] | None:
    """Return the lengths at ``NORM_LEVELS`` over all parts of a batch, to five digits; None where none is finite."""
    if not norms:
        return None
    lengths = torch.cat(list(norms)).cpu().double()
    lengths = lengths[lengths.isfinite()]
    if not len(lengths):
        return None
    found = torch.quantile(lengths, lengths.new_tensor(NORM_LEVELS)).tolist()
    return tuple(float(f"{value:.5g}") for value in found)


def noise_to_signal(noise: Noise, total: ClippedSum) -> float | None:
    """Return the expected length of the noise over the length of the clipped sum, to five digits.

    Edge cases: None for noise that is not Gaussian with one size, in units of a geometry, for a sum of zeros, and for a
    sum of which this rank holds a part.
    """
    multiplier = spherical_gaussian_multiplier(noise)
    if multiplier is None or total.frame is not None or total.scatter is not None:
        return None
    signal = float(total.flat.norm())
    num_coordinates = total.flat.numel() if total.kept is None else len(total.kept.index)
    length = multiplier * total.sensitivity.total * math.sqrt(num_coordinates)
    return float(f"{length / signal:.5g}") if 0 < signal < math.inf else None
