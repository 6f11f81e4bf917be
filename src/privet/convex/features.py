"""Random features of norm one for sufficient statistics, drawn without data.

Every map sends a record to a vector of norm one (or zero, for a record of zeros), so its contribution to a sum of outer
products is bounded for any record.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

from privet import checks
from privet.errors import ArgumentError

DrawnFeatures = Callable[[Tensor], Tensor]


@runtime_checkable
class FeatureMap(Protocol):
    """A family of random features; public constants only."""

    def draw(self, width: int, generator: torch.Generator) -> DrawnFeatures:
        """Draw one map for inputs of this width, on the generator's device.

        Guarantee:
            For any input the rows of the map have norm at most one, and each row depends on its own record only.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class ConvexFeatures:
    """The features of the convex ReLU network: random gates on randomly projected inputs.

    Attributes:
        num_gates: Number of gates.
        projected_width: A fixed random matrix projects wider inputs to this width. The number of features is
            ``num_gates`` times the width, and the size of the statistics grows with its square.
    """

    num_gates: int
    projected_width: int

    def __post_init__(self) -> None:
        checks.require(self, checks.count, "num_gates", "projected_width")

    def draw(self, width: int, generator: torch.Generator) -> DrawnFeatures:
        gates = _normal((self.num_gates, width), generator)
        kept = min(width, self.projected_width)
        projection = _normal((kept, width), generator) / math.sqrt(kept) if kept < width else None

        def features(inputs: Tensor) -> Tensor:
            is_open = (inputs @ gates.T >= 0).to(inputs)
            lower = inputs if projection is None else inputs @ projection.T
            return _normalised((is_open[:, :, None] * lower[:, None, :]).flatten(1))

        return features


@dataclass(frozen=True, kw_only=True)
class RandomRelu:
    """The hidden layer of a ReLU network with random weights."""

    size: int

    def __post_init__(self) -> None:
        checks.count("size", self.size)

    def draw(self, width: int, generator: torch.Generator) -> DrawnFeatures:
        weights = _normal((self.size, width), generator)
        return lambda inputs: _normalised((inputs @ weights.T).relu())


@dataclass(frozen=True, kw_only=True)
class RandomFourier:
    """Random Fourier features of the Gaussian kernel (Rahimi and Recht, 2007), on inputs of norm one.

    Attributes:
        size: Number of features.
        bandwidth: Width of the kernel; a public constant, chosen without the data.
    """

    size: int
    bandwidth: float = 1.0

    def __post_init__(self) -> None:
        checks.count("size", self.size)
        checks.fields(self, checks.positive, "bandwidth")

    def draw(self, width: int, generator: torch.Generator) -> DrawnFeatures:
        frequencies = _normal((self.size, width), generator) / self.bandwidth
        phases = torch.rand(self.size, generator=generator, device=generator.device) * (2 * math.pi)
        return lambda inputs: _normalised((_normalised(inputs) @ frequencies.T + phases).cos())


def _normal(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device)


def _normalised(rows: Tensor) -> Tensor:
    """Scale rows to norm one; rows that are not finite become zero."""
    if rows.dim() != 2:
        raise ArgumentError(f"Features must be rows of numbers, got a tensor of {rows.dim()} axes.")
    return torch.nan_to_num(functional.normalize(rows, dim=1, eps=1e-30), nan=0.0, posinf=0.0, neginf=0.0)
