"""Cross-check by the dp-accounting library, which shares no code with the accountants of this package.

The accountants of this package are several times faster, so plans are accounted immediately. The library is slower and
widely reviewed; finished runs and certificates are checked with it.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import lru_cache

from dp_accounting import NeighboringRelation
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from dp_accounting.pld import PLDAccountant

from privet.accounting.accountants import PLD
from privet.accounting.curves import SMALLEST_PLD_DELTA
from privet.accounting.event_reader import read_releases
from privet.accounting.guarantee import Guarantee
from privet.accounting.mechanisms import TruncatedGaussian
from privet.accounting.sampled_records import SampledRecords, binomial_weights
from privet.errors import AccountingError
from privet.mechanism.events import DpEvent, SampledRecordsDpEvent, decode_event, encode_event, flatten
from privet.vocabulary import Adjacency

_RELATIONS = {
    Adjacency.ADD_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
    Adjacency.REPLACE_ONE: NeighboringRelation.REPLACE_ONE,
    Adjacency.ZERO_OUT: NeighboringRelation.REPLACE_SPECIAL,
}
_FINEST_SPACING, _COARSEST_SPACING = 2e-6, 1e-4
_MAX_POINTS = 1 << 20
# The library inverts the loss of a mixture by bisection, point by point: half a second per record on this grid.
_MOST_RECORDS, _OWNED_SPACING = 16, 1e-3
# Both bounds exceed the true epsilon by their discretisation error: 0.1 percent each, and one grid step near zero.
_RELATIVE, _ABSOLUTE = 3e-3, 1e-3


def library_epsilon(event: DpEvent, *, delta: float, adjacency: Adjacency) -> float | None:
    """Return the upper bound of the library on epsilon, or None outside the range of its loss distributions.

    Edge cases: delta below 1e-12, no noise, events that the library does not support, compositions whose grid needs
    gigabytes, and more than 16 records of one unit give None.
    """
    releases = read_releases(event)
    ours = PLD()
    if releases.unknown or releases.nothing_hidden or releases.is_empty or delta < SMALLEST_PLD_DELTA:
        return None
    truncated = [mechanism for mechanism, _ in releases.others if isinstance(mechanism, TruncatedGaussian)]
    owned = [mechanism for mechanism, _ in releases.others if isinstance(mechanism, SampledRecords)]
    if len(truncated) + len(owned) < len(releases.others) or releases.selections or releases.total_variation:
        return None
    if ours.supports(event, adjacency) is not None or ours.num_points(event, adjacency) > _MAX_POINTS:
        return None
    sampled = [(step.rate, step.noise_multiplier) for step in releases.sampled]
    sampled += [(mechanism.rate, mechanism.noise_multiplier) for mechanism in truncated]
    steps = [rate * math.sqrt(math.expm1(multiplier**-2)) for rate, multiplier in sampled]
    coarsest = _COARSEST_SPACING
    if owned:
        if max(mechanism.num_records for mechanism in owned) > _MOST_RECORDS:
            return None
        coarsest = _OWNED_SPACING
        # the loss of several records varies at least as much as that of their mean number
        steps += [each.num_records * each.rate * math.sqrt(math.expm1(each.noise_multiplier**-2)) for each in owned]
    spacing = min(coarsest, max(_FINEST_SPACING, 0.1 * min(steps, default=1.0)))
    return _composed(json.dumps(encode_event(event)), delta, adjacency, spacing)


# A run, its report and its certificate ask the same question, and the library takes seconds for it.
@lru_cache(maxsize=64)
def _composed(written: str, delta: float, adjacency: Adjacency, spacing: float) -> float:
    """Return the library's epsilon of an event that is written as JSON."""
    accountant = PLDAccountant(_RELATIONS[adjacency], value_discretization_interval=spacing)
    for part, count in flatten(decode_event(json.loads(written))):
        accountant.compose(_as_mixture(part) if isinstance(part, SampledRecordsDpEvent) else part, count)
    return float(accountant.get_epsilon(delta))


def _as_mixture(part: SampledRecordsDpEvent) -> DpEvent:
    """Return the library's event for several sampled records of one unit."""
    weights = binomial_weights(part.num_records, part.sampling_probability)
    return MixtureOfGaussiansDpEvent(part.noise_multiplier, [float(j) for j in range(len(weights))], weights)


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
