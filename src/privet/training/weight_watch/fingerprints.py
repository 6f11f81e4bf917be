"""Fingerprints of tensors: short values, computed where the tensors lie, that tell of every changed bit.

A sum of floats does not see two changes that cancel, a permutation or a sign; it rounds. On a processor the bytes are
hashed under a secret key by GHASH, the tag of AES-GCM, for which processors have instructions. On a device they are
read as whole numbers of at most 32 bits, each is multiplied by a random odd number that belongs to its place, and the
products are added modulo 2**64. Nothing is rounded, so the order of the addition makes no difference.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from torch import Tensor

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}


@dataclass(frozen=True, kw_only=True, eq=False)
class Segment:
    """A part of one tensor that lies on one page."""

    name: str
    words: Callable[[], Tensor]
    length: int
    plain: Tensor | None = None  # the result of ``words``, where it is the tensor's own memory


class Comparison(Protocol):
    """Some pages of one device at two times."""

    def names(self, *, waits: bool = True) -> AbstractSet[str] | None:
        """Name the tensors whose segments differ; None if the device has not reported and is not waited for."""
        ...


class Fingerprint(Protocol):
    """Some pages of one device at one time."""

    def compared(self) -> Comparison:
        """Read the same pages again and compare; devices are not waited for."""
        ...


class Pages(Protocol):
    """The segments that lie on one device, page by page."""

    # Numbers of one page, which is read in one go. A device is kept busy by more of them; a processor's cache is not.
    size: ClassVar[int]

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> Self:
        """Lay segments out; none is longer than a page."""
        ...

    def __len__(self) -> int:
        """Return the number of pages."""
        ...

    def take(self, numbers: Sequence[int]) -> Fingerprint:
        """Compute the fingerprint of some pages; devices are not waited for."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Fingerprints:
    """Takes fingerprints of some tensors, page by page. Holds references to their memory, and copies nothing.

    Guarantee:
        A change that was made without knowing the keys, which are drawn afresh here, leaves the fingerprint as it was
        with probability at most 2**-32: pairs that cancel, permutations, exchanged signs included. On a processor the
        probability is 2**-111; on a device a change of one number (even of its last bit) always shows. Memory is that
        of one page.
    Edge cases: empty tensors and tensors without memory (meta) have nothing to tell; those that cannot be read as bits
    are named in ``unseen``.
    """

    num_pages: int
    unseen: Sequence[str]
    _devices: Sequence[tuple[range, Pages]]  # the numbers of the pages on each device

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Fingerprints:
        """Lay the tensors out on pages."""
        by_device: dict[torch.device, list[Segment]] = {}
        unseen: list[str] = []
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for name, whole in tensors.items():
                for part in _plain(whole):
                    if part.device.type == "meta" or not part.numel():
                        continue
                    try:
                        segments = _segments(name, part, _KINDS.get(part.device.type, DevicePages).size)
                    except (RuntimeError, TypeError, KeyError):  # NotImplementedError is one of the first
                        unseen.append(name)
                        continue
                    by_device.setdefault(part.device, []).extend(segments)
            devices, num_pages = list[tuple[range, Pages]](), 0
            for device, segments in by_device.items():
                pages = _KINDS.get(device.type, DevicePages).of(segments)
                devices.append((range(num_pages, num_pages + len(pages)), pages))
                num_pages += len(pages)
        return cls(num_pages=num_pages, unseen=tuple(dict.fromkeys(unseen)), _devices=devices)

    def take(self, numbers: Sequence[int] | None = None) -> Sequence[Fingerprint]:
        """Compute the fingerprints of some pages, of all by default: one for each device they lie on."""
        found = []
        for places, pages in self._devices:
            wanted = places if numbers is None else [number for number in numbers if number in places]
            if wanted:
                chosen = [number - places.start for number in wanted]
                found.append(pages.take(chosen))
        return found


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
        pages = _by_page(segments, cls.size)
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
                tags.append(tag(nonce, b"", _memory(segment.words()) if memory is None else memory))
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


@dataclass(frozen=True, kw_only=True, eq=False)
class DevicePages:
    """Pages in the memory of a device.

    Guarantee:
        The multipliers are odd, so a change of one word changes its product, and every other change leaves the sum of
        the products as it was for a share of at most 2**-32 of all multipliers.
    """

    size: ClassVar[int] = 1 << 22
    pages: Sequence[Sequence[Segment]]
    _ends: Sequence[Tensor]  # of each page: where its segments end
    _multipliers: Tensor

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> Self:
        """Draw one odd number for each place of the longest page."""
        pages, device = _by_page(segments, cls.size), segments[0].words().device
        lengths = [torch.tensor([segment.length for segment in page]) for page in pages]
        # a generator of their own: torch's is the user's
        source = torch.Generator().manual_seed(secrets.randbits(63))
        longest = max(int(length.sum()) for length in lengths)
        drawn = torch.randint(-(2**63), 2**63 - 1, (longest,), generator=source, dtype=torch.int64)
        ends = [(length.cumsum(0) - 1).to(device) for length in lengths]
        return cls(pages=pages, _ends=ends, _multipliers=drawn.bitwise_or_(1).to(device))

    def __len__(self) -> int:
        return len(self.pages)

    def take(self, numbers: Sequence[int]) -> DeviceFingerprint:
        """Compute one number for each segment."""
        with torch._C.DisableTorchFunction(), torch.no_grad():
            return DeviceFingerprint(self, numbers, torch.cat([self._sums(number) for number in numbers]))

    def _sums(self, number: int) -> Tensor:
        parts = [segment.words() if segment.plain is None else segment.plain for segment in self.pages[number]]
        words = parts[0] if len(parts) == 1 else torch.cat(parts)
        products = words * self._multipliers[: len(words)]
        if len(parts) == 1:
            return products.sum().view(1)
        totals = products.cumsum(0)[self._ends[number]]
        return torch.cat([totals[:1], totals.diff()])


