"""Plots for notebooks: functions that draw into axes of matplotlib and return them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from privet.accounting.guarantee import trade_off
from privet.errors import DependencyError
from privet.plan import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_spending(plan: Plan, axes: Axes | None = None) -> Axes:
    """Draw an upper bound on the epsilon that a plan has spent after each of its rounds."""
    drawn = _axes(axes)
    rounds, epsilons = zip(*plan.epsilon_by_round, strict=True)
    drawn.plot([0, *rounds], [0.0, *epsilons])
    drawn.set(xlabel="rounds", ylabel="epsilon spent, at most", ylim=(0, None))
    return drawn


def plot_trade_off(plan: Plan, axes: Axes | None = None) -> Axes:
    """Draw the fewest misses of any attacker who guesses whether a unit was used, by his share of wrong accusations."""
    drawn = _axes(axes)
    rates = np.linspace(0.0, 1.0, 101)
    missed = trade_off(plan.event, adjacency=plan.adjacency, false_positive_rates=rates)
    drawn.plot(rates, missed, label="best attacker")
    drawn.plot(rates, 1 - rates, linestyle="--", label="guessing")
    drawn.fill_between(rates, 0, missed, alpha=0.15)
    drawn.set(xlabel="wrong accusations", ylabel="misses", xlim=(0, 1), ylim=(0, 1))
    drawn.legend()
    return drawn


def plot_noise(plan: Plan, epsilons: Sequence[float], axes: Axes | None = None) -> Axes:
    """Draw the noise multiplier that a plan needs for each epsilon, on logarithmic axes."""
    drawn = _axes(axes)
    multipliers = [replace(plan).calibrated(epsilon=epsilon).noise.noise_multiplier for epsilon in epsilons]
    drawn.loglog(list(epsilons), multipliers, marker="o")
    drawn.set(xlabel="epsilon", ylabel="noise multiplier")
    return drawn


def _axes(axes: Axes | None) -> Axes:
    if axes is not None:
        return axes
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DependencyError("Plots need matplotlib. Install it with: pip install 'privet[notebook]'.") from None
    return Figure(figsize=(4.5, 3.0)).subplots()
