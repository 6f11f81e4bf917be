"""Many simulated private trainings at once: small networks that differ in bound, step size and noise, side by side.

A table of noises over a grid of constants takes thousands of short runs. Here all settings of one arm share batches and
random draws and are one tensor operation each; gradients are in closed form. The steps are those of a session: Poisson
batches, clipping in the units of the noise, one draw per step, a fixed divisor. Nothing is charged and streams are
seeded: it is for public data, and nothing that it trains is private.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from privet import checks
from privet.errors import ArgumentError

Parts = list[Tensor]


@dataclass(frozen=True, kw_only=True)
class Batched:
    """Constants of runs that are trained side by side, ``[runs]`` each.

    Attributes:
        norms: Clipping bounds.
        reaches: Learning rates times bounds.
        multipliers: Noise over the bound, one coordinate's standard deviation (or the scale that the draw counts in).
    """

    norms: Tensor
    reaches: Tensor
    multipliers: Tensor

    def __post_init__(self) -> None:
        """Refuse lists of different lengths."""
        if not self.norms.shape == self.reaches.shape == self.multipliers.shape or self.norms.dim() != 1:
            raise ArgumentError("norms, reaches and multipliers must be vectors of one length, one entry per run.")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One batch per run, or one that all runs share, padded to one length.

    Attributes:
        features: ``[runs or 1, examples, width]``.
        labels: ``[runs or 1, examples]``.
        is_present: The same shape; what is not present is padding.
    """

    features: Tensor
    labels: Tensor
    is_present: Tensor


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Features ``[examples, width]``, with a last column of ones, and class labels."""

    features: Tensor
    labels: Tensor

    @classmethod
    def of(cls, features: Tensor, labels: Tensor) -> Examples:
        """Append the column that stands for the bias."""
        flat = features.flatten(1)
        return cls(features=torch.cat([flat, flat.new_ones(len(flat), 1)], 1), labels=labels)

    def __len__(self) -> int:
        """How many."""
        return len(self.labels)

    def batches(self, chosen: Sequence[Tensor], *, runs_per_seed: int) -> Batch:
        """Return the chosen examples of every seed, for all its runs; a single seed's are shared."""
        length = max(1, max(len(part) for part in chosen))
        places = torch.stack([functional.pad(part, (0, length - len(part)), value=-1) for part in chosen])
        places = places.to(self.labels.device)
        if len(chosen) > 1:
            places = places.repeat_interleave(runs_per_seed, 0)
        found = places.clamp_min(0)
        return Batch(features=self.features[found], labels=self.labels[found], is_present=places >= 0)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How one step measures and how it draws, one tensor per layer that broadcasts to ``[runs, inputs, outputs]``.

    Attributes:
        squared_units: Clipping measures ``sum gradient^2 / squared_units``; None for plain lengths.
        noise_sizes: Noise of a coordinate over the multiplier times the bound; None for equal noise.
    """

    squared_units: Parts | None = None
    noise_sizes: Parts | None = None

    @classmethod
    def elliptical(cls, squared_units: Parts) -> Shape:
        """Noise in the units of clipping: the one shape whose guarantee does not depend on the units."""
        return cls(squared_units=squared_units, noise_sizes=[part.sqrt() for part in squared_units])


class ShapeRun(Protocol):
    """Where the shape of each step comes from."""

    def shape(self, step: int, weights: Parts) -> Shape:
        """Return the shape of a step, fixed before its batch is drawn."""
        ...

    def note(self, released: Parts, variances: Parts) -> None:
        """Take in a released sum and the variances of its noise."""
        ...


class Draw(Protocol):
    """Standard noise for all coordinates, shared by the runs."""

    def __call__(self, sizes: Sequence[int], generator: torch.Generator) -> Tensor:
        """Return one draw for all layers, flat."""
        ...


def normal_draw(sizes: Sequence[int], generator: torch.Generator) -> Tensor:
    """Independent normal numbers of variance one."""
    return torch.randn(sum(sizes), generator=generator)


def laplace_draw(sizes: Sequence[int], generator: torch.Generator) -> Tensor:
    """Independent Laplace numbers of variance one, as a sign times an exponential number."""
    size = sum(sizes)
    signs = torch.randint(0, 2, (size,), generator=generator) * 2 - 1
    return torch.empty(size).exponential_(generator=generator) * signs * math.sqrt(0.5)


def radial_draw(sizes: Sequence[int], generator: torch.Generator) -> Tensor:
    """A vector of density exp(-length): a uniform direction times a Gamma length, over the root of ``size + 1``."""
    size = sum(sizes)
    direction = torch.randn(size, generator=generator, dtype=torch.float64)
    # a sum of exponential numbers is an exact Gamma draw for a whole-numbered shape
    length = torch.empty(size, dtype=torch.float64).exponential_(generator=generator).sum()
    scaled: Tensor = direction * (length / direction.norm() / (size + 1) ** 0.5)
    return scaled.float()


def generators(seeds: Sequence[int]) -> list[torch.Generator]:
    """Return one generator per seed."""
    return [torch.Generator().manual_seed(checks.count("seed", seed, minimum=0)) for seed in seeds]


def initial_weights(widths: Sequence[int], *, seeds: Sequence[int], runs_per_seed: int) -> Parts:
    """Return fresh weights ``[runs, inputs + 1, outputs]`` per layer, the same for all runs of a seed."""
    sources = generators(seeds)
    parts = []
    for inputs, outputs in itertools.pairwise(widths):
        drawn = [(2 * torch.rand(inputs + 1, outputs, generator=source) - 1) / inputs**0.5 for source in sources]
        parts.append(torch.stack(drawn).repeat_interleave(runs_per_seed, 0))
    return parts


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left @ right`` run by run; a left side that all runs share, ``[1, a, b]``, is one large product."""
    if len(left) > 1 or len(right) == 1:
        return left @ right
    num_runs, inner, outer = right.shape
    whole: Tensor = left[0] @ right.transpose(0, 1).reshape(inner, num_runs * outer)
    return whole.view(-1, num_runs, outer).transpose(0, 1).contiguous()


