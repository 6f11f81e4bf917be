"""Every noise in small, with what it declares: the standard deviation of each coordinate."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet.mechanism.ablations import NoNoise
from privet.mechanism.adaptive_noise import AdaptiveGaussian, PastGradients, ReleasedSquares
from privet.mechanism.correlated_noise import BandedGaussian, BandedInverseGaussian
from privet.mechanism.geometry import Diagonal, Factored, Geometry, Isotropic, PerGroup
from privet.mechanism.grouping import PerLayer
from privet.mechanism.laplace import BlockL2, L2Laplace, ProductLaplace
from privet.mechanism.layout import Layout
from privet.mechanism.noise import Gaussian, Noise
from privet.mechanism.sensitivity import Sensitivity
from privet.mechanism.shaped_noise import EllipticalGaussian, GroupwiseGaussian
from privet.mechanism.sums import ClippedSum, NormalSource, NumberedSource, PrivateSum
from privet.training.device_noise import DeviceNoise, FusedNoise, TorchNoise
from privet.training.distributed.noise import NoiseOfRankZero
from privet.training.randomness import HostNoise, KeystreamNoise

Array = NDArray[np.float64]
Bounds = tuple[float, ...]
Source = Callable[[int], NormalSource]

# ------------------------------------------------------------------------------------------------------------- sources


def keystream(seed: int) -> KeystreamNoise:
    return KeystreamNoise(np.random.SeedSequence(seed).generate_state(6, np.uint64).tobytes())


def torch_stream(seed: int) -> NormalSource:
    return TorchNoise(np.random.SeedSequence(seed), torch.device("cpu"))


def moved_stream(seed: int) -> NormalSource:
    return HostNoise(np.random.SeedSequence(seed).generate_state(6, np.uint64).tobytes())


def device_stream(seed: int) -> NormalSource:
    return DeviceNoise(np.random.SeedSequence(seed), torch.device("cpu"))


class OneRank:
    """What a source asks of the ranks of a run, where there is one."""

    is_first = True

    def tensor_of_first_(self, tensor: Tensor) -> None: ...


def sent_stream(seed: int) -> NormalSource:
    return NoiseOfRankZero(keystream(seed), OneRank())


class OnDevice:
    """A source that draws on a device, for sums that lie elsewhere."""

    def __init__(self, source: NormalSource) -> None:
        self.source = source

    def new_number(self) -> int:
        assert isinstance(self.source, NumberedSource)
        return self.source.new_number()

    def numbered(self, number: int) -> NormalSource:
        assert isinstance(self.source, NumberedSource)
        return OnDevice(self.source.numbered(number))

    def add_normal(self, flat: Tensor, std: float) -> None:
        there = flat.to("cuda")
        self.source.add_normal(there, std)
        flat.copy_(there)


def fused_stream(seed: int) -> NormalSource:
    return OnDevice(FusedNoise(np.random.SeedSequence(seed), torch.device("cuda")))


def chosen_stream(seed: int) -> NormalSource:
    return OnDevice(DeviceNoise(np.random.SeedSequence(seed), torch.device("cuda")))


SOURCES: Mapping[type, Sequence[Source]] = {
    KeystreamNoise: [keystream],
    TorchNoise: [torch_stream],
    HostNoise: [moved_stream],
    NoiseOfRankZero: [sent_stream],
    DeviceNoise: [device_stream, chosen_stream],
    FusedNoise: [fused_stream],
}
_ON_CUDA = (fused_stream, chosen_stream)
each_source = pytest.mark.parametrize(
    "source",
    [
        pytest.param(source, id=source.__name__, marks=[pytest.mark.gpu] if source in _ON_CUDA else [])
        for sources in SOURCES.values()
        for source in sources
    ],
)

# -------------------------------------------------------------------------------------------------------------- noises

LAYOUT = Layout.of([("a.weight", (2, 3)), ("a.bias", (2,)), ("b.weight", (1, 4))], PerLayer())
SIZE, BOUNDS = 12, (0.6, 0.8)
GEOMETRIES: Mapping[type, Sequence[Geometry]] = {
    Isotropic: [Isotropic()],
    PerGroup: [PerGroup(group_units=(2.0, 0.5))],
    Factored: [Factored(rows=((1.0, 2.0), (4.0,), (0.5,)), columns=((5.0, 7.0, 1.0), (1.0,), (1.0, 2.0, 4.0, 1.0)))],
    Diagonal: [Diagonal(coordinate_units=tuple(1 + i / 10 for i in range(SIZE)))],
}
UNITS: Mapping[type, Sequence[float]] = {
    Isotropic: [1.0] * SIZE,
    PerGroup: [2.0] * 8 + [0.5] * 4,
    Factored: [5.0, 7.0, 1.0, 10.0, 14.0, 2.0, 4.0, 4.0, 0.5, 1.0, 2.0, 0.5],
    Diagonal: [1 + i / 10 for i in range(SIZE)],
}
"""The unit of every coordinate, written out."""


@dataclass(frozen=True, kw_only=True)
class NoiseMember:
    """A noise with the standard deviation that it declares for each coordinate, given the bounds of the groups."""

    piece: Noise
    stds: Callable[[Bounds], Array]

    def __str__(self) -> str:
        return repr(self.piece)


def _even(multiplier: float) -> Callable[[Bounds], Array]:
    return lambda bounds: np.full(SIZE, multiplier * math.hypot(*bounds))


def _shaped(multiplier: float, shape: Sequence[float]) -> Callable[[Bounds], Array]:
    return lambda bounds: multiplier * math.hypot(*bounds) * np.array(shape)


def _by_group(multiplier: float) -> Callable[[Bounds], Array]:
    def stds(bounds: Bounds) -> Array:
        sizes = (8, 4)
        total = sum(bound * math.sqrt(size) for bound, size in zip(bounds, sizes, strict=True))
        each = [math.sqrt(bound / math.sqrt(size) * total) for bound, size in zip(bounds, sizes, strict=True)]
        return multiplier * np.repeat(each, sizes)

    return stds


_SIZES = (1.0, 1.5, 2.0, 1.0, 3.0, 1.0, 1.0, 2.0, 1.0, 1.0, 4.0, 1.0)
_BLOCKS, _COEFFICIENTS = (0, 0, 1, 1, 1, 1, 2, 0, 1, 1, 1, 2), (0.6, 0.48, 0.64)
_BLOCK_STDS = [math.sqrt(_BLOCKS.count(block) + 1) / _COEFFICIENTS[block] for block in _BLOCKS]

NOISES: Mapping[type, Sequence[NoiseMember]] = {
    Gaussian: [NoiseMember(piece=Gaussian(noise_multiplier=value), stds=_even(value)) for value in (0.7, 2.0)],
    NoNoise: [NoiseMember(piece=NoNoise(), stds=_even(0.0))],
    EllipticalGaussian: [
        NoiseMember(
            piece=EllipticalGaussian(geometry=geometry, preconditioning=power, noise_multiplier=1.5),
            stds=_shaped(1.5, [unit ** (1 - 2 * power) for unit in UNITS[kind]]),
        )
        for (kind, geometries), power in zip(GEOMETRIES.items(), (0.0, 1.0, 0.0, 1.0), strict=True)
        for geometry in geometries
    ],
    GroupwiseGaussian: [NoiseMember(piece=GroupwiseGaussian(noise_multiplier=1.3), stds=_by_group(1.3))],
    L2Laplace: [NoiseMember(piece=L2Laplace(num_coordinates=SIZE, noise_multiplier=3.0), stds=_even(3.0))],
    ProductLaplace: [
        NoiseMember(piece=ProductLaplace(sizes=_SIZES, noise_multiplier=2.5), stds=_shaped(2.5, _SIZES)),
        NoiseMember(piece=ProductLaplace(sizes=(1.0,) * SIZE, noise_multiplier=3.0), stds=_even(3.0)),
    ],
    BlockL2: [
        NoiseMember(
            piece=BlockL2(block_of=_BLOCKS, coefficients=_COEFFICIENTS, noise_multiplier=0.8),
            stds=_shaped(0.8, _BLOCK_STDS),
        )
    ],
    AdaptiveGaussian: [
        NoiseMember(
            piece=AdaptiveGaussian(learning=ReleasedSquares(share=0.2), noise_multiplier=1.1),
            stds=_even(1.1 / math.sqrt(0.8)),
        ),
        NoiseMember(piece=AdaptiveGaussian(learning=PastGradients(), noise_multiplier=0.9), stds=_even(0.9)),
    ],
    # the first step of a run: noise of the size of the draws
    BandedGaussian: [
        NoiseMember(piece=BandedGaussian(coefficients=(1.0,), noise_multiplier=0.7), stds=_even(0.7)),
        NoiseMember(
            piece=BandedGaussian(coefficients=(1.0, 0.4, 0.3), noise_multiplier=1.4),
            stds=_even(1.4 * math.sqrt(1 + 0.4**2 + 0.3**2)),
        ),
    ],
    BandedInverseGaussian: [
        NoiseMember(
            piece=BandedInverseGaussian(coefficients=(1.0, -0.5), batches=4, epochs=1, noise_multiplier=1.2),
            stds=_even(1.2 * math.sqrt(1 + 1 / 4 + 1 / 16 + 1 / 64)),
        ),
    ],
}
MEMBERS = [member for members in NOISES.values() for member in members]
each_noise = pytest.mark.parametrize("member", MEMBERS, ids=str)


def release(
    piece: Noise,
    source: NormalSource,
    *,
    start: Tensor | None = None,
    bounds: Sensitivity | Bounds = BOUNDS,
    keep: Tensor | None = None,
    layout: Layout = LAYOUT,
) -> PrivateSum:
    """Release a sum, zeros by default, as the first step of a run does."""
    flat = torch.zeros(layout.num_coordinates, dtype=torch.float64) if start is None else start.clone()
    run = piece.start(layout, has_mask=keep is not None)
    frame, squares = run.begin(0, flat)
    sensitivity = bounds if isinstance(bounds, Sensitivity) else Sensitivity(bounds=bounds)
    clipped = ClippedSum(flat=flat, layout=layout, sensitivity=sensitivity, keep=keep, frame=frame, squares=squares)
    return run.add(clipped, source)


DRAWS = 1000


@functools.cache
def draws_of(index: int) -> Array:
    """Return releases of noise alone, one a row, all from one stream; the same at every call."""
    stream = keystream(2024 + index)
    return np.stack([release(MEMBERS[index].piece, stream).flat.numpy() for _ in range(DRAWS)])
