"""Fingerprints of tensors: short values, computed where the tensors lie, that tell of every changed bit.

A sum of floats does not see two changes that cancel, a permutation or a sign; it rounds. On a processor the bytes are
hashed under a secret key by GHASH, the tag of AES-GCM, for which processors have instructions. On a device they are
read as whole numbers of at most 32 bits, each is multiplied by a random odd number that belongs to its place, and the
products are added modulo 2**64. Nothing is rounded, so the order of the addition makes no difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from privet.training.weight_watch.device_pages import DevicePages
from privet.training.weight_watch.host_pages import HostPages
from privet.training.weight_watch.pages import Fingerprint, Pages, Segment

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}


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
            chosen = range(len(places)) if numbers is None else [n - places.start for n in numbers if n in places]
            if chosen:
                found.append(pages.take(chosen))
        return found


_KINDS: Mapping[str, type[Pages]] = {"cpu": HostPages}


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
    Short numbers are read several at a time where they fill such words: fewer words take less time.
    """
    if flat.is_complex():
        flat = torch.view_as_real(flat).view(-1)
    own = flat.view(_WORDS[flat.element_size()])
    shares = 4 // own.element_size()
    return own if len(own) % shares or own.storage_offset() % shares else own.view(torch.int32)
