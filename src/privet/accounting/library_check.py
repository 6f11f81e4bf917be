"""Cross-check by the dp-accounting library, which shares no code with the accountants of this package.

The accountants of this package are several times faster, so plans are accounted immediately. The library is slower and
widely reviewed; finished runs and certificates are checked with it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant

from privet.accounting.accountants import PLD
from privet.accounting.curves import SMALLEST_PLD_DELTA
from privet.accounting.event_reader import read_releases
from privet.accounting.guarantee import Guarantee
from privet.accounting.mechanisms import TruncatedGaussian
from privet.errors import AccountingError
from privet.mechanism.events import DpEvent
from privet.vocabulary import Adjacency

_RELATIONS = {
    Adjacency.ADD_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
    Adjacency.REPLACE_ONE: NeighboringRelation.REPLACE_ONE,
    Adjacency.ZERO_OUT: NeighboringRelation.REPLACE_SPECIAL,
}
_FINEST_SPACING, _COARSEST_SPACING = 2e-6, 1e-4
_MAX_POINTS = 1 << 20
# Both bounds exceed the true epsilon by their discretisation error: 0.1 percent each, and one grid step near zero.
_RELATIVE, _ABSOLUTE = 3e-3, 1e-3


def library_epsilon(event: DpEvent, *, delta: float, adjacency: Adjacency) -> float | None:
    """Return the upper bound of the library on epsilon, or None outside the range of its loss distributions.

    Edge cases: delta below 1e-12, no noise, events that the library does not support, and compositions whose grid needs
    gigabytes give None.
    """
    releases = read_releases(event)
    ours = PLD()
    if releases.unknown or releases.nothing_hidden or releases.is_empty or delta < SMALLEST_PLD_DELTA:
        return None
    truncated = [mechanism for mechanism, _ in releases.others if isinstance(mechanism, TruncatedGaussian)]
    if len(truncated) < len(releases.others) or releases.selections or releases.total_variation:
        return None
    if ours.supports(event, adjacency) is not None or ours.num_points(event, adjacency) > _MAX_POINTS:
        return None
    sampled = [(step.rate, step.noise_multiplier) for step in releases.sampled]
    sampled += [(mechanism.rate, mechanism.noise_multiplier) for mechanism in truncated]
    steps = [rate * math.sqrt(math.expm1(multiplier**-2)) for rate, multiplier in sampled]
    spacing = min(_COARSEST_SPACING, max(_FINEST_SPACING, 0.1 * min(steps, default=1.0)))
    accountant = PLDAccountant(_RELATIONS[adjacency], value_discretization_interval=spacing)
    accountant.compose(event)
    return float(accountant.get_epsilon(delta))


def confirmed(promise: Guarantee, event: DpEvent) -> Guarantee:
    """Return the guarantee with the epsilon of the library as its witness.

    Raises:
        AccountingError: the two epsilons differ by more than the discretisation error.
    """
    witness = library_epsilon(event, delta=promise.delta, adjacency=promise.adjacency)
    if witness is not None and abs(witness - promise.epsilon) > _RELATIVE * witness + _ABSOLUTE:
        raise AccountingError(
            f"Two accountants disagree on this event: {promise.accountant} says epsilon {promise.epsilon:.6g}, the "
            f"dp-accounting library says {witness:.6g}. Do not use either figure; please report the event as a bug."
        )
    return replace(promise, witness=witness)
