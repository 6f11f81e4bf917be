"""Measures how many seconds and bytes a strategy takes, by running it on the gradients of the first batch."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from privet.gradients.forms.per_example import Explicit, Outer, PerExample
from privet.gradients.norms.budgets import Tried
from privet.gradients.norms.strategies import Strategy

# On a processor the first run uses one of this many slices of the physical batch.
_NUM_SLICES = 8
# A run that takes longer than this is precise enough, and is not repeated on the whole batch.
_LONG = 5e-3
# A first run on a processor that takes less than this may be one in which a library built its code.
_SHORT = 2e-2
# A strategy that is this many times slower than another in its first run is not run again.
_HOPELESS = 3.0
_REPEATS = 3
# On a device so many runs are launched one after the other. A run that takes longer than this counts alone: it hides
# its launches, and its time varies little.
_IN_A_ROW, _LONG_ON_DEVICE = 4, 2e-3
# The device sleeps for this many times the launching time, so that everything is launched when it begins. The number of
# cycles per second is higher than any device has.
_HEAD_START, _CYCLES = 1.5, 3e9


def num_bytes(part: PerExample) -> int:
    """Return the memory that a form keeps, nested forms included."""
    total = 0
    for value in vars(part).values():
        if isinstance(value, Tensor):
            total += value.numel() * value.element_size()
        elif hasattr(value, "add_weighted_sum"):
            total += num_bytes(value)
    return total


def is_on_processor(part: PerExample) -> bool:
    """Tell whether all tensors of a form lie in a processor's memory."""
    values = vars(part).values()
    nested = [value for value in values if hasattr(value, "add_weighted_sum")]
    tensors = [value for value in values if isinstance(value, Tensor)]
    return all(tensor.device.type == "cpu" for tensor in tensors) and all(map(is_on_processor, nested))


def compared(strategies: Sequence[Strategy], part: PerExample, *, counts_launches: bool = True) -> list[Tried]:
    """Time all strategies: slow ones once on few examples, promising ones often enough to rank them.

    Times and bytes are those of the whole batch; without ``counts_launches`` times on a device are those of its own
    work, as when a graph is replayed. A strategy that raises is recorded with its reason.

    Raises:
        Exception: what the last strategy raised, if none can be used.
    """
    trier = _Trier(part, counts_launches=counts_launches)
    tried: list[Tried] = []
    for strategy in strategies:
        try:
            tried.append(trier.first_try(strategy))
        except Exception as error:  # another strategy gives the same sums
            reason = (str(error).strip().splitlines() or [""])[0]
            tried.append(
                Tried(
                    strategy=strategy,
                    seconds=math.inf,
                    kept_bytes=math.inf,
                    failure=f"{type(error).__name__}: {reason}",
                )
            )
            if all(each.failure is not None for each in tried) and strategy is strategies[-1]:
                raise
    best = min(each.seconds for each in tried)
    return [trier.tried_again(each) if each.seconds <= _HOPELESS * best else each for each in tried]


def can_run(strategy: Strategy, part: PerExample) -> bool:
    """Whether a strategy runs on some gradients; its first run compiles and tunes."""
    try:
        _Trier(part, counts_launches=True).run_once(strategy)
    except Exception:  # noqa: BLE001 -- another strategy gives the same sums
        return False
    return True


