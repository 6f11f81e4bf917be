"""The two-patch task: one patch of an example is its feature, the other is noise (Xu and Chen, 2026, Section 2).

Each of two classes has a common feature (majority) and a rare one (minority), all orthogonal. Features lie along the
first coordinates, without loss of generality for isotropic weights and noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from privet import checks
from privet.errors import ArgumentError

MAJORITY, MINORITY = 0, 1
# Order of the four cells: majority before minority.
CELLS = ((0, MAJORITY), (1, MAJORITY), (0, MINORITY), (1, MINORITY))
CELL_NAMES = ("class 1, majority", "class 2, majority", "class 1, minority", "class 2, minority")


class TwoPatchSample(NamedTuple):
    """Drawn examples: inputs ``[examples, 2, dimension]``, classes, and positions among ``CELLS``."""

    inputs: Tensor
    labels: Tensor
    cells: Tensor


@dataclass(frozen=True, kw_only=True)
class TwoPatch:
    """The distribution of examples. Its default sizes and shares are RECONSTRUCTED: the published ones are not legible.

    Attributes:
        feature_sizes: Norm of the feature of each cell, in the order of ``CELLS``.
        shares: Probability of each cell; they add up to 1.
        dimension: Length of a patch.
        patch_noise_std: Standard deviation of the noise patch in each coordinate that no feature uses.
        angle: Rotation of the two majority features within their plane, in radians (Appendix B).
    """

    feature_sizes: tuple[float, float, float, float] = (6.0, 4.0, 4.0, 2.0)
    shares: tuple[float, float, float, float] = (0.4, 0.3, 0.2, 0.1)
    dimension: int = 200
    patch_noise_std: float = 0.5
    angle: float = 0.0

    def __post_init__(self) -> None:
        for size in self.feature_sizes:
            checks.non_negative("feature size", size)
        total = math.fsum(checks.probability("share", part, allow_zero=True, allow_one=True) for part in self.shares)
        if len(self.feature_sizes) != len(CELLS) or len(self.shares) != len(CELLS) or abs(total - 1) > 1e-9:
            raise ArgumentError(
                f"A two-patch task needs {len(CELLS)} feature sizes and shares that add up to 1, got {total:g}."
            )
        checks.count("dimension", self.dimension, minimum=len(CELLS) + 1)
        checks.non_negative("patch_noise_std", self.patch_noise_std)
        checks.number("angle", self.angle)

    @classmethod
    def one_feature_per_class(
        cls, *, size: float, dimension: int = 200, patch_noise_std: float = 0.5, angle: float = 0.0
    ) -> TwoPatch:
        """Return the simpler task of Appendix B: two equal classes, one feature each, of equal norm."""
        return cls(
            feature_sizes=(size, size, 0.0, 0.0),
            shares=(0.5, 0.5, 0.0, 0.0),
            dimension=dimension,
            patch_noise_std=patch_noise_std,
            angle=angle,
        )

    def rotated(self, angle: float) -> TwoPatch:
        """Return the same task with features rotated by an angle in radians."""
        return replace(self, angle=angle)

    @property
    def features(self) -> Tensor:
        """The feature of each cell, ``[cells, dimension]``."""
        found = torch.zeros(len(CELLS), self.dimension)
        for cell, size in enumerate(self.feature_sizes):
            found[cell, cell] = size
        (first, second), (u, v) = found[:2].clone(), self.feature_sizes[:2]
        along, across = math.cos(self.angle), math.sin(self.angle)
        # Each rotated feature keeps its norm, also if the two norms differ.
        found[0] = along * first + (across * u / v * second if v else 0.0)
        found[1] = along * second - (across * v / u * first if u else 0.0)
        return found

    def draw(self, num_examples: int, *, seed: int) -> TwoPatchSample:
        """Draw examples; the same seed gives the same examples with one version of torch."""
        count = checks.count("num_examples", num_examples, minimum=0)
        generator = torch.Generator().manual_seed(checks.count("seed", seed, minimum=0))
        edges = torch.tensor(self.shares, dtype=torch.float64).cumsum(0)[:-1]
        cells = torch.bucketize(torch.rand(count, generator=generator, dtype=torch.float64), edges, right=True)
        noise = self.patch_noise_std * torch.randn(count, self.dimension, generator=generator)
        noise[:, : len(CELLS)] = 0.0
        inputs = torch.stack([self.features[cells], noise], 1)
        swapped = torch.rand(count, generator=generator) < 0.5
        inputs[swapped] = inputs[swapped].flip(1)
        labels = torch.tensor([label for label, _ in CELLS])[cells]
        return TwoPatchSample(inputs=inputs, labels=labels, cells=cells)
