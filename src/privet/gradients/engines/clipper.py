"""Norms, factors and sums of one physical batch: the gradients of a parameter come in, one clipped sum goes out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from privet.gradients.engines.holding import held_factors
from privet.gradients.forms.axis_squares import add_axis_squares
from privet.gradients.forms.derived import Derived
from privet.gradients.forms.layer_sums import add_layer_sums
from privet.gradients.forms.masked import SomeRows, keep_coordinates, keep_rows
from privet.gradients.forms.per_example import Explicit, PerExample, clears_in_place, num_elements, zero_rows
from privet.gradients.forms.rescaling import rescaled
from privet.gradients.norms.planner import Choice, Planner
from privet.gradients.norms.strategies import Squares, square_sums, total_of
from privet.mechanism.clipping import ClippingRule
from privet.mechanism.sums import ClippedSum, PartViews


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Measurement:
    """How the norms of one parameter's gradients are measured: their form and shape, and the strategy."""

    form: type
    shape: Hashable
    choice: Choice


@dataclass(kw_only=True, eq=False)
class SumPlaces(PartViews):
    """The places of the parameters in a sum, and how many small ones are added to in one operation."""

    _indices: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def add(self, sums: Tensor, positions: tuple[int, ...], flat: Tensor) -> None:
        """Add numbers to the parameters at some positions of a sum, one parameter after the other."""
        index = self._indices.get(positions)
        if index is None or index.device != flat.device:
            slices = [self.layout.slices[position] for position in positions]
            index = torch.cat([torch.arange(where.start, where.stop, device=flat.device) for where in slices])
            self._indices[positions] = index
        flat.index_add_(0, index, sums)


