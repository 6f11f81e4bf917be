"""A temperature from noisy counts of probabilities: it changes confidence, and no decision."""

from __future__ import annotations

import numpy as np

from privet.effects.noisy_counts.terms import SCORE_EDGES, Array

_TRIED = np.geomspace(0.25, 8.0, 101)


def temperature_of(misses: Array, hits: Array, *, std: float) -> float:
    """Return the temperature whose log loss on the counted probabilities is least; 1 where noise could explain it.

    Args:
        misses: Noisy counts, by bin of the probability, of those that did not come true.
        hits: The same of those that came true.
        std: Standard deviation of the noise of a count.
    """
    edges = np.array(SCORE_EDGES)
    middle = (edges[:-1] + edges[1:]) / 2
    logits = np.log(middle) - np.log1p(-middle)
    heated = logits / _TRIED[:, None]
    of_hit, of_miss = np.logaddexp(0.0, -heated), np.logaddexp(0.0, heated)
    losses = of_hit @ hits + of_miss @ misses
    unchanged = int(np.abs(np.log(_TRIED)).argmin())
    best = int(losses.argmin())
    changed = ((of_hit[best] - of_hit[unchanged]) ** 2 + (of_miss[best] - of_miss[unchanged]) ** 2).sum()
    gain = losses[unchanged] - losses[best]
    return float(_TRIED[best]) if gain > 2 * std * np.sqrt(changed) else 1.0
