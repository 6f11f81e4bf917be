"""Similarity of rebuilt images to their originals, as plain values without torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from scipy.special import stdtrit

from privet import checks
from privet.errors import ArgumentError

_MEASURES = ("mse", "psnr", "ssim")


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

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{name: checks.number(name, data[name]) for name in ("value", "low", "high")})


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

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(name=str(data["name"]), **{name: Mean.from_dict(data[name]) for name in _MEASURES})


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

    num_images: int
    num_steps: int
    mask_rate: float
    noise_std: float | None
    rows: tuple[RebuiltFigures, ...]

    @property
    def released(self) -> RebuiltFigures:
        """The row of the gradients that the run releases."""
        return self.rows[-1]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        with checks.reading("a report of rebuilt pictures"):
            noise_std = data["noise_std"]
            rows = tuple(RebuiltFigures.from_dict(row) for row in data["rows"])
            found = cls(
                num_images=checks.count("num_images", data["num_images"]),
                num_steps=checks.count("num_steps", data["num_steps"]),
                mask_rate=checks.probability("mask_rate", data["mask_rate"], allow_zero=True),
                noise_std=None if noise_std is None else checks.positive("noise_std", noise_std),
                rows=rows,
            )
        if not found.rows:
            raise ArgumentError("A report of rebuilt pictures needs at least one row.")
        return found
