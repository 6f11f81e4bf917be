"""Plots of the trade-off function, with the attacks that were run and the bounds that audits proved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from privet.accounting.guarantee import trade_off
from privet.attacks.membership_verdict import MembershipReport
from privet.mechanism.events import DpEvent
from privet.reports.plots import BLUE, GREEN, INK, ORANGE, Plot, plain_powers
from privet.vocabulary import Adjacency

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
_LEAST_RATE = 1e-4
_MARKS = ("o", "s", "^", "D")
_COLOURS = (ORANGE, GREEN, "#b05fa8", "#7f7f7f")


def trade_off_plots(
    event: DpEvent,
    adjacency: Adjacency,
    *,
    attacks: Sequence[MembershipReport] = (),
    audited: tuple[float, float] | None = None,
) -> list[Plot]:
    """Plot the trade-off curve of the best attacker: whole, and its low end on logarithmic axes.

    Args:
        event: The composition of all charges.
        adjacency: The neighbouring data sets of the guarantee.
        attacks: Membership attacks on the model: curves, and points with intervals at few false accusations.
        audited: Lower bound (epsilon, delta) that an audit of the whole run proved; None without an audit.
    """
    return [
        _whole(event, adjacency, attacks, audited),
        _low_end(event, adjacency, attacks),
    ]


def proven_misses(epsilon: float, delta: float, false_positive_rates: Array) -> Array:
    """Return the trade-off function of (epsilon, delta), which the audit's attacker reaches at some point."""
    steep = 1 - delta - math.exp(epsilon) * false_positive_rates
    flat = math.exp(-epsilon) * (1 - delta - false_positive_rates)
    return np.asarray(np.maximum(0.0, np.maximum(steep, flat)))


def _whole(
    event: DpEvent, adjacency: Adjacency, attacks: Sequence[MembershipReport], audited: tuple[float, float] | None
) -> Plot:
    rates = np.linspace(0.0, 1.0, 101)
    missed = trade_off(event, adjacency=adjacency, false_positive_rates=rates)
    columns, table = ["false_positive_rate", "least_false_negative_rate"], [rates, missed]
    if audited is not None:
        columns.append("audit_false_negative_rate")
        table.append(proven_misses(*audited, rates))
    for place, attack in enumerate(attacks):
        false, true = np.array([(0.0, 0.0), *attack.roc, (1.0, 1.0)]).T
        columns.append(f"attack_{place + 1}_false_negative_rate")
        table.append(1 - np.interp(rates, false, true))

    def draw(axes: Axes) -> None:
        axes.fill_between(rates, 0, missed, color=BLUE, alpha=0.15, linewidth=0)
        axes.plot(rates, missed, color=BLUE, label="limit of every attack")
        if audited is not None:
            axes.plot(rates, table[2], color=INK, linestyle="--", linewidth=1.2, label="proven by an audit")
        for place, values in enumerate(table[len(table) - len(attacks) :] if attacks else []):
            colour = _COLOURS[place % len(_COLOURS)]
            axes.plot(rates, values, color=colour, linewidth=1.3, label=f"attack {place + 1}")
        axes.plot([0, 1], [1, 0], color=INK, linestyle=":", linewidth=1.2, label="guessing")
        axes.set(xlabel="false accusations", ylabel="members missed", xlim=(0, 1), ylim=(0, 1))
        axes.legend(loc="upper right", fontsize=8)

    note = "The error rates of every attacker lie on or above the line, whatever the attacker knows or computes."
    return Plot(
        name="trade-off",
        title="Error rates of an attacker",
        note=note + (" Attacks are numbered as in their table below." if attacks else ""),
        draw=draw,
        columns=tuple(columns),
        rows=tuple(tuple(row) for row in np.stack(table, axis=1).tolist()),
    )


def _low_end(event: DpEvent, adjacency: Adjacency, attacks: Sequence[MembershipReport]) -> Plot:
    rates = np.logspace(math.log10(_LEAST_RATE), 0, 81)
    caught = 1 - trade_off(event, adjacency=adjacency, false_positive_rates=rates)

    def draw(axes: Axes) -> None:
        axes.loglog(rates, caught, color=BLUE, label="limit of every attack")
        axes.loglog(rates, rates, color=INK, linestyle=":", linewidth=1.2, label="guessing")
        for place, attack in enumerate(attacks):
            colour, mark = _COLOURS[place % len(_COLOURS)], _MARKS[place % len(_MARKS)]
            # Slightly shifted: two attacks may find the same share at the same rate.
            at = [point.level * 1.12 ** (place - (len(attacks) - 1) / 2) for point in attack.points]
            shares = [point.true_positives for point in attack.points]
            axes.vlines(
                at, [max(s.low, _LEAST_RATE) for s in shares], [s.high for s in shares], color=colour, linewidth=1.6
            )
            axes.loglog(
                at,
                [max(s.value, _LEAST_RATE) for s in shares],
                linestyle="none",
                marker=mark,
                markersize=5,
                color=colour,
                label=f"attack {place + 1}",
            )
        axes.set(xlabel="false accusations", ylabel="members found", xlim=(_LEAST_RATE, 1), ylim=(_LEAST_RATE, 1.3))
        plain_powers(axes.xaxis)
        plain_powers(axes.yaxis)
        axes.legend(loc="lower right", fontsize=8)

    points = " Points are the attacks that were run, with 95 % intervals." if attacks else ""
    return Plot(
        name="attack-limit",
        title="Limit at few false accusations",
        note=f"The largest share of members that any attack finds, by its false accusations; logarithmic axes.{points}",
        draw=draw,
        columns=("attack", "false_positive_rate", "true_positive_rate", "low", "high"),
        rows=(
            *((0.0, rate, limit, None, None) for rate, limit in zip(rates.tolist(), caught.tolist(), strict=True)),
            *(
                (float(place + 1), p.level, p.true_positives.value, p.true_positives.low, p.true_positives.high)
                for place, attack in enumerate(attacks)
                for p in attack.points
            ),
        ),
    )
