"""The arms of the noise table: which noise, in which units, from which source, and what each must be calibrated by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import cache

from dp_accounting import dp_event

from privet.accounting.accountants import RDP
from privet.accounting.calibration import calibrate_noise
from privet.mechanism.events import DpEvent, compose, gaussian_event
from privet.mechanism.laplace import L2Laplace, ProductLaplace
from privet.vocabulary import Adjacency
from privet_research.studies import noise_sources as sources
from privet_research.studies.noise_budgets import published_multiplier, sound_multiplier
from privet_research.studies.noise_runs import Draw, laplace_draw, normal_draw, radial_draw
from privet_research.studies.noise_sources import EachStep, Oracle, Paid, Plain, Public, Released, Source
from privet_research.studies.noise_terms import Terms

_PAID_SHARE = 0.1


class Charge(Enum):
    """How the noise of an arm is calibrated."""

    GAUSSIAN = "Gaussian, loss distribution"
    GAUSSIAN_RDP = "Gaussian, Renyi"
    PAID = "Gaussian and the release of units, loss distribution"
    RADIAL = "L2-Laplace, loss distribution"
    LAPLACE = "equal Laplace, Renyi"
    ADVANCED = "Gaussian, advanced composition and amplification"
    PUBLISHED = "none: the published split and moment bound do not keep what they promise"
    NOMINAL = "none: not private"


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One line of the table.

    Attributes:
        name: In words.
        source: Where the shape of a step comes from.
        charge: How its noise is calibrated.
        draw: Its standard noise.
        preconditioning: The update is divided by the squared units to this power.
    """

    name: str
    source: Source
    charge: Charge = Charge.GAUSSIAN
    draw: Draw = normal_draw
    preconditioning: float = 0.0


@cache
def release_multiplier(terms: Terms, epsilon: float) -> float:
    """Return the noise of a release of units that takes a tenth of the squared signal-to-noise ratio."""
    whole = calibrate_noise(
        dp_event.GaussianDpEvent, epsilon=epsilon, delta=terms.delta, adjacency=Adjacency.ADD_REMOVE
    )
    return whole / math.sqrt(_PAID_SHARE)


@cache
def multiplier(terms: Terms, charge: Charge, epsilon: float, num_coordinates: int) -> float:
    """Return the noise of every step: the standard deviation of the least noisy coordinate over the bound.

    Guarantee:
        All arms keep epsilon at the delta of the terms. Laplace noise of unequal scales is charged as if all were as
        small as the smallest: more noise on a coordinate is post-processing. What is NOMINAL has no guarantee; it gets
        the noise that an honest arm would need. What is PUBLISHED gets less than that, and has none either.
    """
    if charge is Charge.GAUSSIAN_RDP:
        return _by_divergences(terms, epsilon)
    if charge is Charge.ADVANCED:
        return sound_multiplier(terms, epsilon)
    if charge is Charge.PUBLISHED:
        return published_multiplier(terms, epsilon)

    def event(value: float) -> DpEvent:
        return _event(terms, charge, epsilon, num_coordinates, value)

    return calibrate_noise(event, epsilon=epsilon, delta=terms.delta, adjacency=Adjacency.ADD_REMOVE)


def _event(terms: Terms, charge: Charge, epsilon: float, num_coordinates: int, value: float) -> DpEvent:
    if charge is Charge.RADIAL:
        return terms.sampled(L2Laplace(num_coordinates=num_coordinates, noise_multiplier=value).event())
    if charge is Charge.LAPLACE:
        return terms.sampled(ProductLaplace(sizes=(1.0,) * num_coordinates, noise_multiplier=value).event())
    steps = terms.sampled(dp_event.GaussianDpEvent(value))
    if charge is not Charge.PAID:
        return steps
    release = gaussian_event(bounds=(1.0,), stds=(release_multiplier(terms, epsilon),))
    return compose([(steps, 1), (release, 1)])


def _by_divergences(terms: Terms, epsilon: float) -> float:
    low, high = math.log(1e-2), math.log(1e4)
    while high - low > 1e-4:
        middle = (low + high) / 2
        event = terms.sampled(dp_event.GaussianDpEvent(math.exp(middle)))
        spent = RDP().epsilon(event, delta=terms.delta, adjacency=Adjacency.ADD_REMOVE)
        low, high = (low, middle) if spent <= epsilon else (middle, high)
    return math.exp(high)


def history(rule: sources.Rule, blocks: sources.Blocks, *, is_floored: bool) -> Released:
    """Return units from released gradients."""
    return Released(rule=rule, blocks=blocks, is_floored=is_floored)


PLAIN = Arm(name="Gaussian", source=Plain())
PAID_STEEP = Arm(
    name="preconditioned, rows, a tenth of the budget", source=Paid(power=1.0), charge=Charge.PAID, preconditioning=1.0
)
PUBLIC_STEEP = Arm(name="preconditioned, rows, public", source=Public(power=1.0), preconditioning=1.0)

MAIN_ARMS = (
    PLAIN,
    Arm(name="L2-Laplace", source=Plain(), charge=Charge.RADIAL, draw=radial_draw),
    Arm(
        name="rows, history above its noise",
        source=history(sources.least_variance, sources.rows, is_floored=True),
    ),
    Arm(name="rows, a tenth of the budget", source=Paid(power=0.5), charge=Charge.PAID),
    Arm(name="rows, public", source=Public(power=0.5)),
    PAID_STEEP,
    PUBLIC_STEEP,
)

PROCEDURE_ARMS = (
    PLAIN,
    Arm(name="every step solved for its noise, tight accounting", source=EachStep()),
    Arm(name="every step solved for its noise, advanced composition", source=EachStep(), charge=Charge.ADVANCED),
    Arm(name="every step solved for its noise, as published, NOT PRIVATE", source=EachStep(), charge=Charge.PUBLISHED),
)
"""The procedure of Xiang, Yang and Li (2019): clipping shares the units, sensitivities are public, and the noise of a
step follows from tight accounting, from advanced composition and amplification, and from their own split of a budget.
"""

OTHER_ARMS = (
    Arm(name="Gaussian, Renyi accounting", source=Plain(), charge=Charge.GAUSSIAN_RDP),
    Arm(
        name="Laplace by weight, history",
        source=history(sources.rates_by_weight, sources.each, is_floored=False),
        charge=Charge.LAPLACE,
        draw=laplace_draw,
    ),
    Arm(name="Laplace, equal", source=Plain(), charge=Charge.LAPLACE, draw=laplace_draw),
    Arm(
        name="elliptical, raw history",
        source=history(sources.least_variance, sources.each, is_floored=False),
    ),
    Arm(
        name="elliptical, least absolute noise, raw history",
        source=history(sources.least_absolute, sources.each, is_floored=False),
    ),
    Arm(
        name="elliptical, history above its noise",
        source=history(sources.least_variance, sources.each, is_floored=True),
    ),
    Arm(
        name="rows, raw history",
        source=history(sources.least_variance, sources.rows, is_floored=False),
    ),
    Arm(
        name="layers, raw history",
        source=history(sources.least_variance, sources.layers, is_floored=False),
    ),
    Arm(name="elliptical, true moments, NOT PRIVATE", source=Oracle(power=0.5), charge=Charge.NOMINAL),
    Arm(
        name="preconditioned, true moments, NOT PRIVATE",
        source=Oracle(power=1.0),
        charge=Charge.NOMINAL,
        preconditioning=1.0,
    ),
)
