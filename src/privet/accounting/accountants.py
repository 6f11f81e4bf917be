"""Accountants: from an event to a privacy curve. Each says what it supports, and refuses rather than guesses.

The factor two of ``Adjacency.REPLACE_ONE`` is applied here and nowhere else: an event always states noise over the norm
bound of one unit, and exchanging one unit for another moves the sum by up to twice that bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from privet import checks
from privet.accounting import renyi
from privet.accounting.curves import SMALLEST_PLD_DELTA, GaussianCurve, LossCurves, PrivacyCurve, RenyiCurve
from privet.accounting.loss_distribution import COARSEST_SPACING, Grid, Part, compose_losses, plan_grid
from privet.accounting.loss_pairs import Removal, Replacement, Reversed
from privet.accounting.releases import Releases, read_releases
from privet.errors import AccountingError, ArgumentError
from privet.mechanism.events import DpEvent
from privet.mechanism.terms import Adjacency

# Outside these multipliers the losses of one step are too large or too small to share a grid with anything.
_PLD_MULTIPLIERS = (1e-3, 1e7)


class Accountant(Protocol):
    """One way to bound what an event reveals."""

    @property
    def name(self) -> str:
        """The name that a guarantee shows."""
        ...

    def supports(self, event: DpEvent, adjacency: Adjacency) -> str | None:
        """Return None when the event can be bounded, else the reason why not."""
        ...

    def curve(self, event: DpEvent, adjacency: Adjacency) -> PrivacyCurve:
        """Compose the event once; raise ``AccountingError`` where ``supports`` gives a reason."""
        ...

    def epsilon(self, event: DpEvent, *, delta: float, adjacency: Adjacency) -> float:
        """Return an upper bound on epsilon, in [0, inf]."""
        ...

    def delta(self, event: DpEvent, *, epsilon: float, adjacency: Adjacency) -> float:
        """Return an upper bound on delta, in [0, 1]."""
        ...


@dataclass(frozen=True, kw_only=True)
class ExactGaussian:
    """Gaussian releases on the whole data set: closed form, no error.

    Guarantee: the curve is the exact trade-off of the composition, under every adjacency.
    Edge cases: nothing released gives epsilon 0; zero noise gives inf.
    """

    name: str = field(default="exact Gaussian", init=False)

    def supports(self, event: DpEvent, adjacency: Adjacency) -> str | None:
        """See ``Accountant``."""
        releases = _read(event, adjacency)
        if releases.unknown:
            return _unknown(releases)
        if releases.sampled and not releases.nothing_hidden:
            return "Sampled releases have no closed form."
        return None

    def curve(self, event: DpEvent, adjacency: Adjacency) -> PrivacyCurve:
        """See ``Accountant``."""
        _refuse(self.supports(event, adjacency))
        releases = _read(event, adjacency)
        mu = np.inf if releases.nothing_hidden else _factor(adjacency) * releases.signal_to_noise
        return GaussianCurve(total_mu=float(mu))

    def epsilon(self, event: DpEvent, *, delta: float, adjacency: Adjacency) -> float:
        """See ``Accountant``."""
        return self.curve(event, adjacency).epsilon(delta)

    def delta(self, event: DpEvent, *, epsilon: float, adjacency: Adjacency) -> float:
        """See ``Accountant``."""
        return _delta_at(self.curve(event, adjacency), epsilon)


@dataclass(frozen=True, kw_only=True)
class PLD:
    """Privacy-loss distributions: tight to about 0.1 percent, always from above; for delta of 1e-12 and more.

    Attributes:
        coarsest_spacing: Largest distance of grid points; a tenth of one step's loss is never exceeded without need, so
            larger values cost at most 0.1 percent and save much time.

    Guarantee: at every epsilon >= 0 the curve lies on or above the true one, for both orders of the two data sets.
    Edge cases: compositions whose grid would be too long or too coarse are refused by ``supports``.
    """

    name: str = field(default="PLD", init=False)
    coarsest_spacing: float = COARSEST_SPACING

    def supports(self, event: DpEvent, adjacency: Adjacency) -> str | None:
        """See ``Accountant``; plans the grid, which costs milliseconds and allocates nothing large."""
        releases = _read(event, adjacency)
        if releases.unknown:
            return _unknown(releases)
        try:
            self._plans(releases, adjacency)
        except AccountingError as refusal:
            return str(refusal)
        return None

    def num_points(self, event: DpEvent, adjacency: Adjacency) -> int:
        """Return how many grid points the composition needs: what it costs in time."""
        return sum(grid.num_points for _, grid in self._plans(_read(event, adjacency), adjacency))

    def _plans(self, releases: Releases, adjacency: Adjacency) -> list[tuple[list[Part], Grid]]:
        if releases.is_empty or releases.nothing_hidden:
            return []
        low, high = _PLD_MULTIPLIERS
        multipliers = [step.noise_multiplier for step in releases.sampled]
        if releases.signal_to_noise > 0:
            multipliers.append(1 / (_factor(adjacency) * releases.signal_to_noise))
        if not all(low <= multiplier <= high for multiplier in multipliers):
            raise AccountingError(
                f"Noise multipliers must lie between {low} and {high}, got {min(multipliers)} to {max(multipliers)}."
            )
        return [(parts, plan_grid(parts, self.coarsest_spacing)) for parts in _directions(releases, adjacency)]

    def curve(self, event: DpEvent, adjacency: Adjacency) -> PrivacyCurve:
        """See ``Accountant``."""
        releases = _read(event, adjacency)
        _refuse(_unknown(releases) if releases.unknown else None)
        plans = self._plans(releases, adjacency)
        if not plans:
            return GaussianCurve(total_mu=float(np.inf if releases.nothing_hidden else 0), accountant=self.name)
        return LossCurves(directions=tuple(compose_losses(parts, grid) for parts, grid in plans), accountant=self.name)

    def epsilon(self, event: DpEvent, *, delta: float, adjacency: Adjacency) -> float:
        """See ``Accountant``."""
        return self.curve(event, adjacency).epsilon(delta)

    def delta(self, event: DpEvent, *, epsilon: float, adjacency: Adjacency) -> float:
        """See ``Accountant``."""
        return _delta_at(self.curve(event, adjacency), epsilon)


@dataclass(frozen=True, kw_only=True)
class RDP:
    """Renyi differential privacy: fast, never fails, looser; the independent check on the others.

    Guarantee: the curve lies above the true one at every epsilon >= 0, for every delta in (0, 1).
    Edge cases: nothing released gives epsilon 0; zero noise gives inf; very small noise gives large finite values.
    """

    name: str = field(default="RDP", init=False)

    def supports(self, event: DpEvent, adjacency: Adjacency) -> str | None:
        """See ``Accountant``."""
        releases = _read(event, adjacency)
        return _unknown(releases) if releases.unknown else None

    def curve(self, event: DpEvent, adjacency: Adjacency) -> PrivacyCurve:
        """See ``Accountant``."""
        _refuse(self.supports(event, adjacency))
        releases = _read(event, adjacency)
        if releases.is_empty or releases.nothing_hidden:
            return GaussianCurve(total_mu=float(np.inf if releases.nothing_hidden else 0), accountant=self.name)
        orders = np.array(renyi.ORDERS)
        total = renyi.gaussian_divergences(orders, _factor(adjacency) * releases.signal_to_noise)
        for step in releases.sampled:
            one = renyi.sampled_divergences(orders, step, replace=adjacency is Adjacency.REPLACE_ONE)
            total = total + float(step.num_steps) * one
        return RenyiCurve(orders=orders, divergences=total, accountant=self.name)

    def epsilon(self, event: DpEvent, *, delta: float, adjacency: Adjacency) -> float:
        """See ``Accountant``."""
        return self.curve(event, adjacency).epsilon(delta)

    def delta(self, event: DpEvent, *, epsilon: float, adjacency: Adjacency) -> float:
        """See ``Accountant``."""
        return _delta_at(self.curve(event, adjacency), epsilon)


def tightest(event: DpEvent, adjacency: Adjacency, delta: float, *, pld: Accountant | None = None) -> Accountant:
    """Return the accountant with the smallest valid bound at delta: exact, else PLD, else RDP.

    A PLD on another grid may stand in for the usual one.
    Raises ``AccountingError`` with every reason when none supports the event.
    """
    delta = checks.probability("delta", delta)
    candidates: list[Accountant] = [ExactGaussian(), pld or PLD(), RDP()]
    if delta < SMALLEST_PLD_DELTA:
        candidates = [ExactGaussian(), RDP()]
    reasons = []
    for accountant in candidates:
        reason = accountant.supports(event, adjacency)
        if reason is None:
            return accountant
        reasons.append(f"{accountant.name}: {reason}")
    raise AccountingError("No accountant can bound this event. " + " ".join(reasons))


def curve(event: DpEvent, adjacency: Adjacency) -> PrivacyCurve:
    """Compose an event once with the tightest accountant for ordinary deltas, and return its curve."""
    return tightest(event, adjacency, SMALLEST_PLD_DELTA).curve(event, adjacency)


def _directions(releases: Releases, adjacency: Adjacency) -> list[list[Part]]:
    whole: list[Part] = []
    if releases.signal_to_noise > 0:
        # A Gaussian pair equals its own reverse, so it is the same part in both directions.
        multiplier = 1 / (_factor(adjacency) * releases.signal_to_noise)
        whole = [(Removal(rate=1.0, noise_multiplier=multiplier), 1)]
    steps = [(step.rate, step.noise_multiplier, step.num_steps) for step in releases.sampled]
    if adjacency is Adjacency.REPLACE_ONE:
        return [whole + [(Replacement(rate=q, noise_multiplier=z), n) for q, z, n in steps]]
    removed = [(Removal(rate=q, noise_multiplier=z), n) for q, z, n in steps]
    added = [(Reversed(pair=pair), n) for pair, n in removed]
    return [whole + removed, whole + added] if steps else [whole]  # type: ignore[operator]


def _read(event: DpEvent, adjacency: Adjacency) -> Releases:
    _factor(adjacency)
    return read_releases(event)


def _factor(adjacency: Adjacency) -> float:
    if not isinstance(adjacency, Adjacency):
        raise ArgumentError(f"adjacency must be a privet Adjacency, got {adjacency!r} ({type(adjacency).__name__}).")
    return 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0


def _unknown(releases: Releases) -> str:
    return f"Events of type {', '.join(releases.unknown)} are not supported."


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise AccountingError(reason)


def _delta_at(curve: PrivacyCurve, epsilon: float) -> float:
    return float(curve.deltas(np.array([checks.number("epsilon", epsilon)]))[0])
