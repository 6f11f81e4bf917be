"""Sums over all ranks of which each rank keeps its part: reduced and scattered part of a model by part."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from privet.gradients.sharding.fsdp import ShardedModel
from privet.gradients.sharding.local import local_part
from privet.mechanism.layout import Layout, Run, Share

# Newer versions of torch have another name for it.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
# Parameters are reduced together up to so many numbers: fewer messages, and little memory besides the sum.
_TOGETHER = 1 << 24


@dataclass(frozen=True, kw_only=True, eq=False)
class _Place:
    """One parameter of the layout: its whole shape, its rows on each rank, and where this rank's lie in its part.

    Attributes:
        position: In the layout.
        shape: Of the whole.
        most_rows: The rows of the ranks that have most; all of them if the parameter is not sharded.
        where: This rank's numbers in its part of the sum.
    """

    position: int
    shape: tuple[int, ...]
    most_rows: int
    where: slice

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return math.prod(self.shape[1:])


class ScatteredSum:
    """The sum of a sharded model's clipped gradients.

    Guarantee:
        ``add`` moves this rank's part of the sum by the sum over all ranks of what they formed, added in the precision
        of the sum, which is single at least. Ranks make the same calls in the same order, for all parameters, so a
        program that leaves some of them out on one rank holds up nobody.

    Attributes:
        share: This rank's coordinates of the whole sum.
        shapes: The shape of this rank's part of each parameter, in the layout's order.
        rows: Which rows of each parameter these are.
        size: How many numbers this rank holds.
    """

    def __init__(self, sharded: ShardedModel, parameters: Sequence[nn.Parameter], layout: Layout) -> None:
        """Find this rank's part of each parameter.

        Args:
            sharded: The model.
            parameters: The shards that the model holds, in the layout's order.
            layout: Of the whole parameters.
        """
        self._sharded, self._group = sharded, sharded.mesh.get_group()
        self._world, rank = sharded.mesh.size(), sharded.mesh.get_local_rank()
        # answers that are known on the host are compared there, where that can be: nobody waits for the device then
        has_cpu = "cpu:" in dist.get_backend_config(self._group)
        self._asks_on = torch.device("cpu") if has_cpu else sharded.device
        self.shapes = tuple(tuple(local_part(value).shape) for value in parameters)
        runs, places, rows, begin = [], [], list[slice](), 0
        for position, (value, shape) in enumerate(zip(parameters, layout.shapes, strict=True)):
            size, first = math.prod(self.shapes[position]), layout.offsets[position]
            most = -(-shape[0] // self._world) if isinstance(value, DTensor) else 0
            first += rank * most * math.prod(shape[1:])
            if size:
                runs.append(Run(start=first, stop=first + size, place=begin))
            where = slice(begin, begin + size)
            rows.append(slice(rank * most, rank * most + self.shapes[position][0]) if most else slice(None))
            places.append(_Place(position=position, shape=shape, most_rows=most, where=where))
            begin += size
        self.share = Share(total=layout.num_coordinates, runs=tuple(runs))
        self.size, self.rows = begin, rows
        groups = [sharded.group_of(value) for value in parameters]
        self._buckets = list(_buckets(places, groups))

    def add(self, form: Callable[[int, Tensor], None], flat: Tensor) -> None:
        """Form and reduce bucket by bucket, so that the memory of one is needed at a time."""
        assert flat.dtype in (torch.float32, torch.float64), "sums are never formed in half precision"
        for bucket in self._buckets:
            self._add_bucket(bucket, form, flat)

    def _add_bucket(self, bucket: Sequence[_Place], form: Callable[[int, Tensor], None], flat: Tensor) -> None:
        if not bucket[0].most_rows:
            self._add_replicated(bucket, form, flat)
            return
        widths = [place.most_rows * place.width for place in bucket]
        sent = flat.new_zeros(self._world, sum(widths))
        for place, columns in zip(bucket, torch.split(sent, widths, 1), strict=True):
            rows = (self._world * place.most_rows, *place.shape[1:])
            # of a single parameter the message is the padded whole itself
            padded = sent.view(rows) if len(bucket) == 1 else flat.new_zeros(rows)
            form(place.position, padded[: place.shape[0]])
            if len(bucket) > 1:
                columns.copy_(padded.view(self._world, -1))
        received = flat.new_empty(sum(widths))
        _reduce_scatter(received, sent.view(-1), op=dist.ReduceOp.SUM, group=self._group)
        for place, numbers in zip(bucket, torch.split(received, widths), strict=True):
            flat[place.where] += numbers[: place.where.stop - place.where.start]

    def _add_replicated(self, bucket: Sequence[_Place], form: Callable[[int, Tensor], None], flat: Tensor) -> None:
        """Add up parameters that FSDP2 was told to leave alone: every rank holds them whole."""
        for place in bucket:
            whole = flat.new_zeros(place.shape)
            form(place.position, whole)
            dist.all_reduce(whole, op=dist.ReduceOp.SUM, group=self._group)
            flat[place.where] += whole.view(-1)

    @contextmanager
    def gathered(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        with self._sharded.gathered(tensors):
            yield

    def is_any(self, flag: bool) -> bool:
        found = torch.tensor([int(flag)], device=self._asks_on)
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self._group)
        return bool(found.item())


def _buckets(places: Sequence[_Place], groups: Sequence[object]) -> Iterator[list[_Place]]:
    """Put parameters together that are gathered together, up to a size; the order is the same on all ranks."""
    by_group: dict[tuple[int, bool], list[_Place]] = {}
    for place, group in zip(places, groups, strict=True):
        by_group.setdefault((id(group), bool(place.most_rows)), []).append(place)
    for members in by_group.values():
        bucket: list[_Place] = []
        size = 0
        for place in members:
            length = math.prod(place.shape)
            if bucket and size + length > _TOGETHER:
                yield bucket
                bucket, size = [], 0
            bucket.append(place)
            size += length
        yield bucket
