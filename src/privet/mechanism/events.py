"""Privacy events, which training hands to accounting: their types, their JSON form and their composition.

Events are those of ``dp_accounting`` and a few of this module. A ``GaussianDpEvent(z)`` always means: the noise on the
sum has standard deviation ``z * C``, where ``C`` bounds the l2 norm of the contribution of one unit. ``z`` is not
divided by the sensitivity of an adjacency; the accountant knows the adjacency and applies that factor.

The JSON form is untrusted input when it is read from files: only known types, exactly the declared fields, no NaN,
values in range, and a limit on depth.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

from dp_accounting import dp_event

from privet import checks
from privet.errors import AccountingError, ArgumentError
from privet.mechanism.further_events import L2LaplaceDpEvent as L2LaplaceDpEvent
from privet.mechanism.further_events import ProductLaplaceDpEvent as ProductLaplaceDpEvent
from privet.mechanism.further_events import PureDpEvent as PureDpEvent
from privet.mechanism.further_events import RandomAllocationDpEvent as RandomAllocationDpEvent
from privet.mechanism.further_events import SampledRecordsDpEvent as SampledRecordsDpEvent
from privet.mechanism.further_events import TotalVariationDpEvent as TotalVariationDpEvent

DpEvent: TypeAlias = dp_event.DpEvent

MAX_DEPTH = 16
MAX_PARTS = 10_000
MAX_COUNT = 2**53
_INFINITY = "infinity"
_TYPE = "type"
_REL_TOL = 1e-9


class _Field(Protocol):
    """Checks, writes, reads and compares one field of an event."""

    def write(self, label: str, value: Any, depth: int) -> Any: ...

    def read(self, label: str, value: Any, depth: int) -> Any: ...

    def same(self, left: Any, right: Any, rel_tol: float) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class _Number:
    """A real number in ``[0, maximum]``. JSON has no infinity, so it is written as a word."""

    maximum: float = math.inf

    def _checked(self, label: str, value: Any) -> float:
        result = checks.number(label, value)
        if not 0 <= result <= self.maximum:
            raise ArgumentError(f"{label} must lie between 0 and {self.maximum!r}, got {result!r}.")
        return result

    def write(self, label: str, value: Any, depth: int) -> float | str:
        result = self._checked(label, value)
        return _INFINITY if math.isinf(result) else result

    def read(self, label: str, value: Any, depth: int) -> float:
        return self._checked(label, math.inf if isinstance(value, str) and value == _INFINITY else value)

    def same(self, left: Any, right: Any, rel_tol: float) -> bool:
        return math.isclose(left, right, rel_tol=rel_tol)


@dataclass(frozen=True, kw_only=True)
class _Count:
    """A whole number up to 2**53, which JSON readers of every language represent exactly."""

    minimum: int

    def write(self, label: str, value: Any, depth: int) -> int:
        result = checks.count(label, value, minimum=self.minimum)
        if result > MAX_COUNT:
            raise ArgumentError(f"{label} must be at most 2**53, got {result}.")
        return result

    read = write

    def same(self, left: Any, right: Any, rel_tol: float) -> bool:
        return bool(left == right)


@dataclass(frozen=True, kw_only=True)
class _Vector:
    """A list of numbers or counts."""

    item: _Number | _Count

    def write(self, label: str, value: Any, depth: int) -> list[Any]:
        return [self.item.write(label, each, depth) for each in self._checked(label, value)]

    def read(self, label: str, value: Any, depth: int) -> tuple[Any, ...]:
        return tuple(self.item.read(label, each, depth) for each in self._checked(label, value))

    def same(self, left: Any, right: Any, rel_tol: float) -> bool:
        return len(left) == len(right) and all(self.item.same(a, b, rel_tol) for a, b in zip(left, right, strict=True))

    def _checked(self, label: str, value: Any) -> Sequence[Any]:
        if not isinstance(value, list | tuple) or not 0 < len(value) <= MAX_PARTS:
            raise ArgumentError(f"{label} must be a list of 1 to {MAX_PARTS} numbers, got {type(value).__name__}.")
        return value


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Another event."""

    def write(self, label: str, value: Any, depth: int) -> dict[str, Any]:
        return _write(value, depth + 1)

    def read(self, label: str, value: Any, depth: int) -> DpEvent:
        return _read(value, depth + 1)

    def same(self, left: Any, right: Any, rel_tol: float) -> bool:
        return _same(left, right, rel_tol)


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """A list of events."""

    def _checked(self, label: str, value: Any) -> Sequence[Any]:
        if not isinstance(value, list | tuple):
            raise ArgumentError(f"{label} must be a list of events, got {type(value).__name__}.")
        if len(value) > MAX_PARTS:
            raise ArgumentError(f"{label} may hold at most {MAX_PARTS} events, got {len(value)}. Merge equal events.")
        return value

    def write(self, label: str, value: Any, depth: int) -> list[dict[str, Any]]:
        return [_write(part, depth + 1) for part in self._checked(label, value)]

    def read(self, label: str, value: Any, depth: int) -> list[DpEvent]:
        return [_read(part, depth + 1) for part in self._checked(label, value)]

    def same(self, left: Any, right: Any, rel_tol: float) -> bool:
        return len(left) == len(right) and all(_same(a, b, rel_tol) for a, b in zip(left, right, strict=True))


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """An event type: its name in files, its class and its fields."""

    name: str
    build: type[Any]
    fields: Mapping[str, _Field]


