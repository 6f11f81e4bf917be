"""Noise that is drawn once for all ranks: from equal keys on each of them, or by rank 0."""

from __future__ import annotations

import json
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from privet.errors import LoopError, RanksDisagree
from privet.mechanism.layout import Share
from privet.mechanism.sums import NormalSource
from privet.training.distributed.digests import digest_of
from privet.training.distributed.ranks import Point, Ranks
from privet.training.randomness import NoiseSource, noise_source

_TRIAL = 1 << 12
_CHUNK = 1 << 24


class Sending(Protocol):
    """Where rank 0's numbers are sent."""

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        ...

    def tensor_of_first_(self, tensor: Tensor) -> None:
        """Overwrite a tensor by rank 0's."""
        ...


class SentDraws:
    """Draws that rank 0 makes and sends.

    Guarantee: as rank 0's stream; every rank adds the same numbers, bit for bit.
    """

    def __init__(self, stream: NormalSource, ranks: Sending) -> None:
        """Draw from this stream on rank 0 alone; the stream of other ranks is not used."""
        self._stream, self._ranks = stream, ranks

    def add_normal(self, flat: Tensor, std: float) -> None:
        """Draw on rank 0, send, and add, piece by piece."""
        for start in range(0, flat.numel(), _CHUNK):
            part = flat[start : start + _CHUNK]
            draws = torch.zeros_like(part, memory_format=torch.contiguous_format)
            if self._ranks.is_first:
                self._stream.add_normal(draws, std)
            self._ranks.tensor_of_first_(draws)
            part.add_(draws)

    def add_share(self, part: Tensor, std: float, share: Share) -> None:
        """Refuse: rank 0 would have to draw and send the noise of all shards; see :func:`agreed_noise`."""
        raise LoopError("Ranks that draw noise for shards of a sum must draw it alike.")


class NoiseOfRankZero(SentDraws):
    """Noise that rank 0 draws and sends, for ranks whose devices or libraries round differently."""

    def __init__(self, source: NoiseSource, ranks: Sending) -> None:
        """Draw from this source on rank 0 alone; the source of other ranks is not used."""
        super().__init__(source, ranks)
        self._source = source

    @property
    def description(self) -> str:
        """The source's own, and who draws."""
        return f"{self._source.description}, drawn by rank 0 and sent to the others"

    def join(self, graph: torch.cuda.CUDAGraph) -> None:
        """Refuse: a graph of one rank does not wait for another."""
        raise RuntimeError("noise that rank 0 sends cannot be part of a CUDA graph")

    def new_number(self) -> int:
        """Return the source's next number, which is the same on all ranks."""
        return self._source.new_number()

    def numbered(self, number: int) -> SentDraws:
        """Return the source's stream of a number, sent in the same way."""
        return SentDraws(self._source.numbered(number), self._ranks)


def agreed_noise(
    source: NoiseSource, ranks: Ranks, device: torch.device, dtype: torch.dtype, *, is_sharded: bool
) -> NoiseSource:
    """Return the source if all ranks draw the same numbers from equal keys; otherwise that of rank 0.

    Every rank draws from a public key on the side, and their digests are compared: processors and devices of different
    makes round logarithms and sines differently.
    """
    trial = noise_source(np.random.SeedSequence(0), device)
    draws = torch.zeros(_TRIAL, device=device, dtype=dtype)
    trial.add_normal(draws, 1.0)
    counts = torch.zeros(8, device=device, dtype=torch.float64)  # counts of an adaptive rule are doubles
    if device.type != "mps":
        trial.add_normal(counts, 1.0)
    found = [trial.description, digest_of([("draws", draws), ("counts", counts)])]
    answers = ranks.meet(Point.OPENING, note=json.dumps(found).encode())
    is_alike = all(each == answers[0] for each in answers)
    if not is_alike and is_sharded:
        raise RanksDisagree(
            "The ranks round the numbers of their noise differently: their devices, drivers or libraries differ. Each "
            "rank of a sharded model draws the noise of its own rows from one stream, which must be the same on all. "
            "Train on devices of one kind, or the model unsharded."
        )
    return source if is_alike else NoiseOfRankZero(source, ranks)