class _Trier:
    """Gradients to try strategies on, with the memory that a weighted sum needs."""

    def __init__(self, part: PerExample, *, counts_launches: bool) -> None:
        """On a device time is not in proportion to the examples, so there the piece is the whole."""
        self._part, self._counts_launches = part, counts_launches
        self._into = torch.zeros_like(part[:1].in_full()[0])
        dtype = torch.promote_types(self._into.dtype, torch.float32)
        self._weights = torch.ones(len(part), dtype=dtype, device=self._into.device)
        self._piece = part if self._into.is_cuda else part[: max(1, len(part) // _NUM_SLICES)]
        self._scale = len(part) / len(self._piece)
        # The time of the sum is common to all strategies that keep the factors. It does not grow in proportion to the
        # examples either: a large weight is written once, for one example as for many.
        self._factor_sum = math.nan if self._piece is part else min(self._sum_seconds(part) for _ in range(2))

    def first_try(self, strategy: Strategy) -> Tried:
        """Try on the piece; a device compiles and tunes at the first call, which therefore does not count."""
        seconds, kept_bytes = self._on_piece(strategy)
        if self._into.is_cuda:
            seconds = self._run(strategy, 1)
            if seconds <= _LONG_ON_DEVICE:
                seconds = self._on_whole(strategy)
        elif seconds < _SHORT * self._scale:
            seconds = min(seconds, self._on_piece(strategy)[0])
        return Tried(strategy=strategy, seconds=seconds, kept_bytes=kept_bytes * self._scale)

    def tried_again(self, first: Tried) -> Tried:
        """Repeat and keep the least time: the rest is due to other programs on the machine."""
        if not self._into.is_cuda and first.seconds > _LONG * self._scale:
            return replace(first, seconds=min(first.seconds, self._on_piece(first.strategy)[0]))
        if self._into.is_cuda and first.seconds > _LONG_ON_DEVICE:
            return replace(first, seconds=min(first.seconds, self._run(first.strategy, 1)))
        return replace(first, seconds=min(self._on_whole(first.strategy) for _ in range(_REPEATS)))

    def run_once(self, strategy: Strategy) -> None:
        """Take norms and weighted sum of the whole batch."""
        self._launch(strategy, 1)

    def _on_piece(self, strategy: Strategy) -> tuple[float, int]:
        start = self._now()
        kept = strategy.measure(self._piece)[1]
        norms = (self._now() - start) * self._scale
        if kept is self._piece and self._piece is not self._part:
            return norms + self._factor_sum, num_bytes(kept)
        if self._piece is not self._part and not isinstance(kept, Explicit):  # other factors, for the same reason
            return self._on_whole(strategy), num_bytes(kept)
        return norms + self._sum_seconds(kept) * self._scale, num_bytes(kept)

    def _on_whole(self, strategy: Strategy) -> float:
        # several in a row on a device, or launching time would hide computing time. Weights that share products form
        # them once, so as many runs as weights charge each weight its part
        shared = self._part.shared if isinstance(self._part, Outer) else None
        return self._run(strategy, _IN_A_ROW if self._into.is_cuda else 1 if shared is None else shared.num_weights)

    def _run(self, strategy: Strategy, in_a_row: int) -> float:
        start = self._now()
        self._launch(strategy, in_a_row)
        launched = time.perf_counter() - start
        seconds = self._now() - start
        if self._into.is_cuda and not self._counts_launches and seconds < 2 * launched:
            seconds = min(seconds, self._on_device(strategy, in_a_row, launched))
        return seconds / in_a_row

    def _on_device(self, strategy: Strategy, in_a_row: int, launched: float) -> float:
        """Time the device alone: it sleeps until everything is launched, so launching adds nothing to its time."""
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        torch.cuda._sleep(int(_HEAD_START * launched * _CYCLES))  # type: ignore[no-untyped-call]
        begin.record()
        self._launch(strategy, in_a_row)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def _launch(self, strategy: Strategy, in_a_row: int) -> None:
        for _ in range(in_a_row):
            strategy.measure(self._part)[1].add_weighted_sum(self._weights, self._into)

    def _sum_seconds(self, kept: PerExample) -> float:
        start = self._now()
        kept.add_weighted_sum(self._weights[: len(kept)], self._into)
        return self._now() - start

    def _now(self) -> float:
        if self._into.is_cuda:
            torch.cuda.synchronize(self._into.device)
        elif torch.get_num_threads() == 1:  # processor time excludes other processes, and is exact for one thread
            return time.process_time()
        return time.perf_counter()
