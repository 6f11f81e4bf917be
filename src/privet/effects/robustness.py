"""Accuracy under attack: projected gradient ascent on the input (Madry et al., 2018), in two norms, with restarts.

Noise in training leaves directions in the weights that have nothing to do with the classes, and lengthens them with
every step: small changes of the input then move the output by more (Xu and Chen, 2026, Theorem 3.7).

Not private: everything here is an exact function of the examples it is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from privet import checks
from privet.effects.radii import RadiusPoint, RobustnessReport, wilson_interval
from privet.errors import ArgumentError, DataError

Logits = Callable[[Tensor], Tensor]


class Norm(Protocol):
    """A norm on one example's input: how far a change is, and where it grows fastest."""

    @property
    def name(self) -> str:
        """The norm in words."""
        ...

    def start(self, inputs: Tensor, radius: float, generator: torch.Generator) -> Tensor:
        """Return a random change of each example within the radius."""
        ...

    def ascent(self, gradients: Tensor) -> Tensor:
        """Return the change of length 1 along which each example's loss grows fastest; zero where it has no slope."""
        ...

    def project(self, changes: Tensor, radius: float) -> Tensor:
        """Return the nearest changes whose length is at most the radius."""
        ...


@dataclass(frozen=True, kw_only=True)
class LargestChange:
    """The l-infinity norm: the largest change of any coordinate."""

    name: str = "largest change of a coordinate (l-infinity)"

    def start(self, inputs: Tensor, radius: float, generator: torch.Generator) -> Tensor:
        """Return changes that are uniform in the cube."""
        return (2 * _uniform(inputs, generator) - 1) * radius

    def ascent(self, gradients: Tensor) -> Tensor:
        """Return the signs."""
        return gradients.sign()

    def project(self, changes: Tensor, radius: float) -> Tensor:
        """Clamp every coordinate."""
        return changes.clamp(-radius, radius)


@dataclass(frozen=True, kw_only=True)
class Euclidean:
    """The l2 norm: the length of the change."""

    name: str = "length of the change (l2)"

    def start(self, inputs: Tensor, radius: float, generator: torch.Generator) -> Tensor:
        """Return changes that are uniform in the ball."""
        directions = self.ascent(_gaussian(inputs, generator))
        size = math.prod(inputs.shape[1:])
        lengths = _uniform(inputs.flatten(1)[:, :1], generator) ** (1 / size)
        return directions * (radius * lengths.reshape(-1, *(1 for _ in inputs.shape[1:])))

    def ascent(self, gradients: Tensor) -> Tensor:
        """Scale every example's gradient to length 1."""
        return gradients / _lengths(gradients).clamp_min(torch.finfo(gradients.dtype).tiny)

    def project(self, changes: Tensor, radius: float) -> Tensor:
        """Shorten the changes that are too long."""
        return changes * (radius / _lengths(changes).clamp_min(torch.finfo(changes.dtype).tiny)).clamp_max(1.0)


def _lengths(values: Tensor) -> Tensor:
    # Scaled by the largest entry first: squares of very small gradients would vanish.
    flat = values.flatten(1)
    scale = flat.abs().amax(1, keepdim=True).clamp_min(torch.finfo(values.dtype).tiny)
    lengths: Tensor = torch.linalg.vector_norm(flat / scale, dim=1, keepdim=True) * scale
    return lengths.reshape(-1, *(1 for _ in values.shape[1:]))


def _uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    # Drawn on the CPU, so that an attack starts from the same points on every device.
    return torch.rand(like.shape, generator=generator, dtype=torch.float64).to(like)


def _gaussian(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)


@dataclass(frozen=True, kw_only=True)
class ProjectedGradient:
    """Projected gradient ascent on the loss of each example.

    Attributes:
        norm: What the radius is measured in.
        num_steps: Gradient steps per start.
        step_share: Length of a step as a share of the radius.
        num_restarts: How often to start; an example counts as broken if any start breaks it.
        random_start: Start anywhere within the radius; False starts at the example, which makes restarts pointless.
        bounds: Range that inputs stay in, such as 0 and 1 for pixels; None leaves them free.
    """

    norm: Norm
    num_steps: int = 10
    step_share: float = 0.25
    num_restarts: int = 1
    random_start: bool = True
    bounds: tuple[float, float] | None = (0.0, 1.0)

    def __post_init__(self) -> None:
        checks.count("num_steps", self.num_steps)
        checks.positive("step_share", self.step_share)
        if checks.count("num_restarts", self.num_restarts) > 1 and not self.random_start:
            raise ArgumentError("Restarts from the same point find the same. Use random_start=True or one start.")

    def attack(
        self, model: Logits, inputs: Tensor, labels: Tensor, *, radius: float, generator: torch.Generator
    ) -> Tensor:
        """Return one changed input per example, from one start.

        Edge cases: radius 0 returns the inputs; an example without slope stays where it started.
        """
        size = checks.non_negative("radius", radius)
        changes = torch.zeros_like(inputs)
        if self.random_start:
            changes = self._allowed(self.norm.start(inputs, size, generator), inputs)
        for _ in range(self.num_steps):
            moved = (inputs + changes).requires_grad_()
            (slopes,) = torch.autograd.grad(_rise(model(moved), labels), moved)
            stepped = changes + self.step_share * size * self.norm.ascent(slopes)
            changes = self._allowed(self.norm.project(stepped, size), inputs)
        return inputs + changes

    def _allowed(self, changes: Tensor, inputs: Tensor) -> Tensor:
        return changes if self.bounds is None else (inputs + changes).clamp(*self.bounds) - inputs