def forward(weights: Parts, features: Tensor) -> tuple[Parts, Tensor]:
    """Return what goes into every layer of tanh networks, ``[runs or 1, examples, inputs + 1]``, and the outputs."""
    entering = [features if features.dim() == 3 else features.unsqueeze(0)]
    for part in weights[:-1]:
        hidden = torch.tanh(product(entering[-1], part))
        entering.append(torch.cat([hidden, hidden.new_ones(*hidden.shape[:-1], 1)], -1))
    return entering, product(entering[-1], weights[-1])


def backward(weights: Parts, entering: Parts, outputs: Tensor, labels: Tensor) -> Parts:
    """Return what comes back to every layer from the cross-entropy of each example."""
    errors = [outputs.softmax(-1) - functional.one_hot(labels, outputs.shape[-1])]
    for part, values in zip(reversed(weights[1:]), reversed(entering[1:]), strict=True):
        errors.append((errors[-1] @ part[:, :-1].mT) * (1 - values[..., :-1].square()))
    return errors[::-1]


def squared_lengths(entering: Parts, errors: Parts, squared_units: Parts | None) -> Tensor:
    """Return ``[runs, examples]``: squared lengths of the examples' gradients, in units where there are any."""
    total = errors[0].new_zeros(errors[0].shape[:2])
    for place, (values, error) in enumerate(zip(entering, errors, strict=True)):
        if squared_units is None:
            total = total + values.square().sum(-1) * error.square().sum(-1)
        else:
            units = squared_units[place].reciprocal()
            weight = units.expand(len(error), values.shape[-1], units.shape[-1])
            total = total + (product(values.square(), weight) * error.square()).sum(-1)
    return total


