"""Plots of values that the guarantee does not cover: loss, clipped share, gradient norms, noise-to-signal ratio."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from privet.reports.content import UnprotectedRow
from privet.reports.plots import BLUE, GREEN, INK, ORANGE, Plot, column_plot, plain_powers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_POINTS = 400
_EXACT = "Exact values of training batches."


def unprotected_plots(rows: Sequence[UnprotectedRow]) -> list[Plot]:
    """Return every plot for which the run stored values."""
    thin = _thinned(rows)
    steps = [row.step for row in thin]
    losses, shares = [row.mean_loss for row in thin], [row.clipped_share for row in thin]
    found = [
        _by_step("training-loss", "Training loss", "mean loss of the batch", ORANGE, steps, losses),
        _by_step("clipped-share", "Clipped examples", "share of the batch", BLUE, steps, shares),
    ]
    measured = [row for row in thin if row.norm_quantiles is not None]
    if measured:
        found += [_norm_plot(measured), _spread_plot(measured[0], measured[-1])]
    ratios = [row.noise_to_signal for row in thin]
    if any(ratio is not None for ratio in ratios):
        found.append(_ratio_plot(steps, ratios))
    return found


def _quantile_plot(
    name: str, title: str, note: str, draw: Callable[[Axes], None], rows: Sequence[UnprotectedRow]
) -> Plot:
    tenths = zip(*(row.norm_quantiles or () for row in rows), strict=True)
    values = {f"quantile_{10 * tenth}": quantiles for tenth, quantiles in enumerate(tenths)}
    return column_plot(name, title, f"{_EXACT} {note}", draw, {"step": [row.step for row in rows], **values})


def _norm_plot(rows: Sequence[UnprotectedRow]) -> Plot:
    """Plot gradient norms against steps: the median, and the quantiles from 20 to 80 % and from 10 to 90 %."""
    steps = [row.step for row in rows]
    table = np.array([row.norm_quantiles for row in rows])

    def draw(axes: Axes) -> None:
        lowest = table[:, 1:-1][table[:, 1:-1] > 0].min(initial=1.0)
        shown = np.maximum(table, lowest)
        axes.fill_between(steps, shown[:, 1], shown[:, 9], color=GREEN, alpha=0.15, linewidth=0, label="10 to 90 %")
        axes.fill_between(steps, shown[:, 2], shown[:, 8], color=GREEN, alpha=0.25, linewidth=0, label="20 to 80 %")
        axes.plot(steps, shown[:, 5], color=GREEN, linewidth=1.3, label="median")
        axes.set_yscale("log")
        axes.set(xlabel="step", ylabel="gradient norm")
        plain_powers(axes.yaxis)
        axes.legend(loc="best", fontsize=8)

    return _quantile_plot("gradient-norms", "Gradient norms before clipping", "Logarithmic axis.", draw, rows)


def _spread_plot(first: UnprotectedRow, last: UnprotectedRow) -> Plot:
    """Plot the cumulative distribution of norms in the first and in the last step.

    A histogram would be useless: nearly equal norms, as often in a first step, make one tall bar, beside which norms
    over many powers of ten are invisible.
    """
    spreads = [np.array(row.norm_quantiles) for row in (first, last)]

    def draw(axes: Axes) -> None:
        for spread, colour, mark, name in zip(
            spreads, (ORANGE, BLUE), ("o", "s"), ("first step", "last step"), strict=True
        ):
            # A logarithmic axis has no zero.
            lengths = np.maximum(spread, max(float(spread[-1]) * 1e-9, 1e-30))
            shares = np.linspace(0, 1, len(lengths))
            axes.plot(lengths, shares, color=colour, marker=mark, markersize=3.5, linewidth=1.3, label=name)
        axes.set_xscale("log")
        plain_powers(axes.xaxis)
        axes.set(xlabel="gradient norm", ylabel="share of the batch below", ylim=(0, 1.03))
        axes.legend(loc="best", fontsize=8)

    title = "Distribution of gradient norms, first and last step"
    note = "Marks are deciles of the batch; logarithmic axis."
    return _quantile_plot("norm-spread", title, note, draw, (first, last))


def _ratio_plot(steps: Sequence[int], ratios: Sequence[float | None]) -> Plot:
    def draw(axes: Axes) -> None:
        axes.semilogy(steps, [np.nan if value is None else value for value in ratios], color=BLUE, linewidth=1.2)
        axes.axhline(1.0, color=INK, linestyle=":", linewidth=1.2)
        axes.set(xlabel="step", ylabel="noise-to-signal ratio")
        plain_powers(axes.yaxis)

    note = "Expected norm of the noise over that of the clipped sum. Above the dotted line a step is mostly noise."
    numbers = {"step": steps, "noise_to_signal": ratios}
    return column_plot("noise-to-signal", "Noise-to-signal ratio", note, draw, numbers)


def _by_step(
    name: str, title: str, label: str, colour: str, steps: Sequence[int], values: Sequence[float | None]
) -> Plot:
    def draw(axes: Axes) -> None:
        axes.plot(steps, [np.nan if value is None else value for value in values], color=colour, linewidth=1.2)
        axes.set(xlabel="step", ylabel=label, ylim=(0, None))

    return column_plot(name, title, _EXACT, draw, {"step": steps, label.replace(" ", "_"): values})


def _thinned(rows: Sequence[UnprotectedRow]) -> list[UnprotectedRow]:
    """Return at most a few hundred evenly spaced rows, including the last one."""
    stride = -(-len(rows) // _MOST_POINTS)
    kept = list(rows[::stride])
    return kept if not rows or kept[-1] is rows[-1] else [*kept, rows[-1]]
