"""Where the arms of the noise table take their shapes from: nothing, history, public examples, a paid release, truth.

A source is started once per batch of runs. Units are squared and have the mean one, so that a bound keeps its meaning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from privet.mechanism.second_moments import DEFAULT_FLOOR
from privet_research.studies.noise_runs import (
    Batched,
    Examples,
    Parts,
    Shape,
    ShapeRun,
    backward,
    forward,
    generators,
    mean_gradients,
    product,
    second_moments,
    squared_lengths,
)

_DECAY, _START, _EVERY, _FLOOR_ERRORS = 0.98, 20, 10, 2.0


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What a source may be given when it starts.

    Attributes:
        train: The private examples; sources that read them must pay, or say that they are not private.
        public: Public examples.
        runs: Constants of the runs.
        release_multipliers: Noise of a paid release over its sensitivity, ``[runs]``.
        release_norm: Bound on a gradient in a paid release.
        seeds: Of paid releases; runs lie seed by seed.
    """

    train: Examples
    public: Examples
    runs: Batched
    release_multipliers: Tensor
    release_norm: float
    seeds: Sequence[int]


class Source(Protocol):
    """Starts the shapes of one batch of runs."""

    def start(self, bench: Bench) -> ShapeRun:
        """Return the shapes of these runs."""
        ...


Blocks = Callable[[Parts], Parts]
Rule = Callable[[Parts, Parts, Parts], Shape]
"""From second moments, mean gradients and the sizes of blocks to the shape of a step."""


def each(parts: Parts) -> Parts:
    """Every coordinate by itself."""
    return parts


def rows(parts: Parts) -> Parts:
    """The mean over what leaves one input: one number per input and layer."""
    return [part.mean(2, keepdim=True) for part in parts]


def layers(parts: Parts) -> Parts:
    """The mean over a layer."""
    return [part.mean((1, 2), keepdim=True) for part in parts]


def _mean(parts: Parts, sizes: Parts) -> Tensor:
    """Return the mean over all coordinates of every run, ``[runs, 1, 1]``."""
    pairs = list(zip(parts, sizes, strict=True))
    totals = torch.stack([(part * size).sum((1, 2), keepdim=True) for part, size in pairs]).sum(0)
    return totals / float(sum(part[0].numel() * float(size) for part, size in pairs))


def floored_parts(moments: Parts, sizes: Parts) -> Parts:
    """Raise moments to a small share of their mean over all coordinates; each stands for ``sizes`` of them."""
    least = DEFAULT_FLOOR * _mean([part.clamp_min(0) for part in moments], sizes)
    tiny = torch.finfo(moments[0].dtype).tiny
    return [torch.maximum(part, least).clamp_min(tiny) for part in moments]


def block_sizes(whole: Parts, blocks: Parts) -> Parts:
    """How many coordinates one entry of a block stands for."""
    return [
        torch.tensor(part[0].numel() / block[0].numel(), device=part.device)
        for part, block in zip(whole, blocks, strict=True)
    ]


def squared_units(moments: Parts, sizes: Parts, power: float) -> Parts:
    """Return floored moments to a power, scaled to the mean one over all coordinates."""
    raised = [part**power for part in floored_parts(moments, sizes)]
    mean = _mean(raised, sizes)
    return [part / mean for part in raised]


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """One shape for all steps."""

    constant: Shape

    def shape(self, step: int, weights: Parts) -> Shape:
        """Return it."""
        return self.constant

    def note(self, released: Parts, variances: Parts) -> None:
        """Nothing is learnt."""


@dataclass(frozen=True, kw_only=True)
class Plain:
    """Plain lengths and equal noise."""

    def start(self, bench: Bench) -> ShapeRun:
        """Return the plain shape."""
        return Fixed(constant=Shape())


@dataclass(kw_only=True)
class _Once:
    """Units from the weights before the first step."""

    moments: Callable[[Parts], Parts]
    blocks: Blocks
    power: float
    found: Shape | None = None

    def shape(self, step: int, weights: Parts) -> Shape:
        if self.found is None:
            whole = self.moments(weights)
            blocks = self.blocks(whole)
            self.found = Shape.elliptical(squared_units(blocks, block_sizes(weights, blocks), self.power))
        return self.found

    def note(self, released: Parts, variances: Parts) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Public:
    """Units from public examples, once, before the first step.

    Attributes:
        power: Squared units are second moments to this power: 1/2 for plain steps, 1 for preconditioned ones.
        blocks: Which coordinates share a unit.
    """

    power: float
    blocks: Blocks = rows

    def start(self, bench: Bench) -> ShapeRun:
        """Measure at the first step."""
        return _Once(
            moments=lambda weights: second_moments(weights, bench.public), blocks=self.blocks, power=self.power
        )


@dataclass(frozen=True, kw_only=True)
class EachStep:
    """The model's sensitivity measured anew before every step, on public examples, and the units solved from it."""

    def start(self, bench: Bench) -> ShapeRun:
        """Solve at every step."""
        return _EachStepRun(public=bench.public)


