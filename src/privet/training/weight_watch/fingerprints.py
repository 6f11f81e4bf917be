"""Fingerprints of tensors: whole numbers, computed where the tensors lie, that tell of every changed bit.

A sum of floats does not see two changes that cancel, a permutation or a sign; it rounds. Here the bits of a tensor are
read as whole numbers of at most 32 bits, each is multiplied by a random odd number that belongs to its place, and the
products are added modulo 2**64. Nothing is rounded, so the order of the addition makes no difference.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Numbers of one page, which is read in one go. A device is kept busy by more of them; a processor's cache is not.
_PAGE, _PAGE_ON_DEVICE = 1 << 18, 1 << 22
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}


@dataclass(frozen=True, kw_only=True, eq=False)
class _Segment:
    """A part of one tensor that lies on one page."""

    name: str
    words: Callable[[], Tensor]
    length: int
    plain: Tensor | None = None  # the result of ``words``, where it is the tensor's own memory


@dataclass(frozen=True, kw_only=True, eq=False)
class _Page:
    """Segments that are looked at in one go."""

    segments: Sequence[_Segment]
    ends: Tensor

    def sums(self, multipliers: Tensor) -> Tensor:
        """Return one number for each segment."""
        parts = [segment.words() if segment.plain is None else segment.plain for segment in self.segments]
        if len(parts) == 1:
            return _total(parts[0], multipliers).view(1)
        words = torch.cat(parts)
        totals = (words * multipliers[: len(words)]).cumsum(0)[self.ends]
        return torch.cat([totals[:1], totals.diff()])


@dataclass(frozen=True, kw_only=True, eq=False)
class Fingerprint:
    """Sums of some pages; they lie on the devices of the tensors."""

    pages: Sequence[int]
    sums: Mapping[torch.device, Tensor]


@dataclass(kw_only=True, eq=False)
class Fingerprints:
    """Takes fingerprints of some tensors, page by page. Holds references to their memory, and copies nothing.

    Guarantee:
        A change of one number (even of its last bit) always changes the fingerprint. Any other change that was made
        without knowing the multipliers, which are drawn afresh here, leaves it as it was with probability at most
        2**-32: pairs that cancel, permutations, exchanged signs included. Memory is that of one page.
    Edge cases: empty tensors and tensors without memory (meta) have nothing to tell; those that cannot be read as bits
    are named in ``unseen``.
    """

    pages: Sequence[_Page]
    unseen: Sequence[str]
    _devices: Sequence[torch.device]
    _multipliers: Mapping[torch.device, Tensor]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Fingerprints:
        """Lay the tensors out on pages."""
        by_device: dict[torch.device, list[_Segment]] = {}
        unseen: list[str] = []
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for name, whole in tensors.items():
                for part in _plain(whole):
                    if part.device.type == "meta" or not part.numel():
                        continue
                    try:
                        segments = _segments(name, part)
                    except (RuntimeError, TypeError, KeyError):  # NotImplementedError is one of the first
                        unseen.append(name)
                        continue
                    by_device.setdefault(part.device, []).extend(segments)
            pages, devices, multipliers = [], [], {}
            for device, segments in by_device.items():
                made = _pages(segments, device)
                pages += made
                devices += [device] * len(made)
                multipliers[device] = _multipliers(made, device)
        names = tuple(dict.fromkeys(unseen))
        return cls(pages=pages, unseen=names, _devices=devices, _multipliers=multipliers)

    def take(self, pages: Sequence[int] | None = None) -> Fingerprint:
        """Compute the fingerprint of some pages, of all by default; devices are not waited for."""
        chosen = range(len(self.pages)) if pages is None else pages
        found: dict[torch.device, list[Tensor]] = {}
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for number in chosen:
                device = self._devices[number]
                found.setdefault(device, []).append(self.pages[number].sums(self._multipliers[device]))
            return Fingerprint(pages=chosen, sums=dict(zip(found, map(torch.cat, found.values()), strict=True)))

    def compared_with(self, accepted: Fingerprint) -> list[Comparison]:
        """Take the fingerprint of the same pages again; return one comparison per device, which is not waited for."""
        now, found = self.take(accepted.pages), []
        with torch._C.DisableTorchFunction():
            for device, sums in accepted.sums.items():
                differs, event = sums != now.sums[device], None
                if device.type == "cuda":
                    # copied beside the work of the device and read once it is there
                    there = torch.empty(differs.shape, dtype=torch.bool, pin_memory=True)
                    there.copy_(differs, non_blocking=True)
                    differs, event = there, torch.cuda.Event()  # type: ignore[no-untyped-call]
                    event.record(torch.cuda.current_stream(device))
                pages = [self.pages[number] for number in now.pages if self._devices[number] == device]
                found.append(Comparison(pages=pages, differs=differs, event=event))
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Two fingerprints of some pages on one device, compared there.

    Attributes:
        pages: The pages.
        differs: One truth value per segment.
        event: Follows the copy of ``differs`` from a device; None where nothing is waited for.
    """

    pages: Sequence[_Page]
    differs: Tensor
    event: torch.cuda.Event | None

    def names(self, *, waits: bool = True) -> set[str] | None:
        """Name the tensors whose segments differ; None if the device has not reported and is not waited for."""
        if self.event is not None and not waits and not self.event.query():  # type: ignore[no-untyped-call]
            return None
        if self.event is not None:
            self.event.synchronize()
        with torch._C.DisableTorchFunction():
            if not bool(self.differs.any()):
                return set()
            names = [segment.name for page in self.pages for segment in page.segments]
            return {name for name, differ in zip(names, self.differs.tolist(), strict=True) if differ}


