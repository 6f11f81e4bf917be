"""Normal noise made on an accelerator and added in the same pass, without ever lying in memory by itself."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import logging
import math
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privet.errors import LoopError
from privet.gradients.norms.kernel_warmup import build
from privet.gradients.norms.kernels import Launch, beside
from privet.mechanism.layout import Share

_log = logging.getLogger("privet")

# How many draws the first two calls are judged by, and how far from one their mean square may be: six standard errors.
_TRIAL = 1 << 14
_SLACK = 6.0 * math.sqrt(2.0 / _TRIAL)
_BLOCK = 512
# Spawn key of numbered draws, which no other draw shares; and the counter of a numbered draw: 2^40 pairs for each.
_NUMBERED = 0x6E756D62
_PAIRS_BITS = 40
_MOST_NUMBERS = 1 << 23


def _child(key: np.random.SeedSequence, number: int) -> np.random.SeedSequence:
    """Return the key of a numbered draw."""
    return np.random.SeedSequence(key.entropy, spawn_key=(*key.spawn_key, _NUMBERED, number))


class TorchNoise:
    """Normal noise from torch's generator of a device, seeded by 64 bits."""

    # Double-precision draws need twice the memory of a single-precision sum; this many at a time, and at most half of
    # them, bound that by one more sum, and stay in a device's cache until they are added. Of few, all come at once:
    # there the launches cost more than the memory.
    _CHUNK, _FEW = 1 << 22, 1 << 16

    def __init__(self, key: np.random.SeedSequence, device: torch.device) -> None:
        """Seed a generator on the device."""
        self._generator = torch.Generator(device)
        self._generator.manual_seed(int(key.generate_state(1, np.uint64)[0]))
        self._device, self._secret = device, key
        self._numbers = itertools.count()
        self._repeating: TorchNoise | None = None

    @property
    def description(self) -> str:
        """The device's generator."""
        return f"torch's {self._device.type} generator seeded by the operating system, in double precision"

    def join(self, graph: torch.cuda.CUDAGraph) -> None:
        """Let a graph that is about to be captured move the generator on at every replay."""
        graph.register_generator_state(self._generator)

    def new_number(self) -> int:
        """Return the next number."""
        return next(self._numbers)

    def numbered(self, number: int) -> TorchNoise:
        """Return the stream of a number, at its beginning; a key of its own seeds it."""
        own = _child(self._secret, number)
        if self._repeating is None:
            self._repeating = TorchNoise(own, self._device)
        self._repeating._generator.manual_seed(int(own.generate_state(1, np.uint64)[0]))
        return self._repeating

    def add_normal(self, flat: Tensor, std: float) -> None:
        """Add noise chunk by chunk."""
        step = max(self._FEW, min(self._CHUNK, -(-flat.numel() // 2)))
        draws = torch.empty(min(step, flat.numel()), dtype=torch.float64, device=flat.device)
        for start in range(0, flat.numel(), step):
            part = flat[start : start + step]
            part.add_(draws[: len(part)].normal_(0.0, std, generator=self._generator))

    def add_share(self, part: Tensor, std: float, share: Share) -> None:
        """Draw all chunks of the whole vector: torch's generator cannot be asked for some numbers only."""
        step = max(self._FEW, min(self._CHUNK, -(-share.total // 2)))
        draws = torch.empty(min(step, share.total), dtype=torch.float64, device=part.device)
        for start in range(0, share.total, step):
            length = min(step, share.total - start)
            drawn = draws[:length].normal_(0.0, std, generator=self._generator)
            for run in share.between(start, start + length):
                part[run.place : run.place + len(run)] += drawn[run.start : run.stop]


class FusedNoise:
    """Normal noise from a counter-based generator (Philox 4x32-10, the one that torch uses), drawn where it is added.

    Key and counter lie on the device, so that a CUDA graph moves the counter on at every replay.

    Guarantee:
        Draws are independent N(0, std^2) numbers as far as the generator is: a key of 64 bits, and a counter of 64
        bits that is never rewound. The radius comes from 52 random bits, its logarithm is taken and it is added in
        double precision, so the tail reaches 8.49 standard deviations (beyond it lies a share of 2e-17); the angle (32
        bits) and its cosine are in single precision. Sums that are not in single precision, or not in one piece, get
        their noise from torch's generator under a key of its own.
    """

    def __init__(self, key: np.random.SeedSequence, device: torch.device) -> None:
        """Put key and counter on the device."""
        own, other = key.spawn(2)
        secret = int(own.generate_state(1, np.uint64)[0]) - (1 << 63)
        self._state = torch.tensor([secret, 0], dtype=torch.int64, device=device)
        self._own = TorchNoise(other, device)
        self._other: Callable[[], TorchNoise] = lambda: self._own
        self._secret, self._numbers = key, itertools.count()
        self._repeating: FusedNoise | None = None

    @property
    def description(self) -> str:
        """The generator and the transform."""
        device = self._state.device.type
        return f"a Philox generator on {device} seeded by the operating system, its tail in double precision"

    def join(self, graph: torch.cuda.CUDAGraph) -> None:
        """Let a graph that is about to be captured move torch's generator on; the counter moves by itself."""
        self._other().join(graph)

    def new_number(self) -> int:
        """Return the next number."""
        return next(self._numbers)

    def numbered(self, number: int) -> FusedNoise:
        """Return the stream of a number: a key of its own, and the part of the counter that belongs to the number."""
        if not 0 <= number < _MOST_NUMBERS:
            raise LoopError(f"A run may number at most {_MOST_NUMBERS} draws of noise, and this is draw {number}.")
        if self._repeating is None:
            device = self._state.device
            self._repeating = FusedNoise(_child(self._secret, 0), device)
        self._repeating._state[1:].fill_(number << _PAIRS_BITS)
        # seeded once, when it is first asked for something: seeding takes longer than a draw of the kernel
        self._repeating._other = functools.cache(lambda: self._own.numbered(number))
        return self._repeating

    def add_normal(self, flat: Tensor, std: float) -> None:
        """Add noise to all elements at once, and move the counter on by as many pairs as were drawn."""
        if flat.dtype != torch.float32 or not flat.is_contiguous():
            self._other().add_normal(flat, std)
            return
        pairs = (flat.numel() + 1) // 2
        if pairs == 0:
            return
        high = float(np.float32(std))  # kernels take numbers in single precision: two of them make a double
        # launched by itself and not through kernels.launch, which may only note a launch: noise is never left out
        with beside(flat):
            _kernels().add_normal_kernel[((pairs + _BLOCK - 1) // _BLOCK,)](
                flat, self._state, flat.numel(), pairs, high, std - high, BLOCK=_BLOCK
            )
        self._move_on(pairs)

    def _move_on(self, pairs: int) -> None:
        self._state[1:].add_(pairs)

    def add_share(self, part: Tensor, std: float, share: Share) -> None:
        """Add noise run by run, each number from the counter that it has in the whole vector."""
        if part.dtype != torch.float32 or not part.is_contiguous():
            self._other().add_share(part, std, share)
            return
        pairs, high = (share.total + 1) // 2, float(np.float32(std))
        with beside(part):
            for run in share.runs:
                size = len(run)
                _kernels().add_share_kernel[((size + _BLOCK - 1) // _BLOCK,)](
                    part[run.place :], self._state, run.start, size, pairs, high, std - high, BLOCK=_BLOCK
                )
        self._move_on(pairs)


@functools.cache
def _kernels() -> Any:
    # compiled functions live apart so that machines without triton never import it
    from privet.training import _triton_noise

    return _triton_noise


class DeviceNoise:
    """The fastest source of noise that works on a device: a kernel or, where kernels cannot be built, torch's own.

    Which one it is, is found out when it is first asked for something. Until then the kernel is being built, beside
    whatever else begins a session.

    Guarantee:
        Either source has the whole guarantee, and the description says which of them it is. Which one is used depends
        on the machine alone, and never changes. A kernel whose first draws are wrong is not used.
    """

    def __init__(self, key: np.random.SeedSequence, device: torch.device) -> None:
        """Begin to build the kernel if there can be one."""
        self._key, self._device = key, device
        is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        has_triton = importlib.util.find_spec("triton") is not None
        self._can_have_kernel = has_triton and (device.type == "cuda" or is_interpreted)
        self._built: Future[None] | None = None
        if self._can_have_kernel and not is_interpreted:
            thread = ThreadPoolExecutor(1, "privet-build")
            self._built = thread.submit(_build, device)
            thread.shutdown(wait=False)

    @functools.cached_property
    def source(self) -> TorchNoise | FusedNoise:
        """The generator."""
        if not self._can_have_kernel:
            return TorchNoise(self._key, self._device)
        for_kernel, for_torch, for_trial = self._key.spawn(3)
        try:
            if self._built is not None:
                self._built.result()
            works = _passes_trial(FusedNoise(for_trial, self._device), self._device)
        except Exception as error:  # noqa: BLE001 -- compilers fail in many ways, and there is another source
            reason = str(error).strip().splitlines() or [""]
            _log.warning("Noise is drawn by torch, not by a kernel: %s: %s.", type(error).__name__, reason[0])
            works = False
        return FusedNoise(for_kernel, self._device) if works else TorchNoise(for_torch, self._device)

    @property
    def description(self) -> str:
        """The source's own."""
        return self.source.description

    def join(self, graph: torch.cuda.CUDAGraph) -> None:
        """Let a graph that is about to be captured move the source on at every replay."""
        self.source.join(graph)

    def new_number(self) -> int:
        """Return the source's next number."""
        return self.source.new_number()

    def numbered(self, number: int) -> TorchNoise | FusedNoise:
        """Return the source's stream of a number."""
        return self.source.numbered(number)

    def add_normal(self, flat: Tensor, std: float) -> None:
        """Add noise from the source."""
        self.source.add_normal(flat, std)

    def add_share(self, part: Tensor, std: float, share: Share) -> None:
        """Add the share's noise from the source."""
        self.source.add_share(part, std, share)


def _build(device: torch.device) -> None:
    """Build the kernel in the one way it is ever launched."""
    arguments = torch.float32, torch.int64, _TRIAL, _TRIAL // 2, 1.0, 0.0
    build(Launch(_kernels().add_normal_kernel, arguments, {"BLOCK": _BLOCK}), device)


def _passes_trial(noise: FusedNoise, device: torch.device) -> bool:
    """Whether two vectors of noise have the right size, and are not the same."""
    draws = torch.zeros(2, _TRIAL, device=device)
    for row in draws:
        noise.add_normal(row, 1.0)
    sizes = draws.double().square().mean(1)
    differ = (draws[0] != draws[1]).double().mean()
    return bool(((sizes - 1.0).abs() <= _SLACK).all() & (differ > 0.99))