def _rise(logits: Tensor, labels: Tensor) -> Tensor:
    """Return a number whose slope in each input is that of its cross entropy, up to a positive factor.

    The factor is one minus the probability of the true class. It vanishes in rounding where a model is confident, and
    an attack that kept it would stand still there and call the model robust; directions do not need it.
    """
    others = logits.detach().scatter(1, labels[:, None], -torch.inf)
    pulls = others.softmax(1).scatter(1, labels[:, None], -1.0)
    return (pulls * logits).sum()


def robustness_curve(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    attack: ProjectedGradient,
    *,
    radii: Sequence[float],
    as_inputs: Logits | None = None,
    batch_size: int = 500,
    seed: int = 0,
) -> RobustnessReport:
    """Measure accuracy when every example may be moved, by radius.

    An example broken at one radius counts as broken at every larger one, where the same change is allowed: the curve
    never rises. Radius 0 is added; it is the accuracy without an attack.

    Args:
        model: The classifier; run in evaluation mode, its gradients are left alone.
        inputs: Examples in the space in which the radius is measured, such as pixels from 0 to 1.
        labels: Their classes.
        attack: How to attack.
        radii: How far examples may be moved.
        as_inputs: From that space to what the model takes, such as a normalisation; None for the model's own.
        batch_size: Examples per pass.
        seed: Of the random starts.

    Raises:
        DataError: there are no examples, or the model gives NaN.
    """
    if not len(inputs) or len(inputs) != len(labels):
        raise DataError("An attack needs examples, and one label for each.")
    ascending = sorted({checks.non_negative("radius", radius) for radius in radii} | {0.0})
    device = next(model.parameters()).device
    prepared = as_inputs or (lambda values: values)
    generator = torch.Generator().manual_seed(checks.count("seed", seed, minimum=0))
    was_training = model.training
    model.eval()
    try:
        counts = torch.zeros(len(ascending), dtype=torch.int64)
        size = checks.count("batch_size", batch_size)
        for own, truth in zip(torch.split(inputs, size), torch.split(labels, size), strict=True):
            counts += _num_unbroken(
                lambda values: model(prepared(values)), own.to(device), truth.to(device), attack, ascending, generator
            )
    finally:
        model.train(was_training)
    return RobustnessReport(
        norm=attack.norm.name,
        num_examples=len(inputs),
        num_steps=attack.num_steps,
        num_restarts=attack.num_restarts,
        points=tuple(
            RadiusPoint(radius=radius, accuracy=wilson_interval(int(right), len(inputs)))
            for radius, right in zip(ascending, counts, strict=True)
        ),
    )


def _num_unbroken(
    logits: Logits,
    inputs: Tensor,
    labels: Tensor,
    attack: ProjectedGradient,
    radii: Sequence[float],
    generator: torch.Generator,
) -> Tensor:
    """Return how many examples of a batch are still right at each radius; the first radius is 0."""
    standing = _is_right(logits, inputs, labels).nonzero().squeeze(1)
    counts = [len(standing)]
    for radius in radii[1:]:
        for _ in range(attack.num_restarts):
            own, truth = inputs[standing], labels[standing]
            if len(standing):
                changed = attack.attack(logits, own, truth, radius=radius, generator=generator)
                standing = standing[_is_right(logits, changed, truth)]
        counts.append(len(standing))
    return torch.tensor(counts)


@torch.no_grad()
def _is_right(logits: Logits, inputs: Tensor, labels: Tensor) -> Tensor:
    found = logits(inputs)
    if bool(found.isnan().any()):
        raise DataError("The model gives NaN, so nothing can be said about its robustness.")
    return found.argmax(1) == labels


def weight_length(model: nn.Module) -> float:
    """Return the length of all weights that training may change."""
    squares = [value.detach().double().square().sum() for value in model.parameters() if value.requires_grad]
    return math.sqrt(float(torch.stack(squares).sum())) if squares else 0.0