def _multipliers(pages: Sequence[_Page], device: torch.device) -> Tensor:
    """Draw one odd number for each place of the longest page."""
    longest = max(sum(segment.length for segment in page.segments) for page in pages)
    # a generator of their own: torch's is the user's
    source = torch.Generator().manual_seed(secrets.randbits(63))
    drawn = torch.randint(-(2**63), 2**63 - 1, (longest,), generator=source, dtype=torch.int64)
    return drawn.bitwise_or_(1).to(device)


def _total(words: Tensor, multipliers: Tensor) -> Tensor:
    if words.device.type == "cpu":
        return torch.dot(words.to(torch.int64), multipliers[: len(words)])
    return (words * multipliers[: len(words)]).sum()


def _plain(tensor: Tensor) -> Sequence[Tensor]:
    """Return the tensors that hold the numbers: the inner ones of a wrapper, such as quantised weights."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return (tensor.detach(),)
    names, _ = flatten()
    return [part for name in names for part in _plain(getattr(tensor, name))]


def _segments(name: str, tensor: Tensor) -> list[_Segment]:
    """Cut a tensor into parts of at most one page; a tensor whose memory has gaps is read through a copy."""
    size = _PAGE if tensor.device.type == "cpu" else _PAGE_ON_DEVICE
    is_plain = not tensor.is_quantized and not tensor.is_neg() and not tensor.is_conj()
    if is_plain and _is_without_gaps(tensor):
        words = _words(tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset()))
        parts = torch.split(words, size)
        return [
            _Segment(name=name, words=lambda part=part: part, length=len(part), plain=part)  # type: ignore[misc]
            for part in parts
        ]
    length = len(_copied_words(tensor))
    places = [slice(start, start + size) for start in range(0, length, size)]
    return [
        _Segment(
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


def _pages(segments: Sequence[_Segment], device: torch.device) -> list[_Page]:
    size = _PAGE if device.type == "cpu" else _PAGE_ON_DEVICE
    groups: list[list[_Segment]] = []
    room = 0
    for segment in segments:
        if segment.length > room:
            groups.append([])
            room = size
        groups[-1].append(segment)
        room -= segment.length
    return [_Page(segments=group, ends=_ends(group, device)) for group in groups]


def _ends(group: Sequence[_Segment], device: torch.device) -> Tensor:
    lengths = torch.tensor([segment.length for segment in group])
    return (lengths.cumsum(0) - 1).to(device)
