"""How much memory the wait for the clipping factors may take, beside what plain training holds.

Until all norms are known, every layer keeps either the two factors of its gradients or the gradients themselves. The
second is often faster and sometimes larger. A budget settles this for all layers together, from what each strategy was
measured to take. It is a performance knob: no choice changes a result beyond rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from privet import checks
from privet.gradients.norms.strategies import Strategy


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What one strategy cost on one shape.

    Attributes:
        strategy: The strategy that was timed.
        seconds: Time for norms and weighted sum; infinite if the strategy failed.
        kept_bytes: What it keeps until the factors are known.
        failure: Why it cannot be used, if so.
    """

    strategy: Strategy
    seconds: float
    kept_bytes: float
    failure: str | None = None


@dataclass(frozen=True, kw_only=True)
class Layers:
    """The layers of one backward pass, with times and bytes of one example.

    Attributes:
        order: For each layer, in the order in which gradients reach them, the index of its shape.
        options: For each shape, what can be used; at least one.
        factor_bytes: For each shape, the size of the two factors of its gradients.
        plain_bytes: What plain training holds when its backward pass begins.
        on_processor: Whether the memory is a processor's.
    """

    order: Sequence[int]
    options: Sequence[Sequence[Tried]]
    factor_bytes: Sequence[float]
    plain_bytes: float
    on_processor: bool = False

    def peak(self, chosen: Sequence[Tried]) -> tuple[float, int]:
        """Predict the largest amount held at once, and the layer after which it is.

        As the backward pass goes down, what the forward pass saved is let go, in proportion to the layers' factors, and
        what is kept for the sums adds up. The peak is at least ``plain_bytes``.
        """
        total = sum(self.factor_bytes[shape] for shape in self.order) or 1.0
        held, peak, where = self.plain_bytes, self.plain_bytes, -1
        for place, shape in enumerate(self.order):
            held += chosen[shape].kept_bytes - self.plain_bytes * self.factor_bytes[shape] / total
            if held > peak:
                peak, where = held, place
        return peak, where


class Budget(Protocol):
    """A choice between time and memory."""

    def choose(self, layers: Layers) -> Sequence[Tried]:
        """Return one option for each shape."""
        ...


@dataclass(frozen=True, kw_only=True)
class Fast:
    """The fastest strategy for every layer, whatever it keeps."""

    def choose(self, layers: Layers) -> Sequence[Tried]:
        """Take the least time."""
        return [fastest(options) for options in layers.options]


@dataclass(frozen=True, kw_only=True)
class Lean:
    """The fastest strategy that keeps no more than the factors: gradients are stored only where that frees memory."""

    def choose(self, layers: Layers) -> Sequence[Tried]:
        """Take the least time among those that are small enough."""
        both = zip(layers.options, layers.factor_bytes, strict=True)
        return [fastest_within(options, limit) for options, limit in both]


@dataclass(frozen=True, kw_only=True)
class Balanced:
    """The fastest strategies whose predicted peak stays within a multiple of plain training's.

    Starting from the fastest, layers are exchanged one by one for something smaller, the one first that loses the least
    time for each byte. Where the multiple cannot be reached the result is the smallest there is up to that point of the
    pass.

    Attributes:
        share: Peak over what plain training holds; 1 or more.
        processor_share: The same on a processor, which has more memory for each unit of speed than a device.
    """

    share: float = 1.25
    processor_share: float = 2.0

    def __post_init__(self) -> None:
        """Refuse a share that nothing can reach."""
        for name in ("share", "processor_share"):
            object.__setattr__(self, name, max(1.0, checks.positive(name, getattr(self, name))))

    def choose(self, layers: Layers) -> Sequence[Tried]:
        """Exchange until the peak is low enough or nothing smaller is left."""
        chosen = list(Fast().choose(layers))
        share = self.processor_share if layers.on_processor else self.share
        while True:
            peak, where = layers.peak(chosen)
            if peak <= share * layers.plain_bytes:
                return chosen
            best = min(_exchanges(layers, chosen, where), default=None, key=lambda found: found[0])
            if best is None:
                return chosen
            _, shape, option = best
            chosen[shape] = option


def _exchanges(layers: Layers, chosen: Sequence[Tried], where: int) -> Iterator[tuple[float, int, Tried]]:
    """Yield price, shape and option of everything that would lower what is held after the layer ``where``."""
    for shape in sorted(set(layers.order[: where + 1])):
        now = chosen[shape]
        for option in layers.options[shape]:
            freed = now.kept_bytes - option.kept_bytes
            if freed > 0 and math.isfinite(option.seconds):
                yield (option.seconds - now.seconds) / freed, shape, option


def fastest(options: Sequence[Tried]) -> Tried:
    """Return the option of least time; the first of several."""
    return min(options, key=lambda option: option.seconds)


def fastest_within(options: Sequence[Tried], limit: float) -> Tried:
    """Return the fastest option that keeps no more than ``limit`` bytes, or the smallest if none does."""
    usable = [option for option in options if math.isfinite(option.seconds)] or options
    small = [option for option in usable if option.kept_bytes <= limit]
    return fastest(small) if small else min(usable, key=lambda option: option.kept_bytes)
