"""The noise rule of Xiang, Yang and Li (2019) as it was published: NOT PRIVATE, a negative control for tables.

It protects one direction of change only, that of the model's sensitivity, which it reads off the private examples
without noise. Coordinates that hardly matter to the model get hardly any noise, and one record that moves one of them
is found with certainty. It is kept out of the package for that reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from privet_research.studies.noise_arms import Arm, Charge
from privet_research.studies.noise_runs import Examples, Parts, Shape, ShapeRun, backward, forward, product
from privet_research.studies.noise_sources import Bench

_EVERY = 5
_LEAST = 1e-4


@dataclass(frozen=True, kw_only=True)
class Published:
    """Starts the published rule."""

    def start(self, bench: Bench) -> ShapeRun:
        """Read the private examples."""
        return _PublishedRun(train=bench.train)


@dataclass(kw_only=True)
class _PublishedRun:
    train: Examples
    found: Shape | None = None

    def shape(self, step: int, weights: Parts) -> Shape:
        """Return plain clipping, and noise that grows with the cube root of the sensitivity of a coordinate."""
        if self.found is None or step % _EVERY == 0:
            entering, outputs = forward(weights, self.train.features)
            errors = backward(weights, entering, outputs, self.train.labels)
            means = [product(values.mT, error).abs() for values, error in zip(entering, errors, strict=True)]
            self.found = Shape(noise_sizes=published_sizes(means))
        return self.found

    def note(self, released: Parts, variances: Parts) -> None:
        """Nothing is learnt."""


def published_sizes(sensitivities: Parts) -> Parts:
    """Return ``sqrt(S) (D_i^2 / w_i)^(1/3)`` with ``D = w / |w|`` and ``S = sum (D_i w_i)^(2/3)``, not below 1e-4.

    This is the noise that keeps ``sum (D_i / size_i)^2 = 1`` at the least ``sum w_i size_i``: the privacy of one shift.
    """
    squared = sum((part.square().sum((1, 2), keepdim=True) for part in sensitivities), torch.zeros(()))
    length = squared.clamp_min(1e-30).sqrt()
    total = sum(((part.square() / length) ** (2 / 3)).sum((1, 2), keepdim=True) for part in sensitivities)
    return [(total**0.5 * (part / length**2) ** (1 / 3)).clamp_min(_LEAST) for part in sensitivities]


PUBLISHED = Arm(name="the published formula, NOT PRIVATE", source=Published(), charge=Charge.NOMINAL)
