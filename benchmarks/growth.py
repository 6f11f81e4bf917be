"""Growth of throughput and memory with the logical batch, the sequence length and the width."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from benchmarks.clocks import Clock
from benchmarks.contenders import Contender, Settings
from benchmarks.machine import Precision
from benchmarks.measure import Plan, measure
from benchmarks.models import WORKLOADS, Scale, Size, Tokens, Workload
from benchmarks.networks import LanguageModel
from benchmarks.records import Record, Row

_HEAD_WIDTH = 64


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measurement on an axis."""

    size: Size
    logical_batch: int
    physical_batch: int


class Axis(Protocol):
    """One growing quantity."""

    @property
    def name(self) -> str:
        """Name of the quantity."""
        ...

    @property
    def values(self) -> Sequence[int]:
        """Its values, in growing order."""
        ...

    def point(self, value: int) -> Point:
        """Return the measurement for a value."""
        ...


@dataclass(frozen=True, kw_only=True)
class LogicalBatch:
    """The logical batch of the tanh CNN grows while the physical batch stays."""

    size: Size
    values: Sequence[int]
    name: str = "logical batch"

    def point(self, value: int) -> Point:
        """Use the model's own physical batch; a smaller logical batch is one physical batch."""
        return Point(size=self.size, logical_batch=value, physical_batch=min(value, self.size.batch_size))


@dataclass(frozen=True, kw_only=True)
class SequenceLength:
    """The context of a language model grows while the number of tokens per step stays."""

    tokens_per_step: int
    width: int
    num_blocks: int
    vocabulary: int
    values: Sequence[int]
    name: str = "sequence length"

    def point(self, value: int) -> Point:
        """Take as many sequences as the tokens allow, and at least one."""
        batch = max(1, self.tokens_per_step // value)
        size = _language_model(self.width, self.num_blocks, self.vocabulary, value, batch)
        return Point(size=size, logical_batch=batch, physical_batch=batch)


@dataclass(frozen=True, kw_only=True)
class Width:
    """The width of a language model of two blocks grows; parameters grow with its square."""

    batch_size: int
    length: int
    vocabulary: int
    values: Sequence[int]
    num_blocks: int = 2
    name: str = "width"

    def point(self, value: int) -> Point:
        """Keep the batch and the context."""
        size = _language_model(value, self.num_blocks, self.vocabulary, self.length, self.batch_size)
        return Point(size=size, logical_batch=self.batch_size, physical_batch=self.batch_size)


def _language_model(width: int, num_blocks: int, vocabulary: int, length: int, batch_size: int) -> Size:
    def build() -> LanguageModel:
        return LanguageModel(
            width=width,
            num_heads=max(1, width // _HEAD_WIDTH),
            num_blocks=num_blocks,
            vocabulary=vocabulary,
            max_length=length,
        )

    return Size(build=build, data=Tokens(length=length, vocabulary=vocabulary), batch_size=batch_size)


def axes(scale: Scale) -> tuple[Axis, ...]:
    """Return the three axes at a scale; those for a processor end before steps take minutes."""
    network = WORKLOADS["dpcnn"].sizes[scale]
    if scale is Scale.ACCELERATOR:
        return (
            LogicalBatch(size=network, values=_doubling(32, 32_768)),
            SequenceLength(
                tokens_per_step=16_384, width=768, num_blocks=4, vocabulary=8192, values=_doubling(128, 4096)
            ),
            Width(batch_size=16, length=256, vocabulary=8192, values=_doubling(256, 4096)),
        )
    if scale is Scale.PROCESSOR:
        return (
            LogicalBatch(size=network, values=_doubling(32, 1024)),
            SequenceLength(tokens_per_step=4096, width=128, num_blocks=2, vocabulary=1024, values=_doubling(128, 4096)),
            Width(batch_size=2, length=64, vocabulary=1024, values=_doubling(256, 1024)),
        )
    return (
        LogicalBatch(size=network, values=(5, 10)),
        SequenceLength(tokens_per_step=16, width=16, num_blocks=1, vocabulary=31, values=(4,)),
        Width(batch_size=2, length=4, vocabulary=31, values=(16,)),
    )


def _doubling(first: int, last: int) -> tuple[int, ...]:
    values = [first]
    while values[-1] * 2 <= last:
        values.append(values[-1] * 2)
    return tuple(values)


def grow(
    axis: Axis,
    contenders: Sequence[Contender],
    *,
    device: torch.device,
    precision: Precision,
    clock: Clock,
    plan: Plan,
) -> Iterator[tuple[Row, ...]]:
    """Yield the rows of one value after another; contenders are interleaved at every value."""
    for value in axis.values:
        point = axis.point(value)
        rows = measure(
            Workload(name=f"{axis.name} {value}", description="", sizes={}),
            point.size,
            contenders,
            device=device,
            settings=Settings(logical_batch=point.logical_batch, autocast=precision.autocast),
            precision=precision,
            clock=clock,
            plan=replace(plan, physical_batch=point.physical_batch),
        )
        yield tuple(replace(row, axis=axis.name, value=value) for row in rows)


def _megabytes(row: Row) -> float:
    return (row.peak_bytes or 0) / 1e6


_PANELS: Sequence[tuple[str, Callable[[Row], float]]] = (
    ("seconds per step", lambda row: row.median_seconds),
    ("examples per second", lambda row: row.samples_per_second),
    ("peak MB of one step", _megabytes),
)


def draw(record: Record, file: Path) -> None:
    """Draw time, throughput and memory, one column per axis, into an SVG or PNG file."""
    # Imported here: figures are the only part of the benchmark that needs matplotlib.
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row.axis for row in record.rows if row.axis))
    figure = Figure(figsize=(4.2 * max(1, len(names)), 9.0), layout="constrained")
    grid = figure.subplots(len(_PANELS), max(1, len(names)), squeeze=False, sharex="col")
    for column, name in enumerate(names):
        rows = [row for row in record.rows if row.axis == name and row.ran]
        for place, (label, measure_of) in enumerate(_PANELS):
            panel = grid[place][column]
            for contender in dict.fromkeys(row.contender for row in rows):
                line = [row for row in rows if row.contender == contender]
                panel.plot([row.value for row in line], [measure_of(row) for row in line], marker="o", label=contender)
            panel.set_xscale("log", base=2)
            if measure_of is _megabytes:
                panel.set_ylim(bottom=0)
            else:
                panel.set_yscale("log")
            panel.set_ylabel(label)
            panel.grid(visible=True, alpha=0.3)
        grid[-1][column].set_xlabel(name)
    if names:
        grid[0][0].legend()
    figure.suptitle(str(record.environment.get("device", "")))
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
