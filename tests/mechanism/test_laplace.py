"""Noise with exponential tails: its law, its largest privacy loss, its cost, and what it refuses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import special

from privet.errors import ArgumentError, PlanError
from privet.mechanism import draws
from privet.mechanism.codec import NOISE, decode_piece, encode_piece
from privet.mechanism.events import decode_event, encode_event, same_event
from privet.mechanism.laplace import BlockL2, L2Laplace, ProductLaplace, mean_coordinate
from privet.mechanism.layout import Layout
from privet.mechanism.optimal_laplace import optimal_block_l2, optimal_product_laplace
from privet.mechanism.sensitivity import Sensitivity
from privet.mechanism.sums import ClippedSum, NormalSource
from privet.training.device_noise import TorchNoise
from privet.training.randomness import KeystreamNoise
from tests.contract import statistics as stats

Array = NDArray[np.float64]
Piece = L2Laplace | ProductLaplace | BlockL2
SIZE, EPSILON = 60, 0.7
WEIGHTS = np.exp(1.5 * np.random.default_rng(3).normal(size=SIZE))
PIECES: dict[str, Piece] = {
    "l2": L2Laplace(num_coordinates=SIZE, noise_multiplier=math.sqrt(SIZE + 1) / EPSILON),
    "product": optimal_product_laplace(WEIGHTS.tolist(), epsilon=EPSILON),
    "block": optimal_block_l2(WEIGHTS.tolist(), epsilon=EPSILON),
}
each_piece = pytest.mark.parametrize("name", PIECES)


def keystream(seed: int) -> NormalSource:
    return KeystreamNoise(np.random.SeedSequence(seed).generate_state(6, np.uint64).tobytes())


def torch_stream(seed: int) -> NormalSource:
    return TorchNoise(np.random.SeedSequence(seed), torch.device("cpu"))


each_source = pytest.mark.parametrize("source", [keystream, torch_stream], ids=lambda source: source.__name__)


def zero_sum(size: int, bounds: tuple[float, ...] = (1.0,), keep: torch.Tensor | None = None) -> ClippedSum:
    layout = Layout(names=("p",), shapes=((size,),), groups=(0,))
    flat = torch.zeros(size, dtype=torch.float64)
    return ClippedSum(flat=flat, layout=layout, sensitivity=Sensitivity(bounds=bounds), keep=keep)


def draw(piece: Piece, rows: int, seed: int, source: object = keystream) -> Array:
    stream = source(seed)  # type: ignore[operator]
    return np.stack([piece.add(zero_sum(SIZE), stream).flat.numpy() for _ in range(rows)])


def norm_of(piece: Piece, z: Array) -> Array:
    """Return the norm in the exponent of the density, row by row, as the docstring of each piece defines it."""
    if isinstance(piece, L2Laplace):
        return np.asarray(np.linalg.norm(z, axis=-1))
    if isinstance(piece, ProductLaplace):
        rates = 1 / np.array(piece.sizes)
        return np.asarray(np.abs(z) @ rates / np.linalg.norm(rates))
    blocks = np.array(piece.block_of)
    lengths = [np.linalg.norm(z[..., blocks == block], axis=-1) for block in range(len(piece.coefficients))]
    return np.asarray(sum(share * length for share, length in zip(piece.coefficients, lengths, strict=True)))


def log_ratio(piece: Piece, z: Array, shift: Array) -> Array:
    """Return ``log p(z) / p(z + shift)`` per row, at sensitivity 1."""
    return (norm_of(piece, z + shift) - norm_of(piece, z)) * piece.pure_epsilon


def worst_shift(piece: Piece, z: Array) -> Array:
    """The shift of length one along which the density falls fastest."""
    steps = np.eye(SIZE) * 1e-6
    gradient = np.stack([norm_of(piece, z + step) - norm_of(piece, z - step) for step in steps], axis=-1)
    return np.asarray(gradient / np.linalg.norm(gradient, axis=-1, keepdims=True))


@each_piece
def test_the_worst_shift_reaches_the_pure_epsilon_and_none_exceeds_it(name: str) -> None:
    piece, rng = PIECES[name], np.random.default_rng(0)
    z = draw(piece, 400, 1)
    random = rng.normal(size=z.shape)
    random /= np.linalg.norm(random, axis=1, keepdims=True)
    worst = log_ratio(piece, z, worst_shift(piece, z))
    assert piece.pure_epsilon == pytest.approx(EPSILON, rel=1e-9)
    assert max(worst.max(), log_ratio(piece, z, random).max()) <= EPSILON * (1 + 1e-9)
    assert worst.max() >= 0.999 * EPSILON
    assert np.abs(log_ratio(piece, z, random)).max() < 0.75 * EPSILON, "random directions alone would prove nothing"


@each_source
@each_piece
def test_the_norm_of_the_noise_has_its_gamma_law(name: str, source: object) -> None:
    piece = PIECES[name]
    lengths = norm_of(piece, draw(piece, 500, 7, source)) * piece.pure_epsilon
    assert stats.kolmogorov(special.ndtri(special.gammainc(SIZE, lengths))) > 1e-3


@each_piece
def test_the_mean_absolute_noise_is_the_closed_form(name: str) -> None:
    piece = PIECES[name]
    sums = np.abs(draw(piece, 500, 11)) @ WEIGHTS
    assert sums.mean() == pytest.approx(float(piece.mean_absolute() @ WEIGHTS), abs=5 * sums.std() / math.sqrt(500))


@each_source
def test_marginals_of_radial_noise_in_three_dimensions(source: object) -> None:
    stream = source(5)  # type: ignore[operator]
    piece = L2Laplace(num_coordinates=3, noise_multiplier=2.0)
    found = np.concatenate([piece.add(zero_sum(3), stream).flat[:1].numpy() for _ in range(4000)])
    t = np.abs(found)  # the scale is 2 / sqrt(3 + 1) = 1, and the marginal density (1 + |t|) exp(-|t|) / 4
    upper = np.exp(-t) * (2 + t) / 4
    assert stats.kolmogorov(special.ndtri(np.where(found > 0, 1 - upper, upper))) > 1e-3


@each_source
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_product_noise_is_laplace_in_every_coordinate(source: object, scale: float) -> None:
    flat = torch.zeros(50_000, dtype=torch.float64)
    draws.add_two_sided(flat, scales=scale, source=source(2), keep=None)  # type: ignore[operator]
    z = flat.numpy() / scale
    tail = np.exp(-np.abs(z)) / 2
    assert stats.kolmogorov(special.ndtri(np.where(z > 0, 1 - tail, tail))) > 1e-3


@each_source
@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 1000, 1_000_000])
def test_squared_lengths_have_their_gamma_law_in_every_dimension(source: object, size: int) -> None:
    stream, like = source(3), torch.zeros(1)  # type: ignore[operator]
    found = np.array([draws.gamma_of_squares(size, like, stream) for _ in range(2000)])
    assert stats.kolmogorov(special.ndtri(special.gammainc(size / 2, found))) > 1e-3


@pytest.mark.parametrize("size", [1, 2, 7, 1000, 1_000_000])
def test_radial_noise_has_its_standard_deviation_in_every_dimension(size: int) -> None:
    piece, stream = L2Laplace(num_coordinates=size, noise_multiplier=2.0), keystream(4)
    rounds = max(2, 4000 // size)
    flat = torch.cat([piece.add(zero_sum(size, (0.5,)), stream).flat for _ in range(rounds)])
    error = 4 / math.sqrt(min(len(flat), rounds * size / 2))
    assert float(flat.square().mean().sqrt()) == pytest.approx(1.0, rel=max(0.02, error))
    assert bool((flat != 0).all())


def test_pieces_of_a_long_vector_share_the_length_as_the_whole_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "CHUNK", 7)
    piece = PIECES["l2"]
    z = draw(piece, 600, 13)
    lengths = np.linalg.norm(z, axis=1) * piece.pure_epsilon
    assert stats.kolmogorov(special.ndtri(special.gammainc(SIZE, lengths))) > 1e-3
    share = (z[:, :7] ** 2).sum(1) / (z**2).sum(1)
    assert stats.kolmogorov(special.ndtri(special.betainc(3.5, (SIZE - 7) / 2, share))) > 1e-3


def test_masked_coordinates_stay_zero_and_the_length_is_that_of_the_kept_ones() -> None:
    keep = torch.zeros(SIZE, dtype=torch.bool)
    keep[::3] = True
    piece, stream = L2Laplace(num_coordinates=20, noise_multiplier=math.sqrt(21)), keystream(6)
    rows = torch.stack([piece.add(zero_sum(SIZE, keep=keep), stream).flat for _ in range(2000)])
    assert bool((rows[:, ~keep] == 0).all())
    assert stats.kolmogorov(special.ndtri(special.gammainc(20, rows.norm(dim=1).numpy()))) > 1e-3
    with pytest.raises(PlanError, match="coordinates"):
        L2Laplace(num_coordinates=SIZE, noise_multiplier=1.0).add(zero_sum(SIZE, keep=keep), stream)
    with pytest.raises(PlanError, match="mask"):
        PIECES["block"].add(zero_sum(SIZE, keep=keep), stream)


@each_piece
def test_events_follow_the_facts_and_survive_files(name: str) -> None:
    piece = PIECES[name]
    done = piece.add(zero_sum(SIZE, (3.0, 4.0)), keystream(0))
    assert same_event(done.event, piece.event(), rel_tol=1e-12)
    assert decode_event(encode_event(piece.event())) == piece.event()
    assert decode_piece(encode_piece(piece, NOISE, where="noise"), NOISE, where="noise") == piece

    class Half(Sensitivity):
        @property
        def total(self) -> float:
            return 0.5 * math.hypot(*self.bounds)

    wrong = zero_sum(SIZE)
    wrong.sensitivity = Half(bounds=(1.0,))
    assert not same_event(piece.add(wrong, keystream(0)).event, piece.event())


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for index, part in enumerate(rest):
            yield [*rest[:index], [items[0], *part], *rest[index + 1 :]]


def cost(piece: Piece, weights: Array) -> float:
    return float(piece.mean_absolute() @ weights)


@pytest.mark.parametrize("seed", range(12))
def test_the_partition_is_the_best_of_all(seed: int) -> None:
    weights = np.exp(2 * np.random.default_rng(seed).normal(size=6))
    best = min(
        sum((mean_coordinate(len(part)) * weights[part].sum()) ** (2 / 3) for part in parts) ** 1.5
        for parts in partitions(list(range(6)))
    )
    assert cost(optimal_block_l2(weights.tolist(), epsilon=1.0), weights) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.5, 3.0])
def test_blocks_cost_no_more_than_either_extreme(spread: float) -> None:
    for seed in range(20):
        weights = np.exp(spread * np.random.default_rng(seed).normal(size=SIZE))
        block = cost(optimal_block_l2(weights.tolist(), epsilon=EPSILON), weights)
        extremes = (
            cost(PIECES["l2"], weights),
            cost(optimal_product_laplace(weights.tolist(), epsilon=EPSILON), weights),
        )
        assert block <= min(extremes) * (1 + 1e-9)
        if spread == 1.5:
            assert block < 0.97 * min(extremes)


def test_known_costs_of_the_literature_table() -> None:
    ranks = np.arange(1, 1001)
    for weights, product, block in ((ranks**-1.5, 8.0, 6.8), (np.ones(1000), 31.6, 25.2)):
        total = weights.sum()
        assert cost(optimal_product_laplace(weights.tolist(), epsilon=1.0), weights) / total == pytest.approx(
            product, rel=0.02
        )
        assert cost(optimal_block_l2(weights.tolist(), epsilon=1.0), weights) / total == pytest.approx(block, rel=0.02)


def test_long_vectors_get_a_partition_nearly_as_good_as_the_exact_one() -> None:
    weights = np.exp(np.random.default_rng(1).normal(size=3000))
    exact = cost(optimal_block_l2(weights.tolist(), epsilon=1.0), weights)
    coarse = cost(optimal_block_l2(weights.tolist(), epsilon=1.0, max_exact=256), weights)
    assert exact <= coarse <= 1.01 * exact


BAD = {
    "no weights": [], "all zero": [0.0, 0.0], "negative": [1.0, -1.0], "not a number": [1.0, math.nan],
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_weights_are_refused(name: str) -> None:
    for make in (optimal_block_l2, optimal_product_laplace):
        with pytest.raises(ArgumentError, match="weights"):
            make(BAD[name], epsilon=1.0)


def test_weights_of_zero_get_finite_noise() -> None:
    for make in (optimal_block_l2, optimal_product_laplace):
        assert np.isfinite(make([1.0, 0.0, 2.0], epsilon=1.0).mean_absolute()).all()


def test_coefficients_that_add_too_little_noise_are_refused() -> None:
    with pytest.raises(ArgumentError, match="squares"):
        BlockL2(block_of=(0, 1), coefficients=(0.9, 0.9), noise_multiplier=1.0)
    with pytest.raises(ArgumentError, match="block_of"):
        BlockL2(block_of=(0, 0), coefficients=(0.6, 0.8), noise_multiplier=1.0)
    with pytest.raises(ArgumentError, match="smallest"):
        ProductLaplace(sizes=(2.0, 3.0), noise_multiplier=1.0)
    for value, kind in itertools.product((0.0, -1.0, math.nan, math.inf), (L2Laplace,)):
        with pytest.raises(ArgumentError, match="noise_multiplier"):
            kind(num_coordinates=3, noise_multiplier=value)
    with pytest.raises(PlanError, match="calibrated"):
        L2Laplace(num_coordinates=3).event()


@each_source
def test_noise_at_some_places_has_the_length_law_of_their_number(
    source: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draws, "CHUNK", 5)
    places, stream = np.arange(0, 34, 2), source(4)  # type: ignore[operator]
    found = []
    for _ in range(400):
        flat = torch.zeros(34, dtype=torch.float64)
        draws.add_radial_at(flat, places, scale=2.0, source=stream)
        assert not bool(flat[1::2].any()), "the others stay exactly zero"
        found.append(float(flat.norm()) / 2)
    assert stats.kolmogorov(special.ndtri(special.gammainc(len(places), np.array(found)))) > 1e-3
    draws.add_radial_at(flat, places[:0], scale=2.0, source=stream)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
def test_unequal_scales_stay_with_their_coordinates_across_pieces(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draws, "CHUNK", 3)
    scales = np.array([1.0, 10.0, 100.0, 1000.0, 1.0, 10.0, 100.0])
    rows = []
    for seed in range(300):
        flat = torch.zeros(7, dtype=dtype)
        draws.add_two_sided(flat, scales=scales, source=keystream(seed), keep=None)
        rows.append(flat.abs().double().numpy())
    np.testing.assert_allclose(np.mean(rows, 0) / scales, 1.0, atol=0.3)


def test_sizes_that_are_charged_together_are_charged_as_the_smallest_of_them() -> None:
    sizes = np.append(1.0, 1 + 20 * np.random.default_rng(4).random(6_000))
    piece = ProductLaplace(sizes=tuple(sizes.tolist()), noise_multiplier=2.0)
    event = piece.event()
    charged = np.repeat(event.scales, event.counts)
    # both in rising order: no coordinate may be charged for more noise than it gets
    true = np.sort(piece.mean_absolute())
    assert len(event.scales) < 1_000
    assert len(charged) == len(true)
    assert charged[0] == true[0]
    assert (charged <= true * (1 + 1e-12)).all()
    assert (charged >= true * 0.99).all()
    assert np.sqrt((1 / charged**2).sum()) >= piece.pure_epsilon * (1 - 1e-12)
