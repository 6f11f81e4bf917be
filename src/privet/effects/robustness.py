"""Accuracy under attack: projected gradient ascent on the input (Madry et al., 2018), in two norms, with restarts.

Noise in training adds components to the weights that are unrelated to the classes, and their norm grows with every
step: a small change of the input then changes the output by more (Xu and Chen, 2026, Theorem 3.7).

Not private: all results are exact functions of the examples.
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
    """A norm on changes of one example's input.

    Attributes:
        name: Name of the norm, for reports.
    """

    @property
    def name(self) -> str: ...

    def start(self, inputs: Tensor, radius: float, generator: torch.Generator) -> Tensor:
        """Return a random change of each example within the radius."""
        ...

    def ascent(self, gradients: Tensor) -> Tensor:
        """Return the change of norm 1 that increases each example's loss fastest; zero for a zero gradient."""
        ...

    def project(self, changes: Tensor, radius: float) -> Tensor:
        """Project changes onto the ball of this radius."""
        ...


@dataclass(frozen=True, kw_only=True)
class LargestChange:
    """The l-infinity norm: the largest change of any coordinate."""

    name: str = "largest change of a coordinate (l-infinity)"

    def start(self, inputs: Tensor, radius: float, generator: torch.Generator) -> Tensor:
        return (2 * _uniform(inputs, generator) - 1) * radius

    def ascent(self, gradients: Tensor) -> Tensor:
        return gradients.sign()

    def project(self, changes: Tensor, radius: float) -> Tensor:
        return changes.clamp(-radius, radius)


@dataclass(frozen=True, kw_only=True)
class Euclidean:
    """The l2 norm."""

    name: str = "length of the change (l2)"

    def start(self, inputs: Tensor, radius: float, generator: torch.Generator) -> Tensor:
        # uniform in the ball
        directions = self.ascent(_gaussian(inputs, generator))
        size = math.prod(inputs.shape[1:])
        lengths = _uniform(inputs.flatten(1)[:, :1], generator) ** (1 / size)
        return directions * (radius * lengths.reshape(-1, *(1 for _ in inputs.shape[1:])))

    def ascent(self, gradients: Tensor) -> Tensor:
        return gradients / _lengths(gradients).clamp_min(torch.finfo(gradients.dtype).tiny)

    def project(self, changes: Tensor, radius: float) -> Tensor:
        return changes * (radius / _lengths(changes).clamp_min(torch.finfo(changes.dtype).tiny)).clamp_max(1.0)


def _lengths(values: Tensor) -> Tensor:
    # Divide by the largest entry first: squares of very small gradients would underflow.
    flat = values.flatten(1)
    scale = flat.abs().amax(1, keepdim=True).clamp_min(torch.finfo(values.dtype).tiny)
    lengths: Tensor = torch.linalg.vector_norm(flat / scale, dim=1, keepdim=True) * scale
    return lengths.reshape(-1, *(1 for _ in values.shape[1:]))


def _uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    # Drawn on the CPU, so that an attack has the same initial points on every device.
    return torch.rand(like.shape, generator=generator, dtype=torch.float64).to(like)


def _gaussian(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)


@dataclass(frozen=True, kw_only=True)
class ProjectedGradient:
    """Projected gradient ascent on the loss of each example.

    Attributes:
        norm: Norm of the radius.
        num_steps: Number of gradient steps per start.
        step_share: Step size as a fraction of the radius.
        num_restarts: Number of starts; the attack succeeds on an example if any start succeeds.
        random_start: Start at a random point within the radius; False starts at the example.
        bounds: Range of valid inputs, such as 0 and 1 for pixels; None for no bounds.
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
            raise ArgumentError("Restarts from the same point are identical. Use random_start=True or num_restarts=1.")

    def attack(
        self, model: Logits, inputs: Tensor, labels: Tensor, *, radius: float, generator: torch.Generator
    ) -> Tensor:
        """Return one changed input per example, from one start.

        Edge cases: radius 0 returns the inputs; an example with a zero gradient keeps its initial point.
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
    """Return a scalar whose gradient by each input is that of the cross entropy, up to a positive factor.

    The factor is one minus the probability of the true class. For confident predictions it underflows to zero, and an
    attack with it would not move and would report a robust model. The direction does not depend on it.
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
    """Measure accuracy under attack, by radius.

    A successful attack at one radius counts at every larger radius too, so the curve never increases. Radius 0 is
    always
    included: the accuracy without an attack.

    Args:
        model: The classifier; it runs in evaluation mode and its ``grad`` fields do not change.
        inputs: Examples in the space of the radius, such as pixels from 0 to 1.
        labels: Their classes.
        attack: The attack.
        radii: Radii of the attack.
        as_inputs: Maps that space to the model's inputs, such as a normalisation; None if they are the same.
        batch_size: Number of examples per forward pass.
        seed: Seed of the random starts.

    Raises:
        DataError: inputs are empty or differ from labels in number, or the model returns NaN.
    """
    if not len(inputs) or len(inputs) != len(labels):
        raise DataError("An attack needs examples, and one label per example.")
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
    """Return the number of correct predictions in a batch under attack at each radius; the first radius is 0."""
    robust = _is_right(logits, inputs, labels).nonzero().squeeze(1)
    counts = [len(robust)]
    for radius in radii[1:]:
        for _ in range(attack.num_restarts):
            own, truth = inputs[robust], labels[robust]
            if len(robust):
                changed = attack.attack(logits, own, truth, radius=radius, generator=generator)
                robust = robust[_is_right(logits, changed, truth)]
        counts.append(len(robust))
    return torch.tensor(counts)


@torch.no_grad()
def _is_right(logits: Logits, inputs: Tensor, labels: Tensor) -> Tensor:
    found = logits(inputs)
    if bool(found.isnan().any()):
        raise DataError("The model returns NaN for some examples. Check its weights and the range of the inputs.")
    return found.argmax(1) == labels


def weight_length(model: nn.Module) -> float:
    """Return the l2 norm of all trainable weights."""
    squares = [value.detach().double().square().sum() for value in model.parameters() if value.requires_grad]
    return math.sqrt(float(torch.stack(squares).sum())) if squares else 0.0
