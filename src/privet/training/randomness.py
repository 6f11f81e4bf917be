"""Independent random streams for sampling, masks and noise, keyed by the operating system.

A run's keys exist only in memory: they are never stored, so a resumed run draws fresh samples and fresh noise. A seed
chosen by the user makes a run repeatable and therefore not private; everything it produces says so.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass

import numpy as np
import torch

# Layout of the state of torch's CPU generator: seed (8 bytes), left, seeded (4 each), next (8), 624 words of 8 bytes.
_LEFT = slice(8, 12)
_NEXT = slice(16, 24)
_WORDS = slice(24, 24 + 624 * 8)


@dataclass(frozen=True, kw_only=True, eq=False)
class Streams:
    """The random streams of one session.

    Guarantee:
        With ``seed=None`` the streams are independent and keyed from the operating system's entropy. They belong to the
        process that made them; a fork must make its own.
    """

    sampling: np.random.Generator
    masks: np.random.Generator
    noise: torch.Generator
    seed: int | None
    process: int

    @classmethod
    def new(cls, device: torch.device, *, seed: int | None = None) -> Streams:
        """Key new streams from the operating system, or from ``seed`` for a repeatable run that is not private."""
        root = np.random.SeedSequence(secrets.randbits(256) if seed is None else seed)
        sampling, masks, noise = root.spawn(3)
        return cls(
            sampling=np.random.Generator(np.random.PCG64DXSM(sampling)),
            masks=np.random.Generator(np.random.PCG64DXSM(masks)),
            noise=_torch_generator(noise, device),
            seed=seed,
            process=os.getpid(),
        )


def _torch_generator(key: np.random.SeedSequence, device: torch.device) -> torch.Generator:
    generator = torch.Generator(device)
    generator.manual_seed(int(key.generate_state(1, np.uint64)[0]))
    if device.type == "cpu":
        # manual_seed keeps 32 bits of a CPU seed, few enough to try them all; fill the whole state instead
        state = generator.get_state()
        raw = state.numpy()
        raw[_WORDS] = key.generate_state(624, np.uint32).astype(np.uint64).view(np.uint8)
        raw[_LEFT] = np.array([1], np.int32).view(np.uint8)
        raw[_NEXT] = 0
        generator.set_state(state)
    return generator