@dataclass(frozen=True, slots=True, eq=False)
class DeviceFingerprint:
    """The sums of some pages; they lie on the device."""

    pages: DevicePages
    numbers: Sequence[int]
    sums: Tensor

    def compared(self) -> DeviceComparison:
        """Compare on the device; the answer is copied beside its work, and read once it is there."""
        now = self.pages.take(self.numbers).sums
        with torch._C.DisableTorchFunction():
            differs, event = self.sums != now, None
            if differs.is_cuda:
                there = torch.empty(differs.shape, dtype=torch.bool, pin_memory=True)
                there.copy_(differs, non_blocking=True)
                differs, event = there, torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record(torch.cuda.current_stream(now.device))
        names = [segment.name for number in self.numbers for segment in self.pages.pages[number]]
        return DeviceComparison(segments=names, differs=differs, event=event)


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceComparison:
    """Two fingerprints of some pages on one device, compared there.

    Attributes:
        segments: The names of the tensors, segment by segment.
        differs: One truth value per segment.
        event: Follows the copy of ``differs`` from a device; None where nothing is waited for.
    """

    segments: Sequence[str]
    differs: Tensor
    event: torch.cuda.Event | None

    def names(self, *, waits: bool = True) -> AbstractSet[str] | None:
        if self.event is not None and not waits and not self.event.query():  # type: ignore[no-untyped-call]
            return None
        if self.event is not None:
            self.event.synchronize()
        with torch._C.DisableTorchFunction():
            if not bool(self.differs.any()):
                return frozenset()
            return {name for name, differ in zip(self.segments, self.differs.tolist(), strict=True) if differ}


_KINDS: Mapping[str, type[Pages]] = {"cpu": HostPages}


def _by_page(segments: Sequence[Segment], size: int) -> list[list[Segment]]:
    pages: list[list[Segment]] = []
    room = 0
    for segment in segments:
        if segment.length > room:
            pages.append([])
            room = size
        pages[-1].append(segment)
        room -= segment.length
    return pages


def _memory(words: Tensor) -> memoryview:
    """Return the bytes of a tensor, which is not kept from being given other memory, as by ``Tensor.numpy``."""
    return memoryview(np.from_dlpack(words)).cast("B")  # type: ignore[arg-type]


def _plain(tensor: Tensor) -> Sequence[Tensor]:
    """Return the tensors that hold the numbers: the inner ones of a wrapper, such as quantised weights."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return (tensor.detach(),)
    names, _ = flatten()
    return [part for name in names for part in _plain(getattr(tensor, name))]


def _segments(name: str, tensor: Tensor, size: int) -> list[Segment]:
    """Cut a tensor into parts of at most one page; a tensor whose memory has gaps is read through a copy."""
    is_plain = not tensor.is_quantized and not tensor.is_neg() and not tensor.is_conj()
    if is_plain and _is_without_gaps(tensor):
        words = _words(tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset()))
        parts = torch.split(words, size)
        return [
            Segment(name=name, words=lambda part=part: part, length=len(part), plain=part)  # type: ignore[misc]
            for part in parts
        ]
    length = len(_copied_words(tensor))
    places = [slice(start, start + size) for start in range(0, length, size)]
    return [
        Segment(
            name=name,
            words=lambda place=place: _copied_words(tensor)[place],  # type: ignore[misc]
            length=min(length, place.stop) - place.start,
        )
        for place in places
    ]


def _is_without_gaps(tensor: Tensor) -> bool:
    """Whether the tensor's numbers fill a piece of memory, each place once, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _copied_words(tensor: Tensor) -> Tensor:
    plain = tensor.int_repr() if tensor.is_quantized else tensor.resolve_conj().resolve_neg()
    return _words(plain.contiguous().view(-1))


def _words(flat: Tensor) -> Tensor:
    """Read the bits of a flat tensor as whole numbers of at most 32 bits.

    With 64 the differences that two exchanged signs make, 2**63 each, would cancel whatever they are multiplied by.
    """
    if flat.is_complex():
        flat = torch.view_as_real(flat).view(-1)
    return flat.view(_WORDS[flat.element_size()])
