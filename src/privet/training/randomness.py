"""Independent random streams for sampling, masks and noise, keyed by the operating system.

A run's keys exist only in memory: they are never stored, so a resumed run draws fresh samples and fresh noise. A seed
chosen by the user makes a run repeatable and therefore not private; everything it produces says so.
"""

from __future__ import annotations

import math
import os
import secrets
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from privet.errors import LoopError


class NoiseSource(Protocol):
    """A stream of normal noise that can say what it is made of."""

    @property
    def description(self) -> str:
        """The generator, in words that go into the guarantee."""
        ...

    def add_normal(self, flat: Tensor, std: float) -> None:
        """Add a fresh N(0, std^2) draw, made in double precision, to every element of a vector in place."""
        ...


class KeystreamNoise:
    """Normal noise on the CPU from an AES-256 keystream in counter mode, by the Box-Muller transform.

    Guarantee:
        Draws are independent N(0, 1) numbers up to the resolution of 52 random bits per uniform (so none beyond 8.49
        standard deviations, whose share is 2e-17), computed in double precision from a cryptographic stream. The stream
        is never rewound. This is also several times faster than torch's own double-precision generator.
    """

    # Numbers made per call of the cipher: small enough for the cache, large enough to amortise the calls.
    _BLOCK = 1 << 16
    _MANTISSA, _ONE = (1 << 52) - 1, 0x3FF << 52

    def __init__(self, key: bytes) -> None:
        """Key the stream with 48 secret bytes that are used for nothing else."""
        self._cipher = Cipher(algorithms.AES(key[:32]), modes.CTR(key[32:48])).encryptor()
        self._zeros = memoryview(bytes(8 * self._BLOCK))
        self._bytes = bytearray(8 * self._BLOCK + 16)
        self._integers = torch.frombuffer(self._bytes, dtype=torch.int64, count=self._BLOCK)
        self._cosines = torch.empty(self._BLOCK // 2, dtype=torch.float64)

    @property
    def description(self) -> str:
        """The cipher and the transform."""
        return "an AES-256 counter-mode keystream keyed by the operating system, in double precision"

    def add_normal(self, flat: Tensor, std: float) -> None:
        """Add noise block by block; what is left of the last block is thrown away."""
        for start in range(0, flat.numel(), self._BLOCK):
            part = flat[start : start + self._BLOCK]
            half = (len(part) + 1) // 2
            for draw, place in zip(self._pairs(half), (part[:half], part[half:]), strict=True):
                place.add_(draw[: len(place)].to(place.dtype), alpha=std)

    def _pairs(self, count: int) -> tuple[Tensor, Tensor]:
        self._cipher.update_into(self._zeros[: 16 * count], self._bytes)
        # 52 random bits behind the exponent of one: uniform doubles in [1, 2) without a conversion
        bits = self._integers[: 2 * count].bitwise_and_(self._MANTISSA).bitwise_or_(self._ONE)
        radius, angle = bits.view(torch.float64).view(2, count)
        torch.sub(2.0, radius, out=radius).log_().mul_(-2.0).sqrt_()  # 2 - u is in (0, 1]: its logarithm is finite
        angle.mul_(2.0 * math.pi)
        cosine = torch.cos(angle, out=self._cosines[:count])
        return cosine.mul_(radius), angle.sin_().mul_(radius)


class TorchNoise:
    """Normal noise from torch's generator of a device, seeded by 64 bits; the fast choice on accelerators."""

    # Double-precision draws need twice the memory of a single-precision sum; this many at a time bound that.
    _CHUNK = 1 << 24

    def __init__(self, key: np.random.SeedSequence, device: torch.device) -> None:
        """Seed a generator on the device."""
        self._generator = torch.Generator(device)
        self._generator.manual_seed(int(key.generate_state(1, np.uint64)[0]))
        self._device = device

    @property
    def description(self) -> str:
        """The device's generator."""
        return f"torch's {self._device.type} generator seeded by the operating system, in double precision"

    def add_normal(self, flat: Tensor, std: float) -> None:
        """Add noise chunk by chunk."""
        for start in range(0, flat.numel(), self._CHUNK):
            part = flat[start : start + self._CHUNK]
            draw = torch.empty(part.shape, dtype=torch.float64, device=part.device)
            part.add_(draw.normal_(0.0, std, generator=self._generator))


@dataclass(frozen=True, kw_only=True, eq=False)
class Streams:
    """The random streams of one session.

    Guarantee:
        With ``seed=None`` the streams are independent and keyed from the operating system's entropy. They belong to the
        process that made them.
    """

    sampling: np.random.Generator
    masks: np.random.Generator
    noise: NoiseSource
    seed: int | None
    process: int

    @classmethod
    def new(cls, device: torch.device, *, seed: int | None = None) -> Streams:
        """Key new streams from the operating system, or from ``seed`` for a repeatable run that is not private."""
        root = np.random.SeedSequence(secrets.randbits(256) if seed is None else seed)
        sampling, masks, noise = root.spawn(3)
        on_cpu = device.type == "cpu"
        return cls(
            sampling=np.random.Generator(np.random.PCG64DXSM(sampling)),
            masks=np.random.Generator(np.random.PCG64DXSM(masks)),
            noise=KeystreamNoise(noise.generate_state(6, np.uint64).tobytes()) if on_cpu else TorchNoise(noise, device),
            seed=seed,
            process=os.getpid(),
        )

    def check_process(self) -> None:
        """Refuse to draw in a forked child, which would repeat its parent's noise."""
        if os.getpid() != self.process:
            raise LoopError(
                "This session was started in another process. A forked child would draw the same noise as its parent: "
                "call privatize() in the process that trains."
            )
