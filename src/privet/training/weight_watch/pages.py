"""Segments of tensors, and what pages of them answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

from torch import Tensor


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


def by_page(segments: Sequence[Segment], size: int) -> list[list[Segment]]:
    """Put segments on pages of so many words, in their order; none is longer than a page."""
    pages: list[list[Segment]] = []
    room = 0
    for segment in segments:
        if segment.length > room:
            pages.append([])
            room = size
        pages[-1].append(segment)
        room -= segment.length
    return pages