@dataclass(kw_only=True)
class _EachStepRun:
    public: Examples

    def shape(self, step: int, weights: Parts) -> Shape:
        moments, means = second_moments(weights, self.public), mean_gradients(weights, self.public)
        return least_absolute(moments, means, block_sizes(weights, moments))

    def note(self, released: Parts, variances: Parts) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Paid:
    """Units from noisy sums of squared, clipped gradients over rows, released once before the first step.

    The squares of a gradient of length at most ``C`` add up to at most ``C^2`` over all rows of all layers, so one
    example moves the list of sums by at most ``C^2`` in length.
    """

    power: float

    def start(self, bench: Bench) -> ShapeRun:
        """Release at the first step."""
        return _Once(moments=lambda weights: self._released(weights, bench), blocks=each, power=self.power)

    def _released(self, weights: Parts, bench: Bench) -> Parts:
        sources, runs_per_seed = generators(bench.seeds), len(bench.runs.norms) // len(bench.seeds)
        sums = _squared_row_sums(weights, bench.train, bench.release_norm)
        stds = (bench.release_multipliers * bench.release_norm**2)[:, None, None]
        found = []
        for part, whole in zip(sums, weights, strict=True):
            drawn = torch.stack([torch.randn(part.shape[1:], generator=one) for one in sources])
            noise = drawn.to(part.device).repeat_interleave(runs_per_seed, 0)
            # below its noise a sum says nothing but that it is small
            found.append(torch.maximum(part + stds * noise, stds) / whole.shape[2])
        return found


def _squared_row_sums(weights: Parts, examples: Examples, norm: float) -> Parts:
    """Return sums over examples and outputs of squared gradients, each example clipped to ``norm``."""
    entering, outputs = forward(weights, examples.features)
    errors = backward(weights, entering, outputs, examples.labels)
    scale = (norm**2 / squared_lengths(entering, errors, None).clamp_min(1e-30)).clamp_max(1.0)
    return [
        product(values.square().mT, error.square().sum(-1, keepdim=True) * scale[..., None])
        for values, error in zip(entering, errors, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class Oracle:
    """Units from the private examples themselves, every few steps: NOT PRIVATE, the most that units could give."""

    power: float

    def start(self, bench: Bench) -> ShapeRun:
        """Measure again and again."""
        return _OracleRun(power=self.power, train=bench.train)


@dataclass(kw_only=True)
class _OracleRun:
    power: float
    train: Examples
    found: Shape | None = None

    def shape(self, step: int, weights: Parts) -> Shape:
        if self.found is None or step % _EVERY == 0:
            moments = second_moments(weights, self.train)
            self.found = Shape.elliptical(squared_units(moments, block_sizes(weights, moments), self.power))
        return self.found

    def note(self, released: Parts, variances: Parts) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Released:
    """Units from the noisy gradients of earlier steps: free, and mostly noise.

    Attributes:
        rule: What follows from the moments.
        blocks: Which coordinates share a unit.
        is_floored: Whether what is left of the squares without the known variance of the noise counts only above a
            few of its standard errors. Without that, most of what is left is chance.
    """

    rule: Rule
    blocks: Blocks
    is_floored: bool

    def start(self, bench: Bench) -> ShapeRun:
        """Begin with plain noise."""
        return _History(rule=self.rule, blocks=self.blocks, is_floored=self.is_floored)


@dataclass(kw_only=True)
class _History:
    rule: Rule
    blocks: Blocks
    is_floored: bool
    seen: int = 0
    squares: Parts | None = None
    means: Parts | None = None
    floor: Parts | None = None
    found: Shape | None = None

    def shape(self, step: int, weights: Parts) -> Shape:
        if step < _START or self.squares is None or self.means is None or self.floor is None:
            return Shape()
        if self.found is None or step % _EVERY == 0:
            moments, means = (
                [part / (1 - _DECAY**self.seen) for part in parts] for parts in (self.squares, self.means)
            )
            if self.is_floored:
                moments = [torch.maximum(part, least) for part, least in zip(moments, self.floor, strict=True)]
            self.found = self.rule(moments, means, block_sizes(weights, moments))
        return self.found

    def note(self, released: Parts, variances: Parts) -> None:
        self.seen += 1
        whole = [variance.expand_as(part) for part, variance in zip(released, variances, strict=True)]
        squares = [part.square() for part in released]
        squares = [part - variance for part, variance in zip(squares, whole, strict=True)]
        now = self.blocks(squares)
        self.squares, self.means = _followed(self.squares, now), _followed(self.means, self.blocks(released))
        sizes = block_sizes(released, now)
        errors = _FLOOR_ERRORS * math.sqrt(2 * (1 - _DECAY) / (1 + _DECAY))
        self.floor = [errors * part / size.sqrt() for part, size in zip(self.blocks(whole), sizes, strict=True)]


def _followed(old: Parts | None, now: Parts) -> Parts:
    before = old or [torch.zeros_like(part) for part in now]
    return [_DECAY * was + (1 - _DECAY) * part for was, part in zip(before, now, strict=True)]


def least_variance(moments: Parts, means: Parts, sizes: Parts) -> Shape:
    """Squared units that follow the root of the moments: the least total variance for plain steps."""
    return Shape.elliptical(squared_units(moments, sizes, 0.5))


def least_absolute(moments: Parts, means: Parts, sizes: Parts) -> Shape:
    """The rule of Xiang et al. (2019) made valid: units ``(s / w)^(1/3)``, ``w`` the size of the mean gradient."""
    weights = floored_parts([part.abs() for part in means], sizes)
    ratios = [part / weight for part, weight in zip(floored_parts(moments, sizes), weights, strict=True)]
    return Shape.elliptical(squared_units(ratios, sizes, 2 / 3))


def rates_by_weight(moments: Parts, means: Parts, sizes: Parts) -> Shape:
    """Laplace scales inversely to the cube root of the weights, the smallest of them one; clipping stays plain."""
    weights = floored_parts([part.abs() for part in means], sizes)
    most = torch.stack([part.amax((1, 2)) for part in weights]).amax(0)[:, None, None]
    return Shape(noise_sizes=[(most / part) ** (1 / 3) for part in weights])