_RATIO = _Number()
_PROBABILITY = _Number(maximum=1.0)

_KINDS = (
    _Kind(name="no_op", build=dp_event.NoOpDpEvent, fields={}),
    _Kind(name="non_private", build=dp_event.NonPrivateDpEvent, fields={}),
    _Kind(name="gaussian", build=dp_event.GaussianDpEvent, fields={"noise_multiplier": _RATIO}),
    _Kind(name="laplace", build=dp_event.LaplaceDpEvent, fields={"noise_multiplier": _RATIO}),
    _Kind(
        name="poisson_sampled",
        build=dp_event.PoissonSampledDpEvent,
        fields={"sampling_probability": _PROBABILITY, "event": _Part()},
    ),
    _Kind(
        name="truncated_subsampled_gaussian",
        build=dp_event.TruncatedSubsampledGaussianDpEvent,
        fields={
            "dataset_size": _Count(minimum=1),
            "sampling_probability": _PROBABILITY,
            "truncated_batch_size": _Count(minimum=1),
            "noise_multiplier": _RATIO,
        },
    ),
    _Kind(
        name="sampled_without_replacement",
        build=dp_event.SampledWithoutReplacementDpEvent,
        fields={"source_dataset_size": _Count(minimum=1), "sample_size": _Count(minimum=1), "event": _Part()},
    ),
    _Kind(
        name="random_allocation",
        build=RandomAllocationDpEvent,
        fields={"steps": _Count(minimum=1), "event": _Part()},
    ),
    _Kind(
        name="repeat_and_select",
        build=dp_event.RepeatAndSelectDpEvent,
        fields={"event": _Part(), "mean": _RATIO, "shape": _RATIO},
    ),
    _Kind(name="pure", build=PureDpEvent, fields={"epsilon": _RATIO}),
    _Kind(
        name="l2_laplace",
        build=L2LaplaceDpEvent,
        fields={"noise_multiplier": _RATIO, "num_coordinates": _Count(minimum=1)},
    ),
    _Kind(
        name="product_laplace",
        build=ProductLaplaceDpEvent,
        fields={"scales": _Vector(item=_RATIO), "counts": _Vector(item=_Count(minimum=1))},
    ),
    _Kind(
        name="sampled_records",
        build=SampledRecordsDpEvent,
        fields={"sampling_probability": _PROBABILITY, "num_records": _Count(minimum=1), "noise_multiplier": _RATIO},
    ),
    _Kind(name="total_variation", build=TotalVariationDpEvent, fields={"distance": _PROBABILITY}),
    _Kind(
        name="self_composed",
        build=dp_event.SelfComposedDpEvent,
        fields={"event": _Part(), "count": _Count(minimum=0)},
    ),
    _Kind(name="composed", build=dp_event.ComposedDpEvent, fields={"events": _Parts()}),
)
_KIND_OF_CLASS: Mapping[type[Any], _Kind] = {kind.build: kind for kind in _KINDS}
_KIND_OF_NAME: Mapping[str, _Kind] = {kind.name: kind for kind in _KINDS}


