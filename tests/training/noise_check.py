"""Compare noise made by the kernel with the generator and the transform in plain Python; run as a script.

On a GPU, or with TRITON_INTERPRET=1 set.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from privet.training.device_noise import DeviceNoise, FusedNoise

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WORD = (1 << 32) - 1


def philox(key: int, counter: int) -> list[int]:
    """Return four words of Philox 4x32-10 (Salmon et al. 2011)."""
    words = [counter & WORD, counter >> 32 & WORD, 0, 0]
    low, high = key & WORD, key >> 32 & WORD
    for _ in range(10):
        left, right = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [(right >> 32) ^ words[1] ^ low, right & WORD, (left >> 32) ^ words[3] ^ high, left & WORD]
        low, high = (low + 0x9E3779B9) & WORD, (high + 0xBB67AE85) & WORD
    return words


def expected(key: int, start: int, size: int, std: float) -> torch.Tensor:
    pairs = (size + 1) // 2
    halves: tuple[list[float], list[float]] = ([], [])
    for pair in range(pairs):
        first, second, third, _ = philox(key, start + pair)
        radius = std * math.sqrt(-2.0 * math.log(((first << 20 | second >> 12) + 1) * 2.0**-52))
        angle = (third - (1 << 32) if third >> 31 else third) * math.pi * 2.0**-31
        halves[0].append(radius * math.cos(angle))
        halves[1].append(radius * math.sin(angle))
    return torch.tensor((halves[0] + halves[1])[:size], dtype=torch.float64)


def source(counter: int = 0) -> tuple[FusedNoise, int]:
    noise = FusedNoise(np.random.SeedSequence(5), DEVICE)
    noise._state[1] = counter
    return noise, int(noise._state[0]) % (1 << 64)


def test_the_generator_is_the_published_one() -> None:
    # the known answers of the generator's authors, for a counter and a key of zeros and of ones
    assert philox(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_every_element_gets_its_draw(size: int, std: float, counter: int) -> None:
    noise, key = source(counter)
    flat = torch.full((size,), 0.25, device=DEVICE)
    noise.add_normal(flat, std)
    wanted = expected(key, counter, size, std) + 0.25
    error = float((flat.cpu().double() - wanted).abs().max()) / std
    assert error <= 2e-6 + 1e-7 / std, f"{size}, {std}, {counter}: {error}"
    assert int(noise._state[1]) == counter + (size + 1) // 2, "the counter moves on by what was drawn"


def test_the_next_call_goes_on_where_the_last_one_ended() -> None:
    noise, key = source()
    first, second = torch.zeros(6, device=DEVICE), torch.zeros(5, device=DEVICE)
    noise.add_normal(first, 1.0)
    noise.add_normal(second, 1.0)
    assert torch.allclose(second.cpu().double(), expected(key, 3, 5, 1.0), atol=2e-6)


def test_vectors_of_another_kind_get_noise_too() -> None:
    noise, _ = source()
    double = torch.zeros(4096, dtype=torch.float64, device=DEVICE)
    noise.add_normal(double, 2.0)
    assert abs(float(double.std()) / 2.0 - 1.0) < 0.1
    strided = torch.zeros(4096, 2, device=DEVICE)
    noise.add_normal(strided[:, 0], 2.0)
    assert abs(float(strided[:, 0].std()) / 2.0 - 1.0) < 0.1
    assert not strided[:, 1].any()
    noise.add_normal(torch.zeros(0, device=DEVICE), 2.0)


def test_the_kernel_is_what_sessions_get() -> None:
    assert isinstance(DeviceNoise(np.random.SeedSequence(1), DEVICE).source, FusedNoise)


if __name__ == "__main__":
    test_the_generator_is_the_published_one()
    for size in (1, 2, 3, 1000, 1025):
        for std in (1.0, 1e-3, 0.1 + 1e-9, 37.5):
            test_every_element_gets_its_draw(size, std, counter=7)
    test_every_element_gets_its_draw(600, 1.0, counter=(1 << 32) - 200)
    test_every_element_gets_its_draw(600, 1.0, counter=5 << 40)
    test_the_next_call_goes_on_where_the_last_one_ended()
    test_vectors_of_another_kind_get_noise_too()
    test_the_kernel_is_what_sessions_get()
    print("the noise is as expected")
