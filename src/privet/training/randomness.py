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
from privet.training.device_noise import device_noise


class NoiseSource(Protocol):
    """A stream of normal noise that can say what it is made of."""

    @property
    def description(self) -> str:
        """The generator, in words that go into the guarantee."""
        ...

    def add_normal(self, flat: Tensor, std: float) -> None:
        """Add a fresh N(0, std^2) draw, its tail in double precision, to every element of a vector in place."""
        ...

    def join(self, graph: torch.cuda.CUDAGraph) -> None:
        """Make sure that every replay of a graph that is about to be captured draws anew, or raise RuntimeError."""
        ...


class KeystreamNoise:
    """Normal noise on the CPU from an AES-256 keystream in counter mode, by the Box-Muller transform.

    The keystream is that of GCM, which encrypts in counter mode and is what processors have their widest instructions
    for; its tags are never asked for. A nonce serves for half of what its 32-bit counter could count, then the next.

    Guarantee:
        Draws are independent N(0, 1) numbers from a cryptographic stream that is never rewound. The radius comes from
        52 random bits and its logarithm is taken in double precision, so the tail reaches 8.49 standard deviations
        (beyond it lies a share of 2e-17) and no draw is exactly zero more often than it should be. For a
        single-precision sum the angle (32 bits) and the product are formed in single precision, the rounding the sum
        itself has; for a double-precision sum everything is double.
    """

    # Numbers made per call of the cipher: small enough for the cache, large enough to amortise the calls and for torch
    # to share the work between threads. It does not follow their number, so that neither do the draws.
    _BLOCK = 1 << 18
    _MANTISSA, _ONE = (1 << 52) - 1, 0x3FF << 52
    _BYTES_PER_NONCE = 1 << 35

    def __init__(self, key: bytes) -> None:
        """Key the stream with 44 secret bytes or more that are used for nothing else."""
        self._key, self._nonce = algorithms.AES(key[:32]), int.from_bytes(key[32:44], "big")
        self._renew()
        pairs = self._BLOCK // 2
        self._zeros = memoryview(bytes(16 * pairs))
        self._bytes = bytearray(16 * pairs + 16)
        self._long = torch.frombuffer(self._bytes, dtype=torch.int64, count=2 * pairs)
        self._integers = {torch.float32: self._long.view(torch.int32), torch.float64: self._long}
        self._scratch = {dtype: torch.empty(3, pairs, dtype=dtype) for dtype in self._integers}
        # views cost time too: those of whole blocks are made once
        self._whole = {dtype: self._views(pairs, dtype) for dtype in self._integers}

    @property
    def description(self) -> str:
        """The cipher and the transform."""
        return "an AES-256 counter-mode keystream keyed by the operating system, its tail in double precision"

    def _renew(self) -> None:
        """Start the stream of the next nonce."""
        self._nonce = (self._nonce + 1) % (1 << 96)
        self._cipher = Cipher(self._key, modes.GCM(self._nonce.to_bytes(12, "big"))).encryptor()
        self._bytes_left = self._BYTES_PER_NONCE

    def _fill(self, num_bytes: int) -> None:
        """Fill the buffer with so many bytes of the keystream."""
        if num_bytes > self._bytes_left:
            self._renew()
        self._bytes_left -= num_bytes
        self._cipher.update_into(self._zeros[:num_bytes], self._bytes)

    def join(self, graph: torch.cuda.CUDAGraph) -> None:
        """Refuse: a graph cannot call the cipher."""
        raise RuntimeError("noise made on the processor cannot be part of a CUDA graph")

    def add_normal(self, flat: Tensor, std: float) -> None:
        """Add noise block by block; what is left of the last block is thrown away."""
        whole = flat if flat.dtype in self._integers else flat.double()
        for start in range(0, whole.numel(), self._BLOCK):
            size = min(self._BLOCK, whole.numel() - start)
            half = (size + 1) // 2
            radius, cosine, sine = self._polar(half, whole.dtype)
            whole[start : start + half].addcmul_(radius, cosine, value=std)
            if size % 2:
                radius, sine = radius[:-1], sine[:-1]
            whole[start + half : start + size].addcmul_(radius, sine, value=std)
        if whole is not flat:
            flat.copy_(whole)

    def _views(self, count: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return the places of so many random mantissas and angles, and of radii, angles and cosines made of them."""
        integers = self._integers[dtype]
        first = 8 // integers.element_size() * count
        return self._long[:count], integers[first : first + count], *self._scratch[dtype][:, :count].unbind()

    def _polar(self, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Return so many radii, cosines and sines, in scratch memory."""
        views = self._whole[dtype] if 2 * count == self._BLOCK else self._views(count, dtype)
        mantissas, angles, radius, angle, cosine = views
        width = angles.element_size()
        self._fill((8 + width) * count)
        # 52 random bits behind the exponent of one: uniform doubles in [1, 2) without a conversion
        uniform = mantissas.bitwise_and_(self._MANTISSA).bitwise_or_(self._ONE).view(torch.float64)
        # 2 - u is in (0, 1]: its logarithm is finite
        radius.copy_(torch.sub(2.0, uniform, out=uniform).log_()).mul_(-2.0).sqrt_()
        angle.copy_(angles).mul_(math.pi * 2.0 ** (1 - 8 * width))
        return radius, torch.cos(angle, out=cosine), angle.sin_()


class HostNoise:
    """Noise of the processor's keystream for a device that has no double precision, such as Apple's.

    Guarantee:
        As :class:`KeystreamNoise`, whose draws are moved as they are and added on the device.
    """

    _CHUNK = 1 << 22

    def __init__(self, source: KeystreamNoise) -> None:
        """Take over a stream that nobody else draws from."""
        self._source = source

    @property
    def description(self) -> str:
        """The stream's own."""
        return self._source.description

    def join(self, graph: torch.cuda.CUDAGraph) -> None:
        """Refuse, as the stream does."""
        self._source.join(graph)

    def add_normal(self, flat: Tensor, std: float) -> None:
        """Draw chunk by chunk, and move each to where it is added."""
        for start in range(0, flat.numel(), self._CHUNK):
            part = flat[start : start + self._CHUNK]
            draws = torch.zeros(len(part), dtype=torch.promote_types(flat.dtype, torch.float32))
            self._source.add_normal(draws, std)
            part.add_(draws.to(device=flat.device))


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
        if device.type == "cuda":
            source: NoiseSource = device_noise(noise, device)
        else:
            stream = KeystreamNoise(noise.generate_state(6, np.uint64).tobytes())
            source = stream if device.type == "cpu" else HostNoise(stream)
        return cls(
            sampling=np.random.Generator(np.random.PCG64DXSM(sampling)),
            masks=np.random.Generator(np.random.PCG64DXSM(masks)),
            noise=source,
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