def encode_event(event: DpEvent) -> dict[str, Any]:
    """Return the JSON form of an event; ``decode_event`` gives the same event back, bit for bit.

    Edge cases: an infinite multiplier is written as the word "infinity"; NaN, numbers out of range and events nested
    more than 16 deep raise ``ArgumentError``; a type that is not in the table raises ``AccountingError``.
    """
    return _write(event, 0)


def decode_event(data: Mapping[str, Any]) -> DpEvent:
    """Return the event that ``encode_event`` wrote.

    The input is untrusted: unknown types raise ``AccountingError``; missing, surplus or out-of-range
    fields, NaN and more than 16 levels of nesting raise ``ArgumentError``.
    """
    return _read(data, 0)


def _kind_of(event: Any) -> _Kind:
    # Look up the exact class: a subclass may mean another mechanism and needs its own row.
    kind = _KIND_OF_CLASS.get(type(event))
    if kind is None:
        raise AccountingError(
            f"Events of type {type(event).__name__} are unknown. Known are: {', '.join(_KIND_OF_NAME)}."
        )
    return kind


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise ArgumentError(f"An event may be nested at most {MAX_DEPTH} deep. Flatten it with compose().")


def _write(event: Any, depth: int) -> dict[str, Any]:
    _check_depth(depth)
    kind = _kind_of(event)
    written: dict[str, Any] = {_TYPE: kind.name}
    for name, field in kind.fields.items():
        written[name] = field.write(f"{kind.name}.{name}", getattr(event, name), depth)
    return written


def _read(data: Any, depth: int) -> DpEvent:
    _check_depth(depth)
    if not isinstance(data, Mapping):
        raise ArgumentError(f"An event must be a JSON object, got {type(data).__name__}.")
    name = data.get(_TYPE)
    kind = _KIND_OF_NAME.get(name) if isinstance(name, str) else None
    if kind is None:
        raise AccountingError(f"Unknown event type {name!r}. Known are: {', '.join(_KIND_OF_NAME)}.")
    if set(data) != {_TYPE, *kind.fields}:
        raise ArgumentError(
            f"An event of type {kind.name} has exactly the fields {sorted(kind.fields)}, "
            f"got {sorted(str(key) for key in data if key != _TYPE)}."
        )
    return kind.build(**{key: field.read(f"{kind.name}.{key}", data[key], depth) for key, field in kind.fields.items()})


def same_event(left: DpEvent, right: DpEvent, rel_tol: float = _REL_TOL) -> bool:
    """Return whether two events have the same structure, equal counts, and numbers equal up to ``rel_tol``.

    Guarantee: the tolerance is relative, with no absolute part, so zero noise never equals a little noise.
    Edge cases: infinity equals infinity; NaN and unknown types raise an error.
    """
    tolerance = checks.non_negative("rel_tol", rel_tol)
    _write(left, 0)
    _write(right, 0)
    return _same(left, right, tolerance)


def matches(known: DpEvent, event: DpEvent) -> bool:
    """Return whether an event equals a known event that was written before; see :func:`same_event`.

    Guarantee: NaN, unknown types and objects that are no event match nothing.
    """
    try:
        return bool(known == event) or _same(known, event, _REL_TOL)
    except (AttributeError, TypeError):
        return False


def _same(left: Any, right: Any, rel_tol: float) -> bool:
    if type(left) is not type(right):
        return False
    fields = _kind_of(left).fields.items()
    return all(field.same(getattr(left, name), getattr(right, name), rel_tol) for name, field in fields)