class Clipper:
    """Measures, clips and sums the per-example gradients of one physical batch.

    Gradients are taken one parameter at a time, in any order, as soon as they are known; norms are measured at once, so
    that whatever is not needed for the sum can be freed. Small written-out gradients wait and are handled together.
    """

    # Written-out gradients up to this many elements (all examples together) are pooled into one matrix: it saves
    # launches on a device. On a processor copying more than a few takes longer than handling them one by one.
    _POOLED, _POOLED_ON_PROCESSOR = 1 << 21, 1 << 16
    # Without the host's help, examples that are not finite are taken out of factors up to this many elements.
    _SELECTED = 1 << 27

    def __init__(
        self, into: ClippedSum, batch_size: int, planner: Planner, *,
        present: Tensor | None = None, known: Mapping[int, Measurement] = MappingProxyType({}),
        places: SumPlaces | None = None, defers: bool = False, num_present: int | None = None,
    ) -> None:  # fmt: skip
        """Start with nothing taken.

        Args:
            into: Where the clipped sum goes.
            batch_size: The number of examples.
            planner: Chooses how norms are measured.
            present: With it given, other rows are padding and the host is not consulted.
            known: The planner's choices in an earlier batch of the same program, by position; it is not asked again
                for gradients of the same form and shape.
            places: Where the parameters lie in the sum, if sums of the same layout were added to before.
            defers: Whether the caller asks ``is_finite`` in the end, and throws the sum away unless it holds.
            num_present: The rows after so many are padding, and the host is consulted; None if there is no padding.
        """
        self._num_present = num_present
        self._present, self._known, self._defers = present, known, defers
        self.is_finite: Tensor | None = None  # on the device: whether the sum of deferred batches is sound
        self._into, self._planner = into, planner
        self._places = places or SumPlaces(layout=into.layout)
        self._limit = self._POOLED_ON_PROCESSOR if into.flat.device.type == "cpu" else self._POOLED
        self._batch_size = batch_size
        # layers are taken together in plain units, without a mask, one batch after the other
        is_plain = into.frame is None and into.keep is None and into.squares is None
        self.takes_layers = present is None and is_plain
        self._takes_derived = is_plain and into.scatter is None
        self._squares: defaultdict[int, list[Squares]] = defaultdict(list)  # by group
        self._kept: dict[int, PerExample] = {}
        self._layers: list[tuple[Sequence[int], PerExample]] = []  # several parameters' gradients in one form
        self._derived: list[tuple[Sequence[int], Derived]] = []  # those of parameters that a tensor is computed from
        # by group, rows of small written-out gradients with the parameters that share them
        self._small: defaultdict[int, list[tuple[Sequence[int], Tensor]]] = defaultdict(list)
        self._pools: list[_Pool] = []
        self._finished: dict[int, PerExample] | None = None  # all of them, once nothing is taken any more
        self.factors = into.flat.new_zeros(batch_size, into.layout.num_groups)  # the weights of examples in finish()
        self.measured: dict[int, Measurement] = {}
        # whether an example that is not finite would corrupt the sum, because removing it would cost too much
        self.needs_check = False

    def take(self, position: int, part: PerExample, *, is_foreseen: bool = False) -> None:
        """Measure the gradients of the parameter at ``position`` of the layout. Each parameter is taken once.

        ``is_foreseen`` if their form and shape are those of the batch in which the norms were measured as is known.
        """
        given = part
        if self._into.frame is not None:
            part = rescaled(part, self._into.frame.factors[position], self._into.layout.shapes[position])
        if self._into.keep is not None:
            part = self._masked(position, part)
        if isinstance(part, Explicit) and part.gradients.numel() <= self._limit:
            rows_of = part.gradients.reshape(self._batch_size, -1).to(self._into.flat.dtype)
            self._small[self._into.layout.groups[position]].append(((position,), rows_of))
            return
        rows = part if isinstance(part, SomeRows) else None
        part = part.part if isinstance(part, SomeRows) else part
        found = self._known.get(position) if is_foreseen and part is given else None
        if found is None:
            found = self._measurement(position, part, alike=None if rows is None else rows.planned_as)
        self.measured[position] = found
        squares, kept = found.choice.strategy.measure(part)
        self._squares[self._into.layout.groups[position]].append(squares)
        self._kept[position] = kept if rows is None else replace(rows, part=kept)

    def _measurement(self, position: int, part: PerExample, *, alike: Hashable | None = None) -> Measurement:
        """Return how the norms of a parameter's gradients are measured: as before, if form and shape are the same."""
        found, shape = self._known.get(position), part.shape_key
        if alike is not None or found is None or found.form is not type(part) or found.shape != shape:
            found = Measurement(form=type(part), shape=shape, choice=self._planner.choose(part, alike=alike))
        return found

    def take_layers(self, positions: Sequence[int], part: PerExample) -> None:
        """Measure the gradients of several parameters of one shape and one clipping group.

        ``part`` holds those of all examples for the first parameter, then those for the next.
        """
        shape, group = (len(positions), self._batch_size), self._into.layout.groups[positions[0]]
        if isinstance(part, Explicit) and part.gradients.numel() <= self._limit * len(positions):
            rows = part.gradients.reshape(*shape, -1).transpose(0, 1).flatten(1).to(self._into.flat.dtype)
            self._small[group].append((positions, rows))
            return
        found = self._measurement(positions[0], part)
        self.measured.update(dict.fromkeys(positions, found))
        squares, kept = found.choice.strategy.measure(part)
        sizes = None if squares.sizes is None else squares.sizes.view(shape)
        self._squares[group].append(replace(squares, sums=squares.sums.view(shape), sizes=sizes))
        self._layers.append((positions, kept))

    def may_take_derived(self, positions: Sequence[int], part: PerExample, size: int) -> bool:
        """Whether gradients that go back to these parameters through a tensor of this size are taken as they are.

        Small ones are written out and pooled, which takes fewer launches.
        """
        groups = {self._into.layout.groups[position] for position in positions}
        return self._takes_derived and len(groups) == 1 and len(part) * size > self._limit

    def take_derived(self, positions: Sequence[int], part: Derived) -> None:
        """Measure the gradients of several parameters of one clipping group, from those of a tensor computed from them.

        ``may_take_derived`` says whether that can be.
        """
        found = self.measured[positions[0]] = self._measurement(positions[0], part)
        squares, kept = found.choice.strategy.measure(part)
        assert isinstance(kept, Derived), "gradients that are kept go back in the end"
        self._squares[self._into.layout.groups[positions[0]]].append(squares)
        self._derived.append((positions, kept))

    def _masked(self, position: int, part: PerExample) -> PerExample:
        assert self._into.keep is not None
        shape, where, kept = self._into.layout.shapes[position], self._into.layout.slices[position], self._into.kept
        if kept is not None and kept.rows is not None:
            rows = kept.rows[position]
            if rows is None:
                return part
            if not isinstance(part, Explicit):
                return keep_rows(part, rows, shape)
        if kept is None:
            return keep_coordinates(part, self._into.keep[where].to(self._into.flat.dtype).view(shape))
        bits = None if kept.bits is None else kept.bits[where].view(shape)
        return keep_coordinates(part, kept.weights[where].view(shape), bits)

    def weighted_part(self, position: int, weights: Tensor) -> Tensor:
        """Return the sum of one parameter's gradients with these weights instead of the clipping factors. Private."""
        found = self._into.flat.new_zeros(self._into.layout.shapes[position])
        if self._finished is None:
            self._finished = self._parts()
        if position in self._finished:
            self._finished[position].add_weighted_sum(weights, found)
        return found

    def gathered(self, tensors: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Hold the numbers of parameters for the length of the block, where they are not held anyway."""
        return nullcontext() if self._into.scatter is None else self._into.scatter.gathered(tensors)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the sum of all gradients taken, with these weights instead of the clipping factors. Private."""
        layout, total = self._into.layout, torch.zeros_like(self._into.flat)
        for position, part in self._parts().items():
            part.add_weighted_sum(weights, total[layout.slices[position]].view(layout.shapes[position]))
        for positions, derived in self._derived:
            for position, found in zip(positions, derived.sums(weights), strict=True):
                total[layout.slices[position]].view(layout.shapes[position]).add_(found)
        return total

    def finish(self, rule: ClippingRule) -> Tensor:
        """Clip, add the sum to the buffer and return the norms ``[batch, group]``.

        Guarantee:
            As in :meth:`RunningEngine.add_clipped`, for any rule: :func:`held_factors` limits its factors to the bound
            of the sum. Parameters that were never taken contribute zero.
        """
        norms = self._norms()
        if self._into.is_held:
            factors = held_factors(rule, norms, self._into.sensitivity, self._into.layout.num_coordinates)
        else:
            factors = rule.factors(norms)
        self.factors = factors
        if self._present is not None:
            is_cheap = clears_in_place(norms)
            held = [*self._kept.values(), *(part for _, part in self._derived)]
            self.needs_check = not is_cheap and sum(map(num_elements, held)) > self._SELECTED
        bad = self._bad(norms)
        if bad is not None:
            factors = factors.masked_fill(bad.unsqueeze(1), 0)
            if not self.needs_check:
                # zero times NaN is NaN: the contributions themselves must go, not only their weights
                self._kept = {position: part.without(bad) for position, part in self._kept.items()}
                self._layers = [(places, part.without(bad.repeat(len(places)))) for places, part in self._layers]
                self._derived = [(places, part.without(bad)) for places, part in self._derived]
                self._pools = [replace(pool, rows=zero_rows(pool.rows, bad)) for pool in self._pools]
        if self._into.scatter is None:
            self._add(factors)
        else:
            parts = self._parts()
            self._into.scatter.add(partial(self._add_part, parts, factors), self._into.flat)
        if self._into.squares is not None:
            self._add_squares(factors, self._into.squares)
        self._planner.by_parameter = {position: found.choice for position, found in self.measured.items()}
        if self._planner.has_new:
            self._planner.settle(list(self._planner.by_parameter.values()))
        return norms

    def _add_part(self, parts: Mapping[int, PerExample], weights: Tensor, position: int, place: Tensor) -> None:
        """Add the weighted sum of one parameter to its place; nothing if it was never taken."""
        part, layout = parts.get(position), self._into.layout
        if part is not None:
            part.add_weighted_sum(weights[:, layout.groups[position]], place)

    def _add(self, factors: Tensor) -> None:
        """Add the weighted sums of all parameters to the buffer."""
        layout = self._into.layout
        places = self._into.places or self._places.of(self._into.flat)
        for position, part in self._kept.items():
            part.add_weighted_sum(factors[:, layout.groups[position]], places[position])
        for positions, part in self._layers:
            weights = factors[:, layout.groups[positions[0]]]
            add_layer_sums(part, weights, [places[position] for position in positions])
        for positions, derived in self._derived:
            sums_of = derived.sums(factors[:, layout.groups[positions[0]]])
            torch._foreach_add_([places[position] for position in positions], sums_of)
        for pool in self._pools:
            sums = factors[:, pool.group] @ pool.rows
            if self._into.places is None:
                self._places.add(sums, tuple(pool.widths), self._into.flat)
            else:
                apart = [places[position].view(-1) for position in pool.widths]
                torch._foreach_add_(apart, torch.split(sums, list(pool.widths.values())))

    def _add_squares(self, factors: Tensor, into: Tensor) -> None:
        for position, part in self._parts().items():
            weights = factors[:, self._into.layout.groups[position]]
            add_axis_squares(part, weights, position, self._into.layout, into)

    def _bad(self, norms: Tensor) -> Tensor | None:
        """Return the examples to leave out, or None if there are none. Asking on the host waits for the device."""
        if self._present is not None:
            # roots of finite squares are far from overflow, so their sum is finite if each of them is
            total = norms[:, 0] if norms.shape[1] == 1 else norms.sum(1)
            return (total < math.inf).logical_and_(self._present).logical_not_()
        total = norms.sum()  # one number: not finite if any norm is not
        if self._defers:
            self.is_finite = total.isfinite()
            return None
        bad = None if math.isfinite(float(total)) else norms.isfinite().all(1).logical_not_()
        if self._num_present is not None and self._num_present < len(norms):
            bad = torch.zeros(len(norms), dtype=torch.bool, device=norms.device) if bad is None else bad
            bad[self._num_present :] = True
        return bad

    def _norms(self) -> Tensor:
        """Join the small gradients of each group into one matrix, and return the norms of all ``[batch, group]``."""
        totals = []
        for group in range(self._into.layout.num_groups):
            if small := self._small.pop(group, None):
                rows = torch.cat([part for _, part in small], 1)
                self._squares[group].append(Squares(sums=square_sums(rows)))
                widths = {place: part.shape[1] // len(places) for places, part in small for place in places}
                self._pools.append(_Pool(group=group, widths=widths, rows=rows))
            squares = self._squares.get(group)
            totals.append(total_of(squares) if squares else self._into.flat.new_zeros(self._batch_size))
        return torch.stack(totals, 1).sqrt_()

    def _parts(self) -> dict[int, PerExample]:
        """Return the gradients of every parameter, by position."""
        parts, size = dict(self._kept), self._batch_size
        for positions, part in self._layers:
            parts.update({place: part[i * size : (i + 1) * size] for i, place in enumerate(positions)})
        for pool in self._pools:
            rows = torch.split(pool.rows, list(pool.widths.values()), 1)
            parts.update(zip(pool.widths, [Explicit(gradients=part) for part in rows], strict=True))
        return parts


@dataclass(frozen=True, kw_only=True, eq=False)
class _Pool:
    """Small written-out gradients of one group side by side: ``rows [batch, sum of widths]``, widths by position."""

    group: int
    widths: Mapping[int, int]
    rows: Tensor
