"""Calibration of noise and epsilon tables. A returned multiplier was itself accounted and fits the budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from dp_accounting import dp_event

from privet import checks
from privet.accounting.accountants import PLD, RDP, tightest
from privet.errors import CalibrationError
from privet.mechanism.events import DpEvent
from privet.vocabulary import Adjacency

Measure: TypeAlias = Callable[[DpEvent, float, Adjacency], float]

SMALLEST_MULTIPLIER, LARGEST_MULTIPLIER = 1e-2, 1e6
_ITERATIONS = 100
_FAST_PLD = PLD(coarsest_spacing=1e-2)
# Largest number of grid points that a table composes, and the smallest number of composed rows.
_TABLE_POINTS, _FEWEST_ROWS = 2_000_000, 4


def calibrate_noise(
    make_event: Callable[[float], DpEvent],
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    rel_tol: float = 1e-4,
) -> float:
    """Return the smallest noise multiplier whose event stays within (epsilon, delta).

    Args:
        make_event: Returns the event of the whole run for a noise multiplier; more noise must not reveal more.
        epsilon: The budget, positive and finite.
        delta: In (0, 1).
        adjacency: The neighbouring relation of data sets.
        rel_tol: Relative tolerance: of epsilon below the budget, or of the multiplier above the smallest possible one.

    Guarantee: the event of the returned multiplier was accounted as for a report, and its epsilon is within the budget.
    Edge cases: if the smallest multiplier of the search, 0.01, meets the budget, it is returned; if multiplier 1e6
    exceeds the budget (other releases spent it), ``CalibrationError`` is raised.
    """
    target = checks.positive("epsilon", epsilon)
    tolerance = checks.probability("rel_tol", rel_tol)

    def spent_by(measure: Measure) -> Callable[[float], float]:
        return lambda log_multiplier: measure(make_event(math.exp(log_multiplier)), delta, adjacency)

    spent = spent_by(_spent)
    low, high = math.log(SMALLEST_MULTIPLIER), math.log(LARGEST_MULTIPLIER)
    if spent(low) <= target:
        return math.exp(low)
    if spent(high) > target:
        raise CalibrationError(
            f"Even noise multiplier {LARGEST_MULTIPLIER:g} spends more than epsilon = {target:g} at delta = {delta:g}. "
            "Allow a larger epsilon or delta, or release less."
        )
    # From cheap to exact: each result is a close upper end for the next search.
    bracket = _bisect(spent_by(_spent_rdp), target, low, high, 1e-3)
    nearby = _refine(spent_by(_spent_coarse), target, low, bracket, tolerance)
    return math.exp(_refine(spent, target, low, nearby, tolerance))


def quick_noise(
    make_event: Callable[[float], DpEvent],
    *,
    guess: float,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    rel_tol: float = 1e-3,
) -> float:
    """Return an approximation of ``calibrate_noise``, from a guess close to it.

    It is for comparisons of many settings: the grid is coarse, so the noise is up to about 0.1 percent too large.
    """
    target, low = checks.positive("epsilon", epsilon), math.log(SMALLEST_MULTIPLIER)
    start = max(low + 1.0, math.log(checks.positive("guess", guess)))

    def spent(log_multiplier: float) -> float:
        return _spent_coarse(make_event(math.exp(log_multiplier)), delta, adjacency)

    return math.exp(_refine(spent, target, low, start, rel_tol))


def spent_epsilon(event: DpEvent, *, delta: float, adjacency: Adjacency) -> float:
    """Return the epsilon that a guarantee for this event reports."""
    return _spent(event, delta, adjacency)


def _spent(event: DpEvent, delta: float, adjacency: Adjacency) -> float:
    return tightest(event, adjacency, delta).epsilon(event, delta=delta, adjacency=adjacency)


def _spent_rdp(event: DpEvent, delta: float, adjacency: Adjacency) -> float:
    return RDP().epsilon(event, delta=delta, adjacency=adjacency)


def _spent_coarse(event: DpEvent, delta: float, adjacency: Adjacency) -> float:
    """Return an upper bound within about 0.1 percent of the reported epsilon, several times faster."""
    accountant = tightest(event, adjacency, delta, pld=_FAST_PLD)
    return accountant.epsilon(event, delta=delta, adjacency=adjacency)


def _bisect(spent: Callable[[float], float], target: float, low: float, high: float, width: float) -> float:
    """Return a point with spent <= target, at most ``width`` above the crossing; ``high`` must be such a point."""
    while high - low > width:
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) > target else (low, middle)
    return high


def _refine(spent: Callable[[float], float], target: float, low: float, high: float, tolerance: float) -> float:
    """Return a point with target * (1 - tolerance) <= spent <= target, by the secant rule on logarithms.

    Invariant: ``low`` exceeds the target; ``high``, once evaluated, does not. The secant aims slightly below the
    target, so that the result is on the safe side. If it leaves the bracket or converges slowly, the bracket is halved.
    """
    at_high, slope = spent(high), -1.5
    stride = tolerance
    while at_high > target:
        # The cheaper measure of the earlier search differs in the last digits: step up until the end is safe.
        low, high, stride = high, high + stride, stride * 2
        at_high = spent(high)
    aim = target * (1 - tolerance / 2)
    previous: tuple[float, float] | None = None
    point, value = high, at_high
    for iteration in range(_ITERATIONS):
        if value <= target and (value >= target * (1 - tolerance) or high - low <= tolerance):
            return point
        if previous is not None and value > 0 and previous[1] > 0 and value != previous[1]:
            slope = min(-0.2, (math.log(value) - math.log(previous[1])) / (point - previous[0]))
        guess = point + (math.log(aim / value) / slope if value > 0 else -1.0)
        inside = low < guess < high and iteration % 8 != 7
        previous = (point, value)
        point = guess if inside else (low + high) / 2
        value = spent(point)
        low, high = (point, high) if value > target else (low, point)
        if value > target and high - low <= tolerance:
            return high
    return high


def epsilon_table(
    round_event: DpEvent, num_rounds: int, *, delta: float, adjacency: Adjacency, num_points: int = 24
) -> list[tuple[int, float]]:
    """Return rows (number of rounds, upper bound on epsilon), for a progress line without an accountant.

    The rows begin at round 0 and end at ``num_rounds``, whose epsilon is the reported one. Between two rows the epsilon
    of the later row is a valid bound.

    Guarantee: every row is an upper bound, and the rows never decrease.
    Edge cases: no rounds give the single row (0, 0.0).
    """
    total = checks.count("num_rounds", num_rounds, minimum=0)
    rows = checks.count("num_points", num_points, minimum=2)
    if total == 0:
        return [(0, 0.0)]
    # Epsilon grows like the root of the rounds: a quadratic spacing of rounds gives even steps of epsilon.
    rounds = sorted({max(1, round(total * (row / (rows - 1)) ** 2)) for row in range(1, rows)})
    bound = spent_epsilon(dp_event.SelfComposedDpEvent(round_event, total), delta=delta, adjacency=adjacency)
    # Every how many rows one row is composed; RDP bounds the others.
    affordable = num_affordable_rows(round_event, total, adjacency=adjacency, num_rows=len(rounds))
    every = math.ceil(len(rounds) / affordable)
    table = [(total, bound)]
    for index, count in enumerate(reversed(rounds[:-1]), start=1):
        event = dp_event.SelfComposedDpEvent(round_event, count)
        here = (_spent_rdp if index % every else _spent_coarse)(event, delta, adjacency)
        # The bound of a later round holds for an earlier one: fewer releases do not reveal more.
        bound = min(bound, here)
        table.append((count, bound))
    return [(0, 0.0), *reversed(table)]


def num_affordable_rows(round_event: DpEvent, num_rounds: int, *, adjacency: Adjacency, num_rows: int) -> int:
    """Return the number of table rows whose epsilon can be composed in reasonable time; at least four.

    Edge cases: events of other accountants are fast, so all rows are affordable.
    """
    event = dp_event.SelfComposedDpEvent(round_event, num_rounds)
    if _FAST_PLD.supports(event, adjacency) is not None:
        return num_rows
    affordable = _TABLE_POINTS // max(1, _FAST_PLD.num_points(event, adjacency))
    return min(num_rows, max(_FEWEST_ROWS, affordable))
