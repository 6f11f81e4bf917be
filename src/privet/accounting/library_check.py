"""A second opinion: the same event accounted by the dp-accounting library, which shares no code with this one.

The accountants of this package are several times faster than the library's, which is why a plan answers at once; the
library is slower and widely reviewed, which makes it a good witness. Finished runs and certificates ask it.
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
# Both bounds lie above the truth by what their grids cost: a thousandth each, and a grid step at tiny epsilons.
_RELATIVE, _ABSOLUTE = 3e-3, 1e-3


def library_epsilon(event: DpEvent, *, delta: float, adjacency: Adjacency) -> float | None:
    """Return the library's upper bound on epsilon, or None where its loss distributions are out of range.

    Edge cases: delta below 1e-12, no noise, events the library does not know, and compositions whose grid would need
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
    """Return the guarantee with the library's epsilon beside it.

    Raises:
        AccountingError: if the two disagree by more than their grids can explain. Nothing may be promised then.
    """
    witness = library_epsilon(event, delta=promise.delta, adjacency=promise.adjacency)
    if witness is not None and abs(witness - promise.epsilon) > _RELATIVE * witness + _ABSOLUTE:
        raise AccountingError(
            f"Two accountants disagree on this event: {promise.accountant} says epsilon {promise.epsilon:.6g}, the "
            f"dp-accounting library says {witness:.6g}. Promise neither; please report the event."
        )
    return replace(promise, witness=witness)
