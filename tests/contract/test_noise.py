"""Laws of normal noise and of what draws it: the size, the bell, the tail, and independence of all its coordinates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from torch import Tensor

from privet.errors import ArgumentError
from privet.mechanism import noise as noise_module
from privet.mechanism.adaptive_noise import AdaptiveGaussian, PastGradients
from privet.mechanism.correlated_noise import BandedGaussian, BandedInverseGaussian
from privet.mechanism.events import encode_event
from privet.mechanism.geometry import Isotropic
from privet.mechanism.layout import Layout
from privet.mechanism.noise import Gaussian, Noise, NoiseFamily
from privet.mechanism.sensitivity import Sensitivity
from privet.mechanism.shaped_noise import EllipticalGaussian, GroupwiseGaussian
from privet.mechanism.sums import ClippedSum
from privet.training.randomness import KeystreamNoise
from tests.contract import statistics as stats
from tests.contract.noises import NOISES, Source, each_source, keystream, release, torch_stream

# One percent of error in the standard deviation needs this many draws to be seen at one in a million.
DRAWS = 262_144
BLOCKS = 8

GAUSSIAN = NoiseFamily.GAUSSIAN
Split = Callable[[Sequence[float], Sequence[int]], list[float]]


def even(bounds: Sequence[float], sizes: Sequence[int]) -> list[float]:
    return [math.hypot(*bounds)] * len(bounds)


def of_least_variance(bounds: Sequence[float], sizes: Sequence[int]) -> list[float]:
    total = sum(bound * math.sqrt(size) for bound, size in zip(bounds, sizes, strict=True))
    return [math.sqrt(bound / math.sqrt(size) * total) for bound, size in zip(bounds, sizes, strict=True)]


def longer(factor: float) -> Split:
    """The first step of correlated noise: the size of its draws."""
    return lambda bounds, sizes: [factor * std for std in even(bounds, sizes)]


WRITTEN: Mapping[type, Sequence[tuple[Noise, Split]]] = {
    Gaussian: [(Gaussian(noise_multiplier=0.7), even), (Gaussian(noise_multiplier=2.0), even)],
    EllipticalGaussian: [(EllipticalGaussian(geometry=Isotropic(), noise_multiplier=1.2), even)],
    GroupwiseGaussian: [(GroupwiseGaussian(noise_multiplier=1.1), of_least_variance)],
    AdaptiveGaussian: [(AdaptiveGaussian(learning=PastGradients(), noise_multiplier=0.9), even)],
    BandedGaussian: [(BandedGaussian(coefficients=(1.0, 0.75), noise_multiplier=0.9), longer(1.25))],
    BandedInverseGaussian: [
        (
            BandedInverseGaussian(coefficients=(1.0, -0.75), batches=2, epochs=1, noise_multiplier=0.9),
            longer(1.25),
        )
    ],
}
GAUSSIANS = {
    # a noise that is not written out below is taken to be the same on all coordinates, and fails if it is not
    **{kind: [(found[0].piece, even)] for kind, found in NOISES.items() if found[0].piece.family is GAUSSIAN},
    **WRITTEN,
}
"""Every noise that is normal, as large vectors show it, and how its groups share the noise at multiplier one."""
BOUNDS = (3.0, 0.5, 4.0)


def layout_of(bounds: tuple[float, ...], size: int) -> Layout:
    share = size // len(bounds)
    sizes = [share] * (len(bounds) - 1) + [size - share * (len(bounds) - 1)]
    return Layout(
        names=tuple(f"p{i}" for i in range(len(bounds))),
        shapes=tuple((length,) for length in sizes),
        groups=tuple(range(len(bounds))),
    )


def zero_sum(
    bounds: tuple[float, ...], *, size: int = DRAWS, dtype: torch.dtype = torch.float32, keep: Tensor | None = None
) -> ClippedSum:
    return ClippedSum(
        flat=torch.zeros(size, dtype=dtype),
        layout=layout_of(bounds, size),
        sensitivity=Sensitivity(bounds=bounds),
        keep=keep,
    )


def noise_p_values(first: Tensor, second: Tensor) -> dict[str, float]:
    """Say how odd two releases of noise alone are for independent standard normal draws."""
    left, right = first.double().numpy(), second.double().numpy()
    blocks: list[NDArray[np.float64]] = np.split(left, BLOCKS)
    pairs = [(i, j) for i in range(BLOCKS) for j in range(i)]
    half = len(left) // 2
    return {
        "std": stats.chi_square(float((left**2).sum()), len(left)),
        "mean": stats.normal(float(left.mean()) * math.sqrt(len(left))),
        "shape": stats.kolmogorov(left),
        "steps": stats.correlation(left, right),
        "sizes of steps": stats.correlation(left**2, right**2),
        "neighbours": stats.correlation(left[1:], left[:-1]),
        # pairs made together by one transform must be independent in size as well as in sign
        "sizes of halves": stats.correlation(left[:half] ** 2, left[half:] ** 2),
        "blocks": min(1.0, len(pairs) * min(stats.correlation(blocks[i], blocks[j]) for i, j in pairs)),
        "block stds": min(1.0, BLOCKS * min(stats.chi_square(float((b**2).sum()), len(b)) for b in blocks)),
    }


def found_in(piece: Noise, split: Split, bounds: tuple[float, ...], source: Source) -> dict[str, float]:
    layout, stream, start = layout_of(bounds, DRAWS), source(2024), torch.zeros(DRAWS)
    multiplier = float(encode_event(piece.event())["noise_multiplier"])
    stds = multiplier * torch.tensor(split(bounds, layout.sizes)).repeat_interleave(torch.tensor(layout.sizes))
    return noise_p_values(
        *(release(piece, stream, start=start, bounds=bounds, layout=layout).flat / stds for _ in range(2))
    )


@each_source
@pytest.mark.parametrize("bounds", [(1.0,), BOUNDS], ids=str)
def test_noise_has_the_declared_size_shape_and_independence(bounds: tuple[float, ...], source: Source) -> None:
    found = found_in(Gaussian(noise_multiplier=0.7), even, bounds, source)
    assert min(found.values()) > stats.ALPHA, found


@pytest.mark.parametrize(
    ("piece", "split"),
    [pytest.param(*pair, id=repr(pair[0])) for pairs in GAUSSIANS.values() for pair in pairs],
)
def test_every_normal_noise_has_the_declared_size_shape_and_independence(piece: Noise, split: Split) -> None:
    found = found_in(piece, split, BOUNDS, keystream)
    assert min(found.values()) > stats.ALPHA, found


@each_source
@pytest.mark.parametrize("size", [1, 2, 3, 65_535, 65_537, 131_073])
def test_every_coordinate_gets_noise_whatever_the_length(source: Source, size: int) -> None:
    released = Gaussian(noise_multiplier=1.0).add(zero_sum((1.0,), size=size), source(4)).flat
    assert bool((released != 0).all())
    assert len(set(released.tolist())) > 0.99 * size
    assert stats.chi_square(float(released.double().square().sum()), size) > stats.ALPHA


@each_source
def test_pieces_of_a_masked_vector_get_different_noise(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_module, "_CHUNK", DRAWS // BLOCKS)
    piece, stream = Gaussian(noise_multiplier=1.0), source(2025)
    everything = torch.ones(DRAWS, dtype=torch.bool)
    found = noise_p_values(*(piece.add(zero_sum((1.0,), keep=everything), stream).flat for _ in range(2)))
    assert min(found.values()) > stats.ALPHA, found


def _normal(seed: int, size: int = DRAWS) -> Tensor:
    return torch.zeros(size, dtype=torch.float64).normal_(generator=torch.Generator().manual_seed(seed))


def _hole(seed: int) -> Tensor:
    flat = _normal(seed)
    flat[: DRAWS // BLOCKS // 10] = 0
    return flat


def _uniform(seed: int) -> Tensor:
    return (torch.rand(DRAWS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) - 0.5) * 12**0.5


MUTANTS: dict[str, Callable[[int], Tensor]] = {
    "2 percent too small": lambda seed: 0.98 * _normal(seed),
    "2 percent too large": lambda seed: 1.02 * _normal(seed),
    "half": lambda seed: 0.5 * _normal(seed),
    "shifted": lambda seed: _normal(seed) + 0.02,
    "not normal": _uniform,
    "same noise in two blocks": lambda seed: _normal(seed, DRAWS // 2).repeat(2),
    "opposite signs in two halves": lambda seed: torch.cat([_normal(seed, DRAWS // 2), -_normal(seed, DRAWS // 2)]),
    "same noise every step": lambda seed: _normal(0),
    "a hole in one block": _hole,
    "neighbours share": lambda seed: _normal(seed, DRAWS // 2).repeat_interleave(2),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_laws_of_noise_reject_wrong_noise(name: str, record_property: Callable[[str, object], None]) -> None:
    record_property("kinds of wrong noise rejected", name)
    assert min(noise_p_values(MUTANTS[name](1), MUTANTS[name](2)).values()) < stats.CERTAIN


def test_a_devices_noise_is_drawn_in_double_precision_even_for_a_single_precision_sum() -> None:
    piece = Gaussian(noise_multiplier=0.7)
    single, double = (
        piece.add(zero_sum((1.0,), size=1000, dtype=dtype), torch_stream(5)).flat
        for dtype in (torch.float32, torch.float64)
    )
    assert torch.allclose(single.double(), double, rtol=1e-6, atol=0), "one stream, whatever the sum's precision"
    assert float((double.float().double() == double).double().mean()) < 0.01, "the draws carry more than 24 bits"


def counter_mode(key: bytes, num_bytes: int, *, renewals: int = 1) -> bytes:
    """Counter mode by hand: GCM counts from two, behind a nonce of twelve bytes."""
    nonce = int.from_bytes(key[32:44], "big") + renewals
    counter = nonce.to_bytes(12, "big") + (2).to_bytes(4, "big")
    return Cipher(algorithms.AES(key[:32]), modes.CTR(counter)).encryptor().update(bytes(num_bytes))


class SoonRenewed(KeystreamNoise):
    _BYTES_PER_NONCE = 16 * 1000


def test_a_keystream_goes_on_with_the_next_nonce_before_its_counter_ends() -> None:
    key = np.random.SeedSequence(9).generate_state(6, np.uint64).tobytes()
    source, draws = SoonRenewed(key), torch.zeros(3, 2000, dtype=torch.float64)
    for draw in draws:
        source.add_normal(draw, 1.0)
    for renewals, draw in enumerate(draws, start=1):
        words = np.frombuffer(counter_mode(key, 8000, renewals=renewals), dtype=np.uint64)
        uniform = 1 - (words & np.uint64((1 << 52) - 1)).astype(np.float64) / 2.0**52
        radius = torch.hypot(draw[:1000], draw[1000:])
        torch.testing.assert_close(radius, torch.from_numpy(np.sqrt(-2 * np.log(uniform))), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
def test_the_radius_of_keystream_noise_is_drawn_in_double_precision_whatever_the_sum(dtype: torch.dtype) -> None:
    pairs, key = 5_000, np.random.SeedSequence(8).generate_state(6, np.uint64).tobytes()
    words = np.frombuffer(counter_mode(key, 8 * pairs), dtype=np.uint64)
    uniform = 1 - (words & np.uint64((1 << 52) - 1)).astype(np.float64) / 2.0**52
    noise = torch.zeros(2 * pairs, dtype=dtype)
    KeystreamNoise(key).add_normal(noise, 1.0)
    found = torch.hypot(noise[:pairs].double(), noise[pairs:].double())
    expected = torch.from_numpy(np.sqrt(-2 * np.log(uniform)))
    torch.testing.assert_close(found, expected, rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=0)


@pytest.mark.slow
@each_source
def test_noise_reaches_beyond_the_tail_of_single_precision_generators(source: Source) -> None:
    flat, stream, beyond, rounds = torch.zeros(10_000_000), source(11), 0, 100
    for _ in range(rounds):
        noise_module.add_normal(flat.zero_(), std=1.0, source=stream, keep=None)
        beyond += int((flat.abs() > 5.8).sum())
    assert beyond > 0
    assert stats.binomial(beyond, rounds * len(flat), math.erfc(5.8 / math.sqrt(2))) > stats.ALPHA


@pytest.mark.parametrize("chunk", [7, 1 << 22])
@pytest.mark.parametrize("multiplier", [0.7, 2.0])
def test_masked_coordinates_stay_exactly_zero_and_kept_ones_get_full_noise(
    multiplier: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = Gaussian(noise_multiplier=multiplier)
    monkeypatch.setattr(noise_module, "_CHUNK", chunk)
    size = 1000
    keep = _normal(1, size) > 0.5
    released = piece.add(zero_sum((1.0,), size=size, keep=keep), keystream(2)).flat
    assert bool((released[~keep] == 0).all())
    kept = released[keep].double().numpy() / multiplier
    assert stats.chi_square(float((kept**2).sum()), len(kept)) > stats.ALPHA
    assert bool((released[keep] != 0).all())


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, "1", True])
def test_noise_that_is_no_positive_number_is_refused(value: object) -> None:
    with pytest.raises(ArgumentError, match="noise_multiplier"):
        Gaussian(noise_multiplier=value)  # type: ignore[arg-type]