def clipped_sums(weights: Parts, batch: Batch, norms: Tensor, squared_units: Parts | None) -> Parts:
    """Return the sum of clipped gradients of every run. An empty batch gives zeros."""
    entering, outputs = forward(weights, batch.features)
    errors = backward(weights, entering, outputs, batch.labels)
    lengths = squared_lengths(entering, errors, squared_units).sqrt()
    factors = (norms[:, None] / lengths.clamp_min(torch.finfo(lengths.dtype).tiny)).clamp_max(1.0)
    factors = factors * batch.is_present
    return [product(values.mT, error * factors[..., None]) for values, error in zip(entering, errors, strict=True)]


def mean_gradients(weights: Parts, examples: Examples) -> Parts:
    """Return the derivative of the mean loss by every coordinate."""
    entering, outputs = forward(weights, examples.features)
    errors = backward(weights, entering, outputs, examples.labels)
    return [product(values.mT, error) / len(examples) for values, error in zip(entering, errors, strict=True)]


def second_moments(weights: Parts, examples: Examples) -> Parts:
    """Return the mean square of every coordinate of one example's gradient, unclipped."""
    entering, outputs = forward(weights, examples.features)
    errors = backward(weights, entering, outputs, examples.labels)
    return [
        product(values.square().mT, error.square()) / len(examples)
        for values, error in zip(entering, errors, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class Training:
    """Terms that all runs share.

    Attributes:
        rate: Of Poisson sampling.
        steps: How many.
        preconditioning: The noisy sum is divided by the squared units to this power.
        final: Where the learning rate ends, linearly, as a share of where it began.
    """

    rate: float
    steps: int
    preconditioning: float = 0.0
    final: float = 0.1


def train_runs(
    weights: Parts,
    examples: Examples,
    runs: Batched,
    training: Training,
    shapes: ShapeRun,
    draw: Draw,
    *,
    seeds: Sequence[int],
) -> Parts:
    """Train all runs and return their weights; runs of one seed share batches and standard noise.

    Sharing draws makes settings comparable at fewer seeds; each run by itself is an ordinary one. Runs lie seed by
    seed.
    """
    sources, runs_per_seed = generators(seeds), len(runs.norms) // len(seeds)
    device = examples.features.device
    sizes = [part[0].numel() for part in weights]
    divisor = training.rate * len(examples)
    noise_stds = (runs.multipliers * runs.norms)[:, None, None]
    rates = (runs.reaches / runs.norms)[:, None, None]
    for step in range(training.steps):
        shape = shapes.shape(step, weights)
        chosen = [(torch.rand(len(examples), generator=one) < training.rate).nonzero()[:, 0] for one in sources]
        batch = examples.batches(chosen, runs_per_seed=runs_per_seed)
        sums = clipped_sums(weights, batch, runs.norms, shape.squared_units)
        drawn = torch.stack([draw(sizes, one) for one in sources]).to(device).repeat_interleave(runs_per_seed, 0)
        noise = torch.split(drawn, sizes, 1)
        falling = rates * (1 - (1 - training.final) * step / training.steps) / divisor
        stds = [noise_stds if shape.noise_sizes is None else noise_stds * part for part in shape.noise_sizes or sums]
        released = [part + std * one.view(part.shape) for part, std, one in zip(sums, stds, noise, strict=True)]
        shapes.note(released, [std.square() for std in stds])
        moves = released
        if shape.squared_units is not None and training.preconditioning:
            units = shape.squared_units
            moves = [part / unit**training.preconditioning for part, unit in zip(released, units, strict=True)]
        weights = [part - falling * move for part, move in zip(weights, moves, strict=True)]
    return weights


def accuracies(weights: Parts, examples: Examples) -> Tensor:
    """Return every run's share of right predictions, ``[runs]``."""
    _, outputs = forward(weights, examples.features)
    return (outputs.argmax(-1) == examples.labels).double().mean(-1)
