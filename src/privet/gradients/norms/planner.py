"""Chooses the strategy that measures the norms of each layer on this machine.

The planner tries the strategies that fit a layer's shape once, on the first physical batch, and keeps the fastest that
a budget of memory allows. Nothing about the data enters the choice but its shape, and no choice changes a result beyond
rounding.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from privet.gradients.forms.derived import DERIVED, Derived, DerivedWritten
from privet.gradients.forms.masked import MASKED, Masked, MaskedWritten
from privet.gradients.forms.per_example import Convolution, Explicit, Lookup, Outer, PerExample, TiedTable, num_elements
from privet.gradients.forms.writing import ByKernel
from privet.gradients.norms.budgets import Balanced, Budget, Layers, Tried, fastest_within
from privet.gradients.norms.conv_strategies import (
    ConvKernel,
    GroupedNormOnly,
    GroupedStore,
    PatchGram,
    PixelGram,
    ShiftedStore,
    Unfolded,
)
from privet.gradients.norms.known_times import KnownTimes
from privet.gradients.norms.strategies import (
    Gram,
    GramKernel,
    NormOnly,
    RankOne,
    RowSums,
    SameRow,
    Store,
    Strategy,
    TableGram,
    Written,
    parameter_size,
)
from privet.gradients.norms.timing import can_run, compared, is_on_processor, num_bytes

# Gradients that take this many times the work of products between positions are not written out even to time them.
_HOPELESS = 16

STRATEGIES: Mapping[type, Sequence[Strategy]] = {
    Explicit: (Written(),),
    Outer: (
        RankOne(),
        Gram(),
        Gram(halvings=1),
        Gram(halvings=2),
        Store(),
        NormOnly(),
        GramKernel(block=64),
        GramKernel(block=128),
    ),
    Lookup: (SameRow(), RowSums()),
    TiedTable: (TableGram(), Store(), NormOnly()),
    Masked: MASKED,
    Derived: DERIVED,
    Convolution: (
        PixelGram(),
        PixelGram(sums_patches=True),
        PatchGram(),
        ConvKernel(store=True),
        ConvKernel(store=False),
        ShiftedStore(),
        GroupedStore(),
        GroupedNormOnly(),
        Unfolded(by=Store(), keeps_convolution=False),
        Unfolded(by=Gram(), keeps_convolution=True),
    ),
}
"""Strategies for each form; where several fit, they are timed."""


def _is_kernel(strategy: Strategy) -> bool:
    by = strategy.by if isinstance(strategy, MaskedWritten | DerivedWritten) else None
    return isinstance(strategy, GramKernel | ConvKernel) or isinstance(by, ByKernel)


TRACEABLE: Mapping[type, Sequence[Strategy]] = {
    form: tuple(strategy for strategy in strategies if not _is_kernel(strategy))
    for form, strategies in STRATEGIES.items()
}
"""Strategies made of tensor operations alone."""


@dataclass(kw_only=True)
class Choice:
    """The strategy that is used for one shape, and the measurements behind it.

    Attributes:
        strategy: The strategy in use.
        num_examples: Size of the physical batch that it was chosen for.
        tried: The measurements; times and bytes are those of ``num_examples``. The time of a single candidate is NaN,
            unless the planner times all.
        factor_bytes: Size of the factors of ``num_examples`` gradients.
        on_processor: Whether they lie in a processor's memory.
    """

    strategy: Strategy
    num_examples: int
    tried: Sequence[Tried]
    factor_bytes: float
    on_processor: bool = False
    _fitting: Hashable = None

    def still_fits(self, part: PerExample, shape: Hashable) -> bool:
        """Whether the strategy in use fits gradients of this shape; checked again only if something differs."""
        asked = (id(self.strategy), len(part), shape)
        if self._fitting != asked:
            self._fitting = asked if self.strategy.fits(part) else None
        return self._fitting is not None

    @property
    def used(self) -> Tried:
        """The measurement of the strategy in use."""
        return next(each for each in self.tried if each.strategy == self.strategy)

    def per_example(self) -> Sequence[Tried]:
        """Return the measurements divided by the number of examples."""
        size = self.num_examples
        return [replace(each, seconds=each.seconds / size, kept_bytes=each.kept_bytes / size) for each in self.tried]


@dataclass(kw_only=True)
class Planner:
    """Chooses a strategy per layer shape by timing, once, within a budget of memory.

    Strategies round differently. Under ``torch.use_deterministic_algorithms`` they are therefore chosen by the sizes
    alone, so that equal runs end with equal bits.

    Attributes:
        strategies: The candidates for each form.
        budget: How much memory may be spent on speed.
        times_all: Time a strategy also where it is the only one, for a report.
        counts_launches: Whether launching counts on a device; it does not where recorded graphs are replayed.
        known: Times that earlier processes measured; None to measure everything.
        plain_bytes: Memory per example that plain training holds when its backward pass begins; None estimates it by
            the factors of all layers.
        by_parameter: The choices of the last physical batch, by the parameter's position in the layout.
        predicted_peak: Memory predicted at the peak, over ``plain_bytes``; None before the first batch.
        revision: Changes whenever a choice may have changed.
        has_new: Whether shapes were met that :meth:`settle` has not seen.
    """

    strategies: Mapping[type, Sequence[Strategy]] = field(default_factory=lambda: STRATEGIES)
    budget: Budget = field(default_factory=Balanced)
    times_all: bool = False
    counts_launches: bool = True
    known: KnownTimes | None = None
    plain_bytes: float | None = None
    by_parameter: Mapping[int, Choice] = field(default_factory=dict)
    predicted_peak: float | None = None
    revision: int = 0
    has_new: bool = False
    _choices: dict[Hashable, Choice] = field(default_factory=dict)

    @property
    def chosen(self) -> Mapping[Hashable, Strategy]:
        """The strategy in use for each shape seen."""
        return {key: choice.strategy for key, choice in self._choices.items()}

    def choose(self, part: PerExample, *, alike: Hashable | None = None) -> Choice:
        """Return how to measure norms of this form; time what fits first if the shape is new or the batch much larger.

        Shapes that change from step to step share a choice if they are given the same ``alike``.
        """
        shape = part.shape_key
        key = (type(part), shape if alike is None else alike)
        choice = self._choices.get(key)
        # a batch larger than planned for may be over a memory limit
        if choice is None or len(part) > 2 * choice.num_examples or not choice.still_fits(part, shape):
            choice = self._choices[key] = self._examine(part)
            self.has_new = True
        return choice

    def options(self, part: PerExample) -> Sequence[Strategy]:
        """Return the strategies that fit a shape and are worth timing; at least one."""
        options = _promising([strategy for strategy in self.strategies[type(part)] if strategy.fits(part)], part)
        return options[:1] if isinstance(options[0], RankOne) else options  # nothing is cheaper than two lengths

    def _examine(self, part: PerExample) -> Choice:
        """Time the candidates; until the whole batch is known, use one that keeps no more than the factors."""
        options, factor_bytes = self.options(part), num_bytes(part)
        if torch.are_deterministic_algorithms_enabled():
            options = _by_size(options, part)
        if len(options) == 1 and not self.times_all:
            tried = [Tried(strategy=options[0], seconds=math.nan, kept_bytes=factor_bytes)]
        else:
            tried = self._compared(options, part)
        strategy = fastest_within(tried, factor_bytes).strategy
        return Choice(
            strategy=strategy,
            num_examples=len(part),
            tried=tried,
            factor_bytes=factor_bytes,
            on_processor=is_on_processor(part),
        )

    def _compared(self, options: Sequence[Strategy], part: PerExample) -> list[Tried]:
        """Time the candidates, unless an earlier process did that on the same device."""
        if self.known is None:
            return compared(options, part, counts_launches=self.counts_launches)
        found = self.known.tried(
            options, part, counts_launches=self.counts_launches, works=lambda strategy: can_run(strategy, part)
        )
        if found is None:
            found = compared(options, part, counts_launches=self.counts_launches)
            self.known.note(found, part, counts_launches=self.counts_launches)
        return found

    def settle(self, used: Sequence[Choice]) -> None:
        """Choose anew for all layers of a physical batch together; ``used`` are their choices, in order."""
        self.has_new, self.revision = False, self.revision + 1
        if self.known is not None:
            self.known.save()
        found = list({id(choice): choice for choice in used}.values())
        index = {id(choice): place for place, choice in enumerate(found)}
        order = [index[id(choice)] for choice in used]
        factors = [choice.factor_bytes / choice.num_examples for choice in found]
        plain = sum(factors[shape] for shape in order) if self.plain_bytes is None else self.plain_bytes
        options = [choice.per_example() for choice in found]
        on_processor = all(choice.on_processor for choice in found)
        layers = Layers(
            order=order, options=options, factor_bytes=factors, plain_bytes=plain, on_processor=on_processor
        )
        chosen = self.budget.choose(layers)
        for choice, option in zip(found, chosen, strict=True):
            choice.strategy = option.strategy
        self.predicted_peak = layers.peak(chosen)[0] / plain if plain else 1.0


def _promising(options: Sequence[Strategy], part: PerExample) -> Sequence[Strategy]:
    """Drop strategies that write gradients out where these are many times larger than their factors.

    On a processor, also drop strategies that write gradients out without keeping them where they can be kept: they are
    never faster, and another candidate takes less memory. Every candidate delays the first step.
    """
    if is_on_processor(part) and any(isinstance(strategy, Store) for strategy in options):
        kept = [strategy for strategy in options if not isinstance(strategy, NormOnly)]
        small = parameter_size(part) <= num_elements(part) // len(part)
        options = kept if small or not all(map(_writes_out, kept)) else options
    widths = _length_and_widths(part)
    if widths is None or math.prod(widths[1:]) <= _HOPELESS * widths[0] * sum(widths[1:]):
        return options
    return [strategy for strategy in options if not _writes_out(strategy)] or options


def _by_size(options: Sequence[Strategy], part: PerExample) -> Sequence[Strategy]:
    """Return the first strategy that runs; first come those that write gradients out if these are the smaller ones.

    What it keeps is then no larger than the factors, which is what every budget allows.
    """
    widths = _length_and_widths(part)
    writes_out = widths is not None and math.prod(widths[1:]) <= widths[0] * sum(widths[1:])
    ordered = sorted(options, key=lambda strategy: _writes_out(strategy) != writes_out)
    return [next((strategy for strategy in ordered[:-1] if can_run(strategy, part)), ordered[-1])]


def _length_and_widths(part: PerExample) -> tuple[int, int, int] | None:
    """Return how many outer products an example's gradient sums, and the widths of its factors, if it does."""
    match part:
        case Outer():
            return part.inputs.shape[1], part.inputs.shape[2], part.out_grads.shape[2]
        case Convolution() if part.geometry.groups == 1:
            weight = part.geometry.weight_shape
            return math.prod(part.out_grads.shape[2:]), math.prod(weight[1:]), weight[0]
        case _:
            return None


def _writes_out(strategy: Strategy) -> bool:
    return isinstance(strategy.by if isinstance(strategy, Unfolded) else strategy, Store | NormOnly)
