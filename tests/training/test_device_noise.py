"""Noise on an accelerator: what the kernel draws is the published generator's, and no draw is repeated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from privet.gradients.norms.kernels import rehearsal
from privet.training import device_noise as module
from privet.training.device_noise import DeviceNoise, FusedNoise, TorchNoise
from tests.contract import statistics as stats
from tests.script_checks import check_interpreted, check_on_a_device

SCRIPT, _SAYS = Path(__file__).with_name("noise_check.py"), "the noise is as expected"


def test_the_kernel_draws_what_plain_python_draws() -> None:
    check_interpreted(SCRIPT, _SAYS)


@pytest.mark.gpu
def test_the_kernel_draws_what_plain_python_draws_on_a_device() -> None:
    check_on_a_device(SCRIPT, _SAYS)


def test_a_device_without_kernels_gets_torchs_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert isinstance(DeviceNoise(np.random.SeedSequence(0), torch.device("cpu")).source, TorchNoise)


@pytest.mark.parametrize("broken", ["raises", "zeros", "repeats", "too small"])
def test_a_kernel_that_draws_wrongly_is_never_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    def add_normal(self: FusedNoise, flat: torch.Tensor, std: float) -> None:
        if broken == "raises":
            raise RuntimeError("no compiler")
        if broken == "zeros":
            return
        size = 0.9 if broken == "too small" else 1.0
        generator = torch.Generator().manual_seed(0 if broken == "repeats" else flat.storage_offset())
        flat.add_(torch.randn(flat.numel(), generator=generator), alpha=size * std)

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(FusedNoise, "add_normal", add_normal)
    assert isinstance(DeviceNoise(np.random.SeedSequence(0), torch.device("cpu")).source, TorchNoise)
    assert ("no compiler" in caplog.text) == (broken == "raises")


class _Kernels:
    """Stands in for the compiled kernel: adds the counter that it was given to every element."""

    def __init__(self) -> None:
        self.add_normal_kernel = {(blocks,): self._launched for blocks in range(1, 5)}

    def _launched(
        self, flat: torch.Tensor, state: torch.Tensor, size: int, pairs: int, high: float, low: float, **_: int
    ) -> None:
        assert size == flat.numel()
        assert pairs == (size + 1) // 2
        assert high + low == 0.1
        flat += state[1]


def test_the_counter_moves_on_by_what_was_drawn_so_that_nothing_is_drawn_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = _Kernels()
    monkeypatch.setattr(module, "_kernels", lambda: kernels)
    noise = FusedNoise(np.random.SeedSequence(0), torch.device("cpu"))
    counters = []
    for size in (7, 1, 600, 4):
        flat = torch.zeros(size)
        noise.add_normal(flat, 0.1)
        counters.append(int(flat[0]))
    assert counters == [0, 4, 5, 305]


def test_a_rehearsal_never_leaves_noise_out(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = _Kernels()
    monkeypatch.setattr(module, "_kernels", lambda: kernels)
    noise = FusedNoise(np.random.SeedSequence(0), torch.device("cpu"))
    noise.add_normal(torch.zeros(7), 0.1)
    flat = torch.zeros(4)
    with rehearsal() as noted:
        noise.add_normal(flat, 0.1)
    assert noted == []
    assert bool((flat == 4).all())


def test_two_sources_have_two_keys() -> None:
    states = [FusedNoise(key, torch.device("cpu"))._state[0] for key in np.random.SeedSequence(1).spawn(2)]
    assert states[0] != states[1]


@pytest.mark.gpu
def test_replays_of_a_graph_never_repeat_a_draw() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    noise = FusedNoise(np.random.SeedSequence(3), torch.device("cuda"))
    flat = torch.zeros(300_001, device="cuda")
    noise.add_normal(flat, 1.0)
    graph = torch.cuda.CUDAGraph()
    noise.join(graph)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        flat.zero_()
        noise.add_normal(flat, 2.0)
    draws = []
    for _ in range(3):
        graph.replay()
        draws.append(flat.cpu().double().numpy() / 2.0)
    for index, left in enumerate(draws):
        p_values = {
            "std": stats.chi_square(float((left**2).sum()), len(left)),
            "shape": stats.kolmogorov(left),
            "halves": stats.correlation(left[: len(left) // 2], left[len(left) // 2 : len(left) // 2 * 2]),
            **{f"steps {other}": stats.correlation(left, draws[other]) for other in range(index)},
        }
        assert all(value > 1e-6 for value in p_values.values()), p_values


def test_numbered_draws_in_double_precision_are_repeated_and_go_on_within_one_number() -> None:
    source = FusedNoise(np.random.SeedSequence(3), torch.device("cpu"))

    def drawn(number: int) -> list[torch.Tensor]:
        stream, found = source.numbered(number), []
        for _ in range(2):
            found.append(torch.zeros(50, dtype=torch.float64))
            stream.add_normal(found[-1], 1.0)
        return found

    first, second = drawn(0), drawn(1)
    source.add_normal(torch.zeros(7, dtype=torch.float64), 1.0)
    again = drawn(0)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1]), "pieces of one vector have draws of their own"
    assert not torch.equal(first[0], second[0])
