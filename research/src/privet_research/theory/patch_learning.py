"""What the proofs of Xu and Chen (2026) rest on: conditions, output increments, and from increments to a loss.

The copy at hand has no legible formulas. Each right-hand side is derived anew from the update of the two-layer network
in the form that the text describes, so a constant may differ from the publication's; the inequalities themselves hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.special import chdtr, chdtrc
from torch import Tensor

from privet import checks
from privet.effects.feature_to_noise import PatchCell, PatchSetting
from privet.errors import ArgumentError
from privet_research.studies.patch_training import clipped_mean_gradients, patch_logits


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The four parts of Conditions 3.1 and 4.3.

    Attributes:
        dimension: The squared length of a noise patch is within half of its mean, for all examples at once.
        batch: A batch is a fixed share of the examples.
        signal: The learned share of every cell, ``p c FNR``, is large enough to reduce the loss.
        step: One step changes an output by a bounded amount.
    """

    dimension: bool
    batch: bool
    signal: bool
    step: bool

    @property
    def all_hold(self) -> bool:
        return self.dimension and self.batch and self.signal and self.step


def conditions(
    setting: PatchSetting,
    cells: Sequence[PatchCell],
    *,
    batch_size: int,
    failure: float = 0.05,
    least_share: float = 0.1,
    least_signal: float = 0.1,
    largest_step: float = 2.0,
) -> Conditions:
    """Say which parts of Condition 3.1 a setting fulfils; of Condition 4.3, with one cell for each class.

    Args:
        setting: The training.
        cells: Classes and groups.
        batch_size: Examples of a step.
        failure: Probability with which the dimension may fail.
        least_share: Least share of the examples in a batch.
        least_signal: Least ``p c FNR`` of a cell.
        largest_step: Largest change of an output in one step.
    """
    d, n = setting.dimension, setting.num_examples
    outside = float(chdtrc(d, 1.5 * d) + chdtr(d, 0.5 * d))
    signal = min(cell.share * setting.clip_factor(cell) * setting.feature_to_noise(cell) for cell in cells)
    longest = max(cell.feature_size for cell in cells) + setting.patch_noise_length
    # The length of an output's gradient with respect to the filters of its class, all of them active.
    slope = longest / math.sqrt(setting.num_filters)
    moved = setting.learning_rate * slope * (setting.clip_norm + setting.noise_std)
    return Conditions(
        dimension=setting.patch_noise_std == 0 or outside * n <= checks.probability("failure", failure),
        batch=checks.count("batch_size", batch_size) >= least_share * n,
        signal=signal >= least_signal,
        step=moved <= checks.positive("largest_step", largest_step),
    )


def smallest_loss(losses: Tensor) -> float:
    """Return the least cross-entropy of a test example: Assumption 3.2 asks that it be above a positive constant."""
    return float(losses.min())


@dataclass(frozen=True, kw_only=True, eq=False)
class Increments:
    """What one step adds to the outputs of examples, ``[examples]`` each (Proposition I.1).

    Attributes:
        signal: From the mean of clipped gradients, for the example's own class.
        other: The same for the other class.
        noise_std: Standard deviation of what the noise adds, for the example's own class.
    """

    signal: Tensor
    other: Tensor
    noise_std: Tensor


def output_increments(
    filters: Tensor,
    batch: Tensor,
    labels: Tensor,
    inputs: Tensor,
    own: Tensor,
    *,
    learning_rate: float,
    clip_norm: float,
    noise_std: float,
) -> Increments:
    """Return what a step on a batch adds to the outputs at other inputs, to first order in the step.

    The output of class ``j`` is linear in its filters as long as no filter changes its sign at a patch: its gradient in
    filter ``r`` is ``1/m`` times the sum of the patches at which that filter is active.

    Args:
        filters: ``[2 * num_filters, dimension]``.
        batch: ``[examples, 2, dimension]``.
        labels: ``[examples]``.
        inputs: Where outputs are followed, ``[others, 2, dimension]``.
        own: Their classes.
        learning_rate: Of the step.
        clip_norm: Bound on an example's gradient.
        noise_std: Deviation of the noise on the averaged gradient.
    """
    mean = clipped_mean_gradients(filters[None], batch[None], labels[None], clip_norm=clip_norm)[0]
    num_filters = len(filters) // 2
    active = (inputs @ filters.T > 0).to(inputs.dtype).reshape(len(inputs), 2, 2, num_filters)
    # [others, classes, filters, dimension]
    slopes = torch.einsum("npjr,npd->njrd", active, inputs) / num_filters
    moved = -learning_rate * torch.einsum("njrd,jrd->nj", slopes, mean.reshape(2, num_filters, -1))
    places = torch.arange(len(own))
    lengths = slopes[places, own].flatten(1).norm(dim=1)
    return Increments(
        signal=moved[places, own], other=moved[places, 1 - own], noise_std=learning_rate * noise_std * lengths
    )


def largest_loss_after(loss: float, increment: float, *, largest: float) -> float:
    """Return a bound on a loss after its margin has grown by an increment (Lemmas I.2 and J.8).

    The loss ``log(1 + exp(-z))`` has the slope ``1 - exp(-loss)``. Over increments of at most ``largest`` it is at
    most a function with two linear pieces: the slope times ``(1 - exp(-a)) / a`` of a gain, and times
    ``(exp(a) - 1) / a`` of a loss of margin.
    """
    reach = checks.positive("largest", largest)
    if abs(increment) > reach:
        raise ArgumentError(f"increment is {increment:g} and must be within {reach:g}. Choose a larger bound.")
    slope = -math.expm1(-checks.non_negative("loss", loss))
    factor = -math.expm1(-reach) if increment >= 0 else math.expm1(reach)
    return loss - slope * factor / reach * increment


def loss_after(initial: float, *, contraction: float, added: float, steps: int) -> float:
    """Return the loss after steps of ``loss = (1 - contraction) loss + added`` (Proposition I.3, Lemma J.10).

    It is ``(1 - contraction)^T initial + added (1 - (1 - contraction)^T) / contraction``: the form of Theorem 3.4, with
    the floor ``added / contraction`` that neither steps nor examples reduce.
    """
    share = checks.probability("contraction", contraction, allow_one=True)
    left = (1 - share) ** checks.count("steps", steps, minimum=0)
    return left * checks.non_negative("initial", initial) + checks.non_negative("added", added) * (1 - left) / share


def output_gap(filters: Tensor, inputs: Tensor) -> Tensor:
    """Return the outputs of one network at inputs, ``[examples, 2]``."""
    return patch_logits(filters[None], inputs[None])[0]
