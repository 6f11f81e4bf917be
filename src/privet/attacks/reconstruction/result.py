"""Similarity of rebuilt images to their originals, as plain values without torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, Self

from scipy.special import stdtrit

from privet import checks
from privet.errors import ArgumentError
from privet.records import Count, read_record


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean over images with its 95 % interval by Student's t."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return the mean and interval of these values; fewer than two values are refused."""
        if len(values) < 2:
            raise ArgumentError(f"An interval of a mean needs two values or more, got {len(values)}.")
        mean = statistics.fmean(values)
        half = float(stdtrit(len(values) - 1, 0.975)) * statistics.stdev(values) / math.sqrt(len(values))
        return cls(value=mean, low=mean - half, high=mean + half)


@dataclass(frozen=True, kw_only=True)
class RebuiltFigures:
    """Mean similarity of one row of rebuilt images to the originals.

    Attributes:
        name: The kind of gradients that they were rebuilt from.
        mse: Mean squared error of pixels from 0 to 1; 0 for perfect copies.
        psnr: Peak signal-to-noise ratio in decibel.
        ssim: Structural similarity (Wang et al. 2004); 1 for perfect copies.
    """

    name: str
    mse: Mean
    psnr: Mean
    ssim: Mean


@dataclass(frozen=True, kw_only=True)
class RebuiltReport:
    """Results of a reconstruction attack on public images.

    Attributes:
        num_images: Number of attacked images.
        num_steps: Steps of the attack.
        mask_rate: Fraction of masked coordinates.
        noise_std: Standard deviation of the noise on each coordinate; None for a run without noise.
        rows: The control first, the released gradients last.
    """

    num_images: Count
    num_steps: Count
    mask_rate: Annotated[float, partial(checks.probability, allow_zero=True)]
    noise_std: Annotated[float, checks.positive] | None
    rows: tuple[RebuiltFigures, ...]

    @property
    def released(self) -> RebuiltFigures:
        """The row of the gradients that the run releases."""
        return self.rows[-1]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        found = read_record(cls, data, what="a report of rebuilt pictures")
        if not found.rows:
            raise ArgumentError("A report of rebuilt pictures needs at least one row.")
        return found
