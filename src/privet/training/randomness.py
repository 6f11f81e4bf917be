"""Independent random streams for sampling, masks and noise, keyed by the operating system.

A run's keys exist only in memory: they are never stored, so a resumed run draws fresh samples and fresh noise. A seed
chosen by the user makes a run repeatable and therefore not private; everything it produces says so.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from threading import Lock
from typing import Any, NoReturn, Protocol, Self

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray
from torch import Tensor

from privet.errors import LoopError
from privet.mechanism.layout import Run, Share
from privet.training.device_noise import DeviceNoise

_Numbers = NDArray[np.floating[Any]]
_MANTISSA, _ONE = np.int64((1 << 52) - 1), np.int64(0x3FF << 52)


class SharedSource(Protocol):
    """A stream of normal noise of which ranks can add a part each."""

    def add_normal(self, flat: Tensor, std: float) -> None:
        """Add a fresh N(0, std^2) draw, its tail in double precision, to every element of a vector in place."""
        ...

    def add_share(self, part: Tensor, std: float, share: Share) -> None:
        """Add to some coordinates of a vector, in place, what :meth:`add_normal` would add to them in the whole of it.

        Guarantee:
            The source moves on as if the whole vector had been drawn: sources of one key that are asked alike, for
            whichever shares, agree on every coordinate, and draw independent numbers for different ones.
        """
        ...


class NoiseSource(SharedSource, Protocol):
    """A stream of normal noise that describes its generator."""

    @property
    def description(self) -> str:
        """The generator, in words that go into the guarantee."""
        ...

    def join(self, graph: torch.cuda.CUDAGraph) -> None:
        """Make sure that every replay of a graph that is about to be captured draws anew, or raise RuntimeError."""
        ...

    def new_number(self) -> int:
        """Return a number that this source has given to nobody."""
        ...

    def numbered(self, number: int) -> SharedSource:
        """Return a stream that is the same for the same number and independent of all other draws."""
        ...


class _Lane:
    """The memory in which one thread makes noise, a block at a time."""

    def __init__(self, pairs: int, dtype: type[np.floating[Any]]) -> None:
        """Make room for so many pairs of draws of a precision."""
        self.keystream = bytearray(16 * pairs + 16)
        self._long = np.frombuffer(self.keystream, np.int64, 2 * pairs)
        self._integers = self._long.view(np.int32 if dtype is np.float32 else np.int64)
        self._scratch = np.empty((3, pairs), dtype)
        self.bytes_per_pair = 8 + self._integers.itemsize

    def add(self, part: _Numbers, std: float) -> None:
        """Add noise made of the keystream to a block."""
        half = (len(part) + 1) // 2
        cosine, sine = self._normal(half, std)
        part[:half] += cosine
        part[half:] += sine[: len(part) - half]

    def add_some(self, numbers: _Numbers, length: int, runs: Iterable[Run], std: float) -> None:
        """Add to some coordinates of a block what :meth:`add` would add to them.

        Args:
            numbers: All that is held of a vector.
            length: Of the whole block.
            runs: Where its coordinates are held; they count from the beginning of the block.
            std: Standard deviation.
        """
        half = (length + 1) // 2
        for run in runs:
            for offset, stop, side in ((0, half, 0), (half, length, 1)):
                first, last = max(run.start, offset), min(run.stop, stop)
                if first < last:
                    drawn = self._normal(half, std, slice(first - offset, last - offset))[side]
                    numbers[run.place + first - run.start :][: last - first] += drawn

    def _normal(self, half: int, std: float, pairs: slice | None = None) -> tuple[_Numbers, _Numbers]:
        """Return the two numbers of each pair of a block, whose bits are used up, or of some pairs, which stay."""
        width = self._integers.itemsize
        mantissas, angles = self._long[:half], self._integers[8 // width * half :][:half]
        if pairs is not None:  # they may be asked for again, for the other number of each
            mantissas, angles = mantissas[pairs].copy(), angles[pairs]
        radius, angle, cosine = self._scratch[:, : len(mantissas)]
        # 52 random bits behind the exponent of one: uniform doubles in [1, 2) without a conversion
        np.bitwise_and(mantissas, _MANTISSA, out=mantissas)
        uniform = np.bitwise_or(mantissas, _ONE, out=mantissas).view(np.float64)
        # 2 - u is in (0, 1]: its logarithm is finite
        np.log(np.subtract(2.0, uniform, out=uniform), out=uniform)
        radius[:] = uniform
        radius *= -2.0
        np.sqrt(radius, out=radius)
        radius *= std
        angle[:] = angles
        angle *= math.pi * 2.0 ** (1 - 8 * width)
        if angle.dtype == np.float64:  # numpy's own take three times as long in double precision
            torch.cos(torch.from_numpy(angle), out=torch.from_numpy(cosine))
            sine = torch.from_numpy(angle).sin_().numpy()
        else:
            np.cos(angle, out=cosine)
            sine = np.sin(angle, out=angle)
        return np.multiply(cosine, radius, out=cosine), np.multiply(sine, radius, out=sine)


class KeystreamNoise:
    """Normal noise on the CPU from an AES-256 keystream in counter mode, by the Box-Muller transform.

    The keystream is that of GCM, which encrypts in counter mode and is what processors have their widest instructions
    for; its tags are never asked for. A nonce serves for half of what its 32-bit counter could count, then the next.

    Numpy transforms it, its logarithms, sines and cosines taking half the time of torch's; long vectors in as many
    threads as torch uses. Blocks take their parts of the keystream in order, so draws do not depend on the threads.

    Guarantee:
        Draws are independent N(0, 1) numbers from a cryptographic stream that is never rewound. The radius comes from
        52 random bits and its logarithm is taken in double precision, so the tail reaches 8.49 standard deviations
        (beyond it lies a share of 2e-17) and no draw is exactly zero more often than it should be. For a
        single-precision sum the angle (32 bits) and the product are formed in single precision, the rounding the sum
        itself has; for a double-precision sum everything is double.
    """

    # Numbers per block: few enough for the cache, many enough for the calls not to count.
    _BLOCK = 1 << 18
    # From so many numbers on several threads are worth waking, and past so many threads they wait for the interpreter.
    _MANY, _MOST_THREADS = 1 << 19, 8
    _BYTES_PER_NONCE = 1 << 35
    # Nonces of one numbered stream: more than a vector in any memory needs.
    _NONCES_PER_NUMBER = 1 << 32

    def __init__(self, key: bytes) -> None:
        """Key the stream with 44 secret bytes or more that are used for nothing else."""
        self._secret, self._first_nonce = key, 0
        self._numbers = itertools.count()
        self._repeating: Self | None = None
        self._key, self._nonce = algorithms.AES(key[:32]), int.from_bytes(key[32:44], "big")
        self._renew()
        self._zeros = memoryview(bytes(8 * self._BLOCK))
        self._lanes: dict[torch.dtype, list[_Lane]] = {torch.float32: [], torch.float64: []}
        self._threads: ThreadPoolExecutor | None = None
        self._turn = Lock()

    @property
    def description(self) -> str:
        """The cipher and the transform."""
        return "an AES-256 counter-mode keystream keyed by the operating system, its tail in double precision"

    def _renew(self) -> None:
        """Start the stream of the next nonce."""
        self._nonce = (self._nonce + 1) % (1 << 96)
        self._cipher: CipherContext = Cipher(self._key, modes.GCM(self._nonce.to_bytes(12, "big"))).encryptor()
        self._bytes_left, self._is_behind = self._BYTES_PER_NONCE, False

    def new_number(self) -> int:
        """Return the next number."""
        return next(self._numbers)

    def numbered(self, number: int) -> Self:
        """Return the stream of a number, at its beginning; it has a key of its own, derived from this one's."""
        if self._repeating is None:
            self._repeating = type(self)(hashlib.sha512(b"privet numbered draws" + self._secret).digest())
            self._repeating._first_nonce = self._repeating._nonce
        other = self._repeating
        other._nonce = (other._first_nonce + number * self._NONCES_PER_NUMBER) % (1 << 96)
        other._renew()
        return other

    def _fill(self, num_bytes: int, into: bytearray) -> None:
        """Fill a buffer with so many bytes of the keystream."""
        if num_bytes > self._bytes_left:
            self._renew()
        if self._is_behind:
            self._catch_up()
        self._bytes_left -= num_bytes
        self._cipher.update_into(self._zeros[:num_bytes], into)

    def _skip(self, num_bytes: int) -> None:
        """Move on as :meth:`_fill` does, without the bytes."""
        if num_bytes > self._bytes_left:
            self._renew()
        self._bytes_left -= num_bytes
        self._is_behind = True

    def _catch_up(self) -> None:
        """Move the cipher to the present place in the stream.

        GCM encrypts in counter mode under the nonce and a counter of 32 bits that begins with two (NIST SP 800-38D,
        7.1), so plain counter mode from that counter on is the same stream.
        """
        blocks, rest = divmod(self._BYTES_PER_NONCE - self._bytes_left, 16)
        counter = self._nonce.to_bytes(12, "big") + (2 + blocks).to_bytes(4, "big")
        self._cipher = Cipher(self._key, modes.CTR(counter)).encryptor()
        self._cipher.update(self._zeros[:rest])
        self._is_behind = False

    def join(self, graph: torch.cuda.CUDAGraph) -> None:
        """Refuse: a graph cannot call the cipher."""
        raise RuntimeError("noise made on the processor cannot be part of a CUDA graph")

    def add_normal(self, flat: Tensor, std: float) -> None:
        """Add noise block by block; the rest of the last block is thrown away."""
        whole = flat if flat.dtype in self._lanes else flat.double()
        numbers = whole.detach().numpy()
        starts = iter(range(0, len(numbers), self._BLOCK))

        def work(lane: _Lane) -> None:
            while True:
                with self._turn:
                    start = next(starts, None)
                    if start is None:
                        return
                    part = numbers[start : start + self._BLOCK]
                    self._fill((len(part) + 1) // 2 * lane.bytes_per_pair, lane.keystream)
                lane.add(part, std)

        first, *others = self._lanes_for(len(numbers), whole.dtype)
        helping = [self._threads.submit(work, lane) for lane in others] if self._threads is not None else []
        work(first)
        for helper in helping:
            helper.result()
        if whole is not flat:
            flat.copy_(whole)

    def add_share(self, part: Tensor, std: float, share: Share) -> None:
        """Go through the blocks of the whole vector; those without coordinates of the share are skipped."""
        whole = part if part.dtype in self._lanes else part.double()
        numbers = whole.detach().numpy()
        lane = self._lanes_for(1, whole.dtype)[0]
        for start in range(0, share.total, self._BLOCK):
            length = min(self._BLOCK, share.total - start)
            num_bytes = (length + 1) // 2 * lane.bytes_per_pair
            runs = share.between(start, start + length)
            if runs:
                self._fill(num_bytes, lane.keystream)
                lane.add_some(numbers, length, runs, std)
            else:
                self._skip(num_bytes)
        if whole is not part:
            part.copy_(whole)

    def _lanes_for(self, length: int, dtype: torch.dtype) -> list[_Lane]:
        """Return a lane for each thread that noise of this length is worth, and at least one."""
        # torch shares out its own transforms
        is_alone = length < self._MANY or dtype == torch.float64
        number = 1 if is_alone else min(torch.get_num_threads(), self._MOST_THREADS)
        lanes = self._lanes[dtype]
        while len(lanes) < number:
            lanes.append(_Lane(self._BLOCK // 2, np.float32 if dtype == torch.float32 else np.float64))
        if number > 1 and self._threads is None:
            self._threads = ThreadPoolExecutor(self._MOST_THREADS - 1)
        return lanes[:number]


class HostNoise(KeystreamNoise):
    """Noise of the processor's keystream for a device that has no double precision, such as Apple's.

    Guarantee:
        As :class:`KeystreamNoise`, whose draws are moved as they are and added on the device.
    """

    _CHUNK = 1 << 22

    def add_normal(self, flat: Tensor, std: float) -> None:
        """Draw chunk by chunk, and move each to where it is added."""
        for start in range(0, flat.numel(), self._CHUNK):
            part = flat[start : start + self._CHUNK]
            draws = torch.zeros(len(part), dtype=torch.promote_types(flat.dtype, torch.float32))
            super().add_normal(draws, std)
            part.add_(draws.to(device=flat.device))

    def add_share(self, part: Tensor, std: float, share: Share) -> None:
        """Draw chunk by chunk, as for the whole vector, and move what is held of each chunk to where it is added."""
        for start in range(0, share.total, self._CHUNK):
            length = min(self._CHUNK, share.total - start)
            runs = share.between(start, start + length)
            held = [Run(start=run.start, stop=run.stop, place=place) for run, place in _side_by_side(runs)]
            draws = torch.zeros(sum(map(len, held)), dtype=torch.promote_types(part.dtype, torch.float32))
            super().add_share(draws, std, Share(total=length, runs=tuple(held)))
            moved = draws.to(device=part.device)
            for run, mine in zip(runs, held, strict=True):
                part[run.place : run.place + len(run)] += moved[mine.place : mine.place + len(run)]


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedDraws:
    """Noise for the part of a sum that one rank holds: the numbers that the whole sum would get there.

    Guarantee:
        Ranks whose sources have one key, and are asked alike, add noise to every coordinate once, each to its own. The
        noise of the whole sum is what a single process would draw, with the same variance and independence.

    Attributes:
        source: Of all ranks, under one key.
        share: The coordinates of this rank.
    """

    source: SharedSource
    share: Share

    def add_normal(self, flat: Tensor, std: float) -> None:
        """Add the noise of this rank's coordinates."""
        self.source.add_share(flat, std, self.share)


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedNoise(SharedDraws):
    """Such noise from a source that can also repeat draws: ranks that ask alike are given the same numbers."""

    source: NoiseSource

    def new_number(self) -> int:
        """Return the source's next number."""
        return self.source.new_number()

    def numbered(self, number: int) -> SharedDraws:
        """Return the part of the source's stream of a number."""
        return SharedDraws(source=self.source.numbered(number), share=self.share)


def _side_by_side(runs: Sequence[Run]) -> Iterator[tuple[Run, int]]:
    """Yield runs, each with its place if they were held one after the other."""
    yield from zip(runs, accumulate(map(len, runs), initial=0), strict=False)


def noise_source(key: np.random.SeedSequence, device: torch.device) -> NoiseSource:
    """Return the source of noise on a device, under a key that is used for nothing else."""
    if device.type == "cuda":
        return DeviceNoise(key, device)
    stream = KeystreamNoise if device.type == "cpu" else HostNoise
    return stream(key.generate_state(6, np.uint64).tobytes())


@dataclass(frozen=True, kw_only=True, eq=False)
class Streams:
    """The random streams of one session.

    Guarantee:
        With ``seed=None`` the streams are independent and keyed from the operating system's entropy. They belong to the
        process that made them.
    """

    sampling: np.random.Generator
    records: np.random.Generator
    masks: np.random.Generator
    noise: NoiseSource
    seed: int | None
    process: int

    @classmethod
    def new(cls, device: torch.device, *, seed: int | None = None, secret: int | None = None) -> Streams:
        """Key new streams from the operating system, or from ``seed`` for a repeatable run that is not private.

        Args:
            device: Where noise is added.
            seed: The user's.
            secret: 256 bits that another rank of the run took from its operating system; None takes them here.
        """
        fresh = secrets.randbits(256) if secret is None else secret
        root = np.random.SeedSequence(fresh if seed is None else seed)
        sampling, masks, noise, records = root.spawn(4)
        return cls(
            sampling=np.random.Generator(np.random.PCG64DXSM(sampling)),
            records=np.random.Generator(np.random.PCG64DXSM(records)),
            masks=np.random.Generator(np.random.PCG64DXSM(masks)),
            noise=noise_source(noise, device),
            seed=seed,
            process=os.getpid(),
        )

    def __reduce__(self) -> NoReturn:
        """Refuse to be sent to another process or written anywhere: keys exist in one memory only."""
        raise LoopError(
            "The random streams of a session do not leave for another process. Keep the session out of the data set "
            "and the collate function."
        )

    def check_process(self) -> None:
        """Refuse to draw in a forked child, which would repeat its parent's noise."""
        if os.getpid() != self.process:
            raise LoopError(
                "This session was started in another process. A forked child would draw the same noise as its parent: "
                "call privatize() in the process that trains."
            )
