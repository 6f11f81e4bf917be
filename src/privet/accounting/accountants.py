"""Accountants compute the privacy curve of an event. An accountant refuses an event that it cannot bound.

An event states noise over the norm bound of one unit. Under ``Adjacency.REPLACE_ONE`` the sum moves by up to twice that
bound; the accountants apply this factor (``neighbour_distance``), the events never contain it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np

from privet import checks
from privet.accounting import renyi
from privet.accounting.curves import SMALLEST_PLD_DELTA, GaussianCurve, LossCurves, PrivacyCurve, RenyiCurve
from privet.accounting.dominating_pairs import Removal
from privet.accounting.event_reader import Releases, read_releases
from privet.accounting.kept_curves import KeptCurves
from privet.accounting.loss_distribution import COARSEST_SPACING, Grid, Part, compose_losses, plan_grid
from privet.accounting.mechanisms import Losses, SampledPure, neighbour_distance, sampled_pairs
from privet.accounting.pure_composition import MOST_RELEASES, PureCurve
from privet.accounting.renyi_composition import total_divergences
from privet.accounting.total_variation import surcharged
from privet.errors import AccountingError
from privet.mechanism.events import DpEvent
from privet.vocabulary import Adjacency

# Outside this range the losses of one step are too large or too small for any grid.
_PLD_MULTIPLIERS = (1e-3, 1e7)
# At most a hundred megabytes; the curves of an ordinary run have a few thousand points each.
_KEPT = KeptCurves(most_points=2**22)


class Accountant(Protocol):
    """A method that bounds the privacy loss of an event.

    Attributes:
        name: The name in a guarantee.
    """

    @property
    def name(self) -> str: ...

    def supports(self, event: DpEvent, adjacency: Adjacency) -> str | None:
        """Return None if the accountant can bound the event, otherwise the reason."""
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


class CurveAccountant(ABC):
    """An accountant that reads epsilon and delta from its curve. A subclass writes ``supports`` and ``curve``."""

    @abstractmethod
    def supports(self, event: DpEvent, adjacency: Adjacency) -> str | None: ...

    @abstractmethod
    def curve(self, event: DpEvent, adjacency: Adjacency) -> PrivacyCurve: ...

    def epsilon(self, event: DpEvent, *, delta: float, adjacency: Adjacency) -> float:
        return self.curve(event, adjacency).epsilon(delta)

    def delta(self, event: DpEvent, *, epsilon: float, adjacency: Adjacency) -> float:
        return float(self.curve(event, adjacency).deltas(np.array([checks.number("epsilon", epsilon)]))[0])


@dataclass(frozen=True, kw_only=True)
class ExactGaussian(CurveAccountant):
    """Gaussian releases on the whole data set, in closed form.

    Guarantee: the curve is the exact trade-off of the composition, under every adjacency.
    Edge cases: an empty event gives epsilon 0; zero noise gives inf.
    """

    name: str = field(default="exact Gaussian", init=False)

    def supports(self, event: DpEvent, adjacency: Adjacency) -> str | None:
        releases = _read(event, adjacency)
        refusal = _refusal(releases, adjacency)
        if refusal is None and not releases.nothing_hidden:
            if releases.sampled:
                return "Sampled releases have no closed form."
            if releases.others or releases.selections:
                return "Only Gaussian releases have this closed form."
        return refusal

    def curve(self, event: DpEvent, adjacency: Adjacency) -> PrivacyCurve:
        _refuse(self.supports(event, adjacency))
        releases = _read(event, adjacency)
        mu = np.inf if releases.nothing_hidden else neighbour_distance(adjacency) * releases.signal_to_noise
        return surcharged(GaussianCurve(total_mu=float(mu)), releases.total_variation)


@dataclass(frozen=True, kw_only=True)
class ExactPure(CurveAccountant):
    """Equal pure releases, all on Poisson samples of one rate or all on the whole data set: an exact finite sum.

    Guarantee: the curve is the exact one of the worst mechanism with these pure guarantees.
    Edge cases: mixtures of different pure releases, and more than ten million, are refused.
    """

    name: str = field(default="exact pure composition", init=False)

    def supports(self, event: DpEvent, adjacency: Adjacency) -> str | None:
        releases = _read(event, adjacency)
        if releases.nothing_hidden or releases.signal_to_noise or releases.sampled or releases.selections:
            return "Only pure releases have this closed form."
        if len(releases.others) != 1 or not isinstance(releases.others[0][0], SampledPure):
            return "Only equal pure releases have this closed form."
        if releases.others[0][1] > MOST_RELEASES:
            return f"More than {MOST_RELEASES} pure releases are too many to sum over."
        return _refusal(releases, adjacency)

    def curve(self, event: DpEvent, adjacency: Adjacency) -> PrivacyCurve:
        _refuse(self.supports(event, adjacency))
        releases = _read(event, adjacency)
        mechanism, count = releases.others[0]
        assert isinstance(mechanism, SampledPure)
        pair = mechanism.pair(adjacency)
        drawn = PureCurve(rate=pair.rate, epsilon_each=pair.epsilon, num_releases=count, accountant=self.name)
        return surcharged(drawn, releases.total_variation)


@dataclass(frozen=True, kw_only=True)
class PLD(CurveAccountant):
    """Privacy-loss distributions: tight to about 0.1 percent, always from above; for delta of 1e-12 and more.

    Attributes:
        coarsest_spacing: Largest distance of grid points. A larger value saves time and costs at most 0.1 percent,
            because the grid is finer than a tenth of the loss of one step wherever that is possible.

    Guarantee: at every epsilon >= 0 the curve lies on or above the true one, for both orders of the two data sets.
    Edge cases: compositions whose grid would be too long or too coarse are refused by ``supports``.
    """

    name: str = field(default="PLD", init=False)
    coarsest_spacing: float = COARSEST_SPACING

    def supports(self, event: DpEvent, adjacency: Adjacency) -> str | None:
        """Plan the grid without composing; this takes milliseconds and little memory."""
        releases = _read(event, adjacency)
        refusal = _refusal(releases, adjacency)
        if refusal is not None:
            return refusal
        try:
            self._grids(releases, adjacency)
        except AccountingError as refusal:
            return str(refusal)
        return None

    def num_points(self, event: DpEvent, adjacency: Adjacency) -> int:
        """Return the number of grid points of the composition, which decides its running time."""
        return sum(grid.num_points for grid in self._grids(_read(event, adjacency), adjacency))

    def _grids(self, releases: Releases, adjacency: Adjacency) -> tuple[Grid, ...]:
        """Return a grid for each direction; none where there is nothing to compose."""
        if releases.is_empty or releases.nothing_hidden:
            return ()
        if releases.selections:
            raise AccountingError("A search of random length has no loss distribution. Use RDP.")
        low, high = _PLD_MULTIPLIERS
        multipliers = [step.noise_multiplier for step in releases.sampled]
        multipliers += [mechanism.noise_ratio for mechanism, _ in releases.others]
        if releases.signal_to_noise > 0:
            multipliers.append(1 / (neighbour_distance(adjacency) * releases.signal_to_noise))
        if not all(low <= multiplier <= high for multiplier in multipliers):
            raise AccountingError(
                f"Noise multipliers must lie between {low} and {high}, got {min(multipliers)} to {max(multipliers)}."
            )
        return _planned(releases, adjacency, self.coarsest_spacing)

    def epsilon(self, event: DpEvent, *, delta: float, adjacency: Adjacency) -> float:
        return _epsilon(self, _read(event, adjacency), adjacency, delta)

    def curve(self, event: DpEvent, adjacency: Adjacency) -> PrivacyCurve:
        return self.composed(_read(event, adjacency), adjacency)

    def composed(self, releases: Releases, adjacency: Adjacency) -> PrivacyCurve:
        """Return the curve of an event that was read."""
        _refuse(_refusal(releases, adjacency))
        grids = self._grids(releases, adjacency)
        if not grids:
            return surcharged(_trivial(releases, self.name), releases.total_variation)

        def compose() -> LossCurves:
            pairs = zip(_directions(releases, adjacency), grids, strict=True)
            return LossCurves(directions=tuple(compose_losses(*pair) for pair in pairs), accountant=self.name)

        return surcharged(_KEPT.get((self, releases, adjacency), compose), releases.total_variation)


@dataclass(frozen=True, kw_only=True)
class RDP(CurveAccountant):
    """Renyi differential privacy: fast, always available and looser; the independent cross-check of the others.

    Guarantee: the curve lies above the true one at every epsilon >= 0, for every delta in (0, 1).
    Edge cases: an empty event gives epsilon 0; zero noise gives inf; very small noise gives large finite values.
    """

    name: str = field(default="RDP", init=False)

    def supports(self, event: DpEvent, adjacency: Adjacency) -> str | None:
        return _refusal(_read(event, adjacency), adjacency)

    def curve(self, event: DpEvent, adjacency: Adjacency) -> PrivacyCurve:
        _refuse(self.supports(event, adjacency))
        releases = _read(event, adjacency)
        if releases.is_empty or releases.nothing_hidden:
            drawn: PrivacyCurve = _trivial(releases, self.name)
        else:
            orders = np.array(renyi.ORDERS)
            total = total_divergences(orders, releases, adjacency)
            drawn = RenyiCurve(orders=orders, divergences=total, accountant=self.name)
        return surcharged(drawn, releases.total_variation)


ACCOUNTANTS: tuple[Callable[[], Accountant], ...] = (ExactGaussian, ExactPure, PLD, RDP)
"""All accountants, the tightest first."""


def tightest(event: DpEvent, adjacency: Adjacency, delta: float, *, pld: Accountant | None = None) -> Accountant:
    """Return the accountant with the smallest valid bound at delta: an exact one, else PLD, else RDP.

    ``pld`` replaces the default PLD accountant, for instance by one with a coarser grid.
    Raises ``AccountingError`` with every reason if no accountant supports the event.
    """
    delta = checks.probability("delta", delta)
    kinds = [kind for kind in ACCOUNTANTS if kind is not PLD or delta >= SMALLEST_PLD_DELTA]
    candidates = [pld if kind is PLD and pld is not None else kind() for kind in kinds]
    reasons = []
    for accountant in candidates:
        reason = accountant.supports(event, adjacency)
        if reason is None:
            return accountant
        reasons.append(f"{accountant.name}: {reason}")
    raise AccountingError("No accountant can bound this event. " + " ".join(reasons))


def curve(event: DpEvent, adjacency: Adjacency) -> PrivacyCurve:
    """Return the curve of the tightest accountant for deltas of 1e-12 and more."""
    return tightest(event, adjacency, SMALLEST_PLD_DELTA).curve(event, adjacency)


# A log asks for the epsilon of the same rounds in every session, and long curves are soon no longer kept.
@lru_cache(maxsize=4096)
def _epsilon(pld: PLD, releases: Releases, adjacency: Adjacency, delta: float) -> float:
    return pld.composed(releases, adjacency).epsilon(delta)


# A plan is asked for its grid before each composition. Parts are not kept: some hold long arrays.
@lru_cache(maxsize=1024)
def _planned(releases: Releases, adjacency: Adjacency, coarsest_spacing: float) -> tuple[Grid, ...]:
    return tuple(plan_grid(parts, coarsest_spacing) for parts in _directions(releases, adjacency))


def _directions(releases: Releases, adjacency: Adjacency) -> list[list[Part]]:
    whole: list[Part] = []
    if releases.signal_to_noise > 0:
        # A Gaussian pair equals its own reverse, so it is the same part in both directions.
        multiplier = 1 / (neighbour_distance(adjacency) * releases.signal_to_noise)
        whole = [(Removal(rate=1.0, noise_multiplier=multiplier), 1)]
    removed, added = list(whole), list(whole)
    pairs: list[tuple[tuple[Losses, Losses], int]] = [
        (sampled_pairs(step.rate, step.noise_multiplier, adjacency), step.num_steps) for step in releases.sampled
    ]
    pairs += [(mechanism.losses(adjacency), count) for mechanism, count in releases.others]
    for (when_removed, when_added), count in pairs:
        removed.append((when_removed, count))
        added.append((when_added, count))
    return [removed] if removed == added else [removed, added]


def _read(event: DpEvent, adjacency: Adjacency) -> Releases:
    neighbour_distance(adjacency)
    return read_releases(event)


def _refusal(releases: Releases, adjacency: Adjacency) -> str | None:
    if releases.unknown:
        return f"Events of type {', '.join(releases.unknown)} are not supported."
    if releases.nothing_hidden:
        return None
    reasons = [mechanism.refusal(adjacency) for mechanism, _ in releases.others]
    reasons += [_refusal(selection.one_run, adjacency) for selection, _ in releases.selections]
    return next((reason for reason in reasons if reason is not None), None)


def _trivial(releases: Releases, name: str) -> GaussianCurve:
    return GaussianCurve(total_mu=float(np.inf if releases.nothing_hidden else 0), accountant=name)


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise AccountingError(reason)
