"""Fingerprints of a device's memory: sums of products, by torch or by one kernel for all segments of a page."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import logging
import os
import secrets
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from privet.gradients.norms.kernel_warmup import build
from privet.gradients.norms.kernels import Launch, beside
from privet.training.weight_watch.pages import Segment, by_page

_log = logging.getLogger("privet")

# Words that one program of the kernel adds, in blocks.
_BLOCK, _BLOCKS = 1024, 16
_CHUNK = _BLOCK * _BLOCKS


@dataclass(frozen=True, kw_only=True, eq=False)
class DevicePages:
    """Pages in the memory of a device.

    Guarantee:
        The multipliers are odd, so a change of one word changes its product, and every other change leaves the sum of
        the products as it was for a share of at most 2**-32 of all multipliers. Torch and the kernel compute the same
        numbers; a kernel whose first sums are wrong is not used.
    """

    size: ClassVar[int] = 1 << 22
    pages: Sequence[Sequence[Segment]]
    _ends: Sequence[Tensor]  # of each page: where its segments end
    _multipliers: Tensor
    _in_place: InPlace

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> Self:
        """Draw one odd number for each place of the longest page."""
        device = segments[0].words().device
        pages = by_page(sorted(segments, key=lambda segment: not _is_in_place(segment)), cls.size)
        lengths = [torch.tensor([segment.length for segment in page]) for page in pages]
        # a generator of their own: torch's is the user's
        source = torch.Generator().manual_seed(secrets.randbits(63))
        longest = max(int(length.sum()) for length in lengths)
        drawn = torch.randint(-(2**63), 2**63 - 1, (longest,), generator=source, dtype=torch.int64)
        ends = [(length.cumsum(0) - 1).to(device) for length in lengths]
        in_place = InPlace.of([page for page in pages if all(map(_is_in_place, page))], device)
        return cls(pages=pages, _ends=ends, _multipliers=drawn.bitwise_or_(1).to(device), _in_place=in_place)

    def __len__(self) -> int:
        return len(self.pages)

    def take(self, numbers: Sequence[int]) -> DeviceFingerprint:
        """Compute one number for each segment."""
        with torch._C.DisableTorchFunction(), torch.no_grad():
            runs = [[number for _, number in run] for _, run in itertools.groupby(enumerate(numbers), _distance)]
            sums = [part for run in runs for part in self._sums_of(run)]
            return DeviceFingerprint(self, numbers, sums[0] if len(sums) == 1 else torch.cat(sums))

    def _sums_of(self, run: Sequence[int]) -> Sequence[Tensor]:
        """Return the sums of consecutive pages: the kernel's at once, or torch's page by page."""
        if run[-1] < self._in_place.num_pages and kernel_for(self._multipliers.device).is_ready:
            return [self._in_place.sums(run[0], run[-1] + 1, self._multipliers)]
        return [self._sums(number) for number in run]

    def _sums(self, number: int) -> Tensor:
        parts = [segment.words() if segment.plain is None else segment.plain for segment in self.pages[number]]
        words = parts[0] if len(parts) == 1 else torch.cat(parts)
        products = words * self._multipliers[: len(words)]
        if len(parts) == 1:
            return products.sum().view(1)
        totals = products.cumsum(0)[self._ends[number]]
        return torch.cat([totals[:1], totals.diff()])


def _distance(place: tuple[int, int]) -> int:
    """Return what is the same for all of a run of consecutive numbers: each less its index."""
    return place[1] - place[0]


def _is_in_place(segment: Segment) -> bool:
    """Whether the kernel can read the segment where it lies."""
    return segment.plain is not None and segment.plain.dtype == torch.int32


@dataclass(frozen=True, kw_only=True, eq=False)
class InPlace:
    """Where the kernel finds the words of the first pages: it reads them where they lie, all segments in one launch.

    Attributes:
        segments_before: How many segments lie before each of these pages, and at the end how many there are.
        chunks_before: The same of chunks, into which segments are cut: a program of the kernel adds one.
        tables: Of each segment its address, its length and the place of its first word on its page; of each chunk its
            segment and its first word there.
    """

    segments_before: Sequence[int]
    chunks_before: Sequence[int]
    tables: Sequence[Tensor]

    @classmethod
    def of(cls, pages: Sequence[Sequence[Segment]], device: torch.device) -> Self:
        """Lay the tables out on the device; their tensors must be kept alive by whoever asks."""
        segments: list[tuple[int, ...]] = []
        chunks: list[tuple[int, ...]] = []
        segments_before, chunks_before = [0], [0]
        for page in pages:
            place = 0
            for segment in page:
                assert segment.plain is not None
                chunks += [(len(segments), start) for start in range(0, segment.length, _CHUNK)]
                segments.append((segment.plain.data_ptr(), segment.length, place))
                place += segment.length
            segments_before.append(len(segments))
            chunks_before.append(len(chunks))
        columns = [*zip(*segments, strict=True), *zip(*chunks, strict=True)]
        tables = [torch.tensor(column, dtype=torch.int64).to(device) for column in columns]
        return cls(segments_before=segments_before, chunks_before=chunks_before, tables=tables)

    @property
    def num_pages(self) -> int:
        """The number of these pages."""
        return len(self.chunks_before) - 1

    def sums(self, first: int, last: int, multipliers: Tensor) -> Tensor:
        """Return one number for each segment of the pages from ``first`` to before ``last``, by one launch."""
        segment, chunk = self.segments_before[first], self.chunks_before[first]
        sums = multipliers.new_zeros(self.segments_before[last] - segment)
        with beside(sums):
            _kernels().add_products_kernel[(self.chunks_before[last] - chunk,)](
                sums, *self.tables, multipliers, chunk, segment, BLOCK=_BLOCK, BLOCKS=_BLOCKS
            )
        return sums


class Kernel:
    """The kernel on one device; it is built beside whatever else begins a session, and tried once."""

    def __init__(self, device: torch.device) -> None:
        """Begin to build it if there can be one."""
        self._device = device
        is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        self._can_be = importlib.util.find_spec("triton") is not None and (device.type == "cuda" or is_interpreted)
        self._built: Future[None] | None = None
        if self._can_be and not is_interpreted:
            thread = ThreadPoolExecutor(1, "privet-build")
            self._built = thread.submit(_build, device)
            thread.shutdown(wait=False)

    @property
    def is_ready(self) -> bool:
        """Whether the kernel is built, and its sums are those of torch."""
        return self._can_be and (self._built is None or self._built.done()) and self._works

    @functools.cached_property
    def _works(self) -> bool:
        try:
            if _passes_trial(self._device):
                return True
            reason = "its sums are wrong"
        except Exception as error:  # noqa: BLE001 -- compilers fail in many ways, and torch gives the same numbers
            reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        _log.warning("Weights are watched by torch operations, not by a kernel: %s.", reason)
        return False


@functools.cache
def kernel_for(device: torch.device) -> Kernel:
    """Return the kernel of a device."""
    return Kernel(device)


@functools.cache
def _kernels() -> Any:
    # compiled functions live apart so that machines without triton never import it
    from privet.training.weight_watch import _triton_sums

    return _triton_sums


def _build(device: torch.device) -> None:
    """Build the kernel in the one way it is ever launched."""
    arguments = (*[torch.int64] * 7, 0, 0)
    build(Launch(_kernels().add_products_kernel, arguments, {"BLOCK": _BLOCK, "BLOCKS": _BLOCKS}), device)


def _passes_trial(device: torch.device) -> bool:
    """Whether the kernel's sums of some segments on two pages are those of torch."""
    source = torch.Generator().manual_seed(0)  # torch's own is the user's
    words = torch.randint(-(2**31), 2**31 - 1, (3 * _CHUNK,), generator=source, dtype=torch.int32).to(device)
    odd = torch.randint(-(2**63), 2**63 - 1, (len(words),), generator=source, dtype=torch.int64).to(device)
    parts = torch.split(words, [1, _CHUNK + 3, _BLOCK - 1, 2 * _CHUNK - _BLOCK - 3])
    segments = [Segment(name="", words=lambda: words, length=len(part), plain=part) for part in parts]
    in_place = InPlace.of([segments[:3], segments[3:]], device)
    places = (0, 1, _CHUNK + 4, 0)
    pairs = zip(parts, places, strict=True)
    wanted = torch.stack([(part * odd[place : place + len(part)]).sum() for part, place in pairs])
    return torch.equal(in_place.sums(0, 2, odd), wanted) and torch.equal(in_place.sums(1, 2, odd), wanted[3:])


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