def fuse_gaussians(multipliers: Sequence[float]) -> float:
    """Return the multiplier of the single Gaussian release equivalent to several joint ones: ``1 / sqrt(sum 1 / z^2)``.

    Guarantee: exact, because the squared signal-to-noise ratios of joint Gaussian releases add up.
    Edge cases: one zero gives zero (no privacy); infinite multipliers reveal nothing and are ignored; an empty list
    gives infinity; negative values and NaN raise ``ArgumentError``.
    """
    return _fuse([_RATIO.read("multiplier", z, 0) for z in multipliers])


def _fuse(multipliers: Sequence[float]) -> float:
    informative = [z for z in multipliers if not math.isinf(z)]
    if len(informative) <= 1:
        # Two reciprocals would round: a single group keeps its multiplier to the last bit.
        return informative[0] if informative else math.inf
    if 0 in informative:
        return 0.0
    return 1 / math.hypot(*(1 / z for z in informative))


# all steps of a plan have the same bounds and noise, so most calls repeat an earlier one
@lru_cache(maxsize=256)
def gaussian_event(bounds: tuple[float, ...], stds: tuple[float, ...]) -> dp_event.GaussianDpEvent:
    """Return the event of adding Gaussian noise to a sum made of groups of coordinates.

    Args:
        bounds: Per group, the l2 bound on the contribution of one unit to the sum of that group.
        stds: Per group, the standard deviation of the noise that was added to that sum.

    Guarantee: ``1 / sqrt(sum (bound / std)^2)`` is the exact multiplier if one unit can reach all bounds at once.
    Edge cases: a bound of zero reveals nothing, with or without noise; a positive bound without noise gives multiplier
    zero; negative, NaN or infinite bounds, no groups and unequal lengths raise ``ArgumentError``.
    """
    if len(bounds) != len(stds) or len(bounds) == 0:
        raise ArgumentError(f"Every group needs one bound and one std, got {len(bounds)} bounds and {len(stds)} stds.")
    ratios = []
    for bound, std in zip(bounds, stds, strict=True):
        limit, spread = checks.non_negative("bound", bound), _RATIO.read("std", std, 0)
        ratios.append(spread / limit if limit > 0 else math.inf)
    return dp_event.GaussianDpEvent(_fuse(ratios))


def compose(events_with_counts: Iterable[tuple[DpEvent, int]]) -> DpEvent:
    """Return one event for all the given ones, each released ``count`` times.

    Nested compositions are flattened, equal events are merged and the parts are sorted, so the result does not depend
    on the order of the events.

    Guarantee: every release is counted exactly once; adaptive composition is covered because the parameters of every
    event are fixed in advance.
    Edge cases: zero counts and empty events vanish; an empty list gives ``NoOpDpEvent``; negative counts raise.
    """
    counts: dict[str, int] = {}
    events: dict[str, DpEvent] = {}
    for event, times in events_with_counts:
        for part, repeats in flatten(event):
            key = json.dumps(_write(part, 0), sort_keys=True)
            events.setdefault(key, part)
            counts[key] = counts.get(key, 0) + repeats * checks.count("count", times, minimum=0)
    parts = [_repeated(events[key], counts[key]) for key in sorted(events) if counts[key] > 0]
    if not parts:
        return dp_event.NoOpDpEvent()
    return parts[0] if len(parts) == 1 else dp_event.ComposedDpEvent(parts)


def _repeated(event: DpEvent, count: int) -> DpEvent:
    return event if count == 1 else dp_event.SelfComposedDpEvent(event, count)


def flatten(event: DpEvent) -> Iterator[tuple[DpEvent, int]]:
    """Yield the releases of a composed event, each with its count; nothing for an empty event."""
    _write(event, 0)
    yield from _flatten(event, 1)


def _flatten(event: DpEvent, times: int) -> Iterator[tuple[DpEvent, int]]:
    if times == 0 or isinstance(event, dp_event.NoOpDpEvent):
        return
    if isinstance(event, dp_event.SelfComposedDpEvent):
        yield from _flatten(event.event, times * event.count)
    elif isinstance(event, dp_event.ComposedDpEvent):
        for part in event.events:
            yield from _flatten(part, times)
    else:
        yield event, times
