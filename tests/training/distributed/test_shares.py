"""Noise by coordinate: ranks that draw their own coordinates draw together what one process draws."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from privet.mechanism.layout import Run, Share
from privet.training.device_noise import DeviceNoise, TorchNoise
from privet.training.distributed.padding import padded
from privet.training.randomness import HostNoise, KeystreamNoise, NoiseSource, SharedNoise

CPU = torch.device("cpu")
KEY = bytes(range(44))
MAKERS: dict[str, Callable[[], NoiseSource]] = {
    "keystream": lambda: KeystreamNoise(KEY),
    "host": lambda: HostNoise(KEY),
    "torch": lambda: TorchNoise(np.random.SeedSequence(3), CPU),
}


def dealt(total: int, size: int, *, seed: int, cuts: int = 7) -> list[Share]:
    """Deal the coordinates of a vector out in pieces of random lengths."""
    generator = np.random.default_rng(seed)
    edges = np.unique([0, total, *generator.integers(0, total, cuts)]).tolist()
    runs: list[list[Run]] = [[] for _ in range(size)]
    lengths = [0] * size
    for place, (start, stop) in enumerate(pairwise(edges)):
        rank = place % size
        runs[rank].append(Run(start=start, stop=stop, place=lengths[rank]))
        lengths[rank] += stop - start
    return [Share(total=total, runs=tuple(each)) for each in runs]


def held(share: Share) -> Tensor:
    return torch.tensor([coordinate for run in share.runs for coordinate in range(run.start, run.stop)], dtype=int)


def drawn(source: NoiseSource, share: Share, dtype: torch.dtype) -> Tensor:
    part = torch.zeros(sum(map(len, share.runs)), dtype=dtype)
    SharedNoise(source=source, share=share).add_normal(part, 1.5)
    return part


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("total", [1, 7, 1 << 18, (1 << 18) + 5, 700_001])
def test_a_share_gets_bit_for_bit_what_the_whole_vector_would_get_there(
    make: Callable[[], NoiseSource], dtype: torch.dtype, total: int
) -> None:
    one, whole, count = make(), torch.zeros(2, total, dtype=dtype), torch.zeros(3, dtype=torch.float64)
    for row in whole:
        one.add_normal(row, 1.5)
    one.add_normal(count, 1.0)
    for share in dealt(total, 3, seed=total):
        source, after = make(), torch.zeros(3, dtype=torch.float64)
        for row in whole:
            assert torch.equal(drawn(source, share, dtype), row[held(share)])
        source.add_normal(after, 1.0)
        assert torch.equal(after, count)  # the source has moved on as far


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_share_of_a_numbered_draw_is_that_of_the_whole_draw_whenever_it_is_asked_for(
    make: Callable[[], NoiseSource],
) -> None:
    total, one = 700_001, make()
    numbers = [one.new_number() for _ in range(3)]
    whole = torch.zeros(3, total)
    for row, number in zip(whole, numbers, strict=True):
        one.numbered(number).add_normal(row, 1.5)
    assert not torch.equal(whole[0], whole[1])
    for share in dealt(total, 3, seed=4):
        source = SharedNoise(source=make(), share=share)
        assert [source.new_number() for _ in range(3)] == numbers
        for place in (0, 2, 1, 0):
            part = torch.zeros(sum(map(len, share.runs)))
            source.numbered(numbers[place]).add_normal(part, 1.5)
            assert torch.equal(part, whole[place][held(share)])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_device_draws_shares_by_the_counters_of_the_whole_vector(dtype: torch.dtype) -> None:
    device, total = torch.device("cuda"), 700_001

    def make() -> NoiseSource:
        return DeviceNoise(np.random.SeedSequence(5), device)

    one, whole = make(), torch.zeros(2, total, dtype=dtype, device=device)
    for row in whole:
        one.add_normal(row, 1.5)
    for share in dealt(total, 3, seed=2):
        source = make()
        for row in whole:
            part = torch.zeros(sum(map(len, share.runs)), dtype=dtype, device=device)
            SharedNoise(source=source, share=share).add_normal(part, 1.5)
            assert torch.equal(part, row[held(share).to(device)])


def test_skipping_crosses_the_end_of_a_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeystreamNoise, "_BLOCK", 64)
    monkeypatch.setattr(KeystreamNoise, "_BYTES_PER_NONCE", 1000)
    whole = torch.zeros(1000)
    KeystreamNoise(KEY).add_normal(whole, 1.5)
    for share in dealt(1000, 4, seed=0, cuts=5):
        assert torch.equal(drawn(KeystreamNoise(KEY), share, torch.float32), whole[held(share)])


@pytest.mark.parametrize("size", [2, 4])
def test_the_noise_of_all_ranks_has_the_charged_variance_and_differs_between_coordinates_and_steps(size: int) -> None:
    total, steps = 40_000, 3
    found = torch.zeros(steps, total, dtype=torch.float64)
    for share in dealt(total, size, seed=1, cuts=99):
        source = KeystreamNoise(KEY)
        for step in range(steps):
            found[step, held(share)] = drawn(source, share, torch.float64) / 1.5
    numbers = found.flatten()
    # a chi-square with so many degrees of freedom, within five standard deviations; products of neighbours likewise
    assert abs(float(numbers.square().sum()) - numbers.numel()) < 5 * (2 * numbers.numel()) ** 0.5
    assert abs(float((found[:, 1:] * found[:, :-1]).sum())) < 5 * numbers.numel() ** 0.5
    assert abs(float((found[1:] * found[:-1]).sum())) < 5 * numbers.numel() ** 0.5
    assert len(set(numbers.tolist())) == numbers.numel()


@given(st.integers(0, 40), st.integers(1, 7))
@settings(max_examples=60, deadline=None)
def test_every_example_counts_on_one_rank_and_all_ranks_have_as_many(number: int, size: int) -> None:
    indices = np.arange(number) * 3 + 1
    found = [padded(indices, rank, size) for rank in range(size)]
    counted = sorted(int(index) for own, count in found for index in own[:count])
    assert counted == indices.tolist()
    assert len({len(own) for own, _ in found}) == 1
    assert all(len(own) - count <= 1 and set(own.tolist()) <= set(indices.tolist()) for own, count in found)
    assert bool(number) == bool(len(found[0][0]))
