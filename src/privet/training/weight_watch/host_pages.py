"""Fingerprints of the processor's memory: tags of GHASH, for which processors have instructions."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from torch import Tensor

from privet.training.weight_watch.pages import Segment, by_page


@dataclass(frozen=True, kw_only=True, eq=False)
class HostPages:
    """Pages in the processor's memory.

    Guarantee:
        A tag is a polynomial of fewer than 2**17 terms, whose coefficients are the bytes of a segment, at a secret
        point of a field of 2**128 elements: two different contents agree at no more points than that. The tags stay in
        this process and no text is encrypted, so one nonce serves for all.
    """

    size: ClassVar[int] = 1 << 18
    pages: Sequence[Sequence[Segment]]
    _memories: Sequence[Sequence[memoryview | None]]  # None where words are copied first
    _cipher: AESGCM
    _nonce: bytes

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> Self:
        """Draw a key."""
        pages = by_page(segments, cls.size)
        memories = [[None if segment.plain is None else _memory(segment.plain) for segment in page] for page in pages]
        cipher = AESGCM(AESGCM.generate_key(128))
        return cls(pages=pages, _memories=memories, _cipher=cipher, _nonce=secrets.token_bytes(12))

    def __len__(self) -> int:
        return len(self.pages)

    def take(self, numbers: Sequence[int]) -> HostFingerprint:
        """Compute one tag for each segment."""
        tag, nonce, tags = self._cipher.encrypt, self._nonce, []
        for number in numbers:
            for memory, segment in zip(self._memories[number], self.pages[number], strict=True):
                tags.append(tag(nonce, b"", _copied(segment) if memory is None else memory))
        return HostFingerprint(self, numbers, tags)


@dataclass(frozen=True, slots=True, eq=False)
class HostFingerprint:
    """The tags of some pages."""

    pages: HostPages
    numbers: Sequence[int]
    tags: Sequence[bytes]

    def compared(self) -> HostComparison:
        now = self.pages.take(self.numbers).tags
        if now == self.tags:
            return _EQUAL
        names = [segment.name for number in self.numbers for segment in self.pages.pages[number]]
        return HostComparison({name for name, tag, then in zip(names, now, self.tags, strict=True) if tag != then})


@dataclass(frozen=True, slots=True, eq=False)
class HostComparison:
    """The names of the tensors that differ."""

    found: AbstractSet[str]

    def names(self, *, waits: bool = True) -> AbstractSet[str]:
        """Return them; there is nothing to wait for."""
        return self.found


_EQUAL = HostComparison(frozenset())


def _copied(segment: Segment) -> memoryview:
    with torch._C.DisableTorchFunction(), torch.no_grad():  # the batch of another session may be watched
        return _memory(segment.words())


def _memory(words: Tensor) -> memoryview:
    """Return the bytes of a tensor, which is not kept from being given other memory, as by ``Tensor.numpy``."""
    return memoryview(np.from_dlpack(words)).cast("B")  # type: ignore[arg-type]
