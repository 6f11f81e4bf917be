"""Noise of one step by the rules of Xiang, Yang and Li (2019), by a sound reading of them, and by tight accounting.

The published procedure splits a budget over steps by advanced composition and amplification by sampling, then solves
for the noise of a step. Its split divides by the sampling rate and its bound on a step's loss lacks a factor, so the
noise that follows from it does not keep what it promises; what it really keeps is computed beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dp_accounting import dp_event
from scipy.optimize import brentq

from privet import checks
from privet.accounting.calibration import calibrate_noise, spent_epsilon
from privet.errors import CalibrationError
from privet.vocabulary import Adjacency
from privet_research.studies.markdown import markdown
from privet_research.studies.noise_terms import Terms

if TYPE_CHECKING:
    import torch

Row = dict[str, Any]
# The order of the moment bound in the authors' code.
PUBLISHED_ORDER = 3000.0
MNIST = Terms(rate=512 / 60_000, steps=7031, delta=1e-5)


class StepBudget(NamedTuple):
    """What one step may spend, before sampling."""

    epsilon: float
    delta: float


def published_budget(terms: Terms, epsilon: float) -> StepBudget:
    """Return the published split: ``epsilon / (2 q sqrt(T log(e + epsilon / delta)))`` and ``delta / (2 T q)``."""
    checks.positive("epsilon", epsilon)
    spread = 2 * terms.rate * math.sqrt(terms.steps * math.log(math.e + epsilon / terms.delta))
    return StepBudget(epsilon=epsilon / spread, delta=terms.delta / (2 * terms.steps * terms.rate))


def published_multiplier(terms: Terms, epsilon: float) -> float:
    """Return the noise by the published bound, ``(1 / z)^2 <= 2 epsilon + (2 / order) log delta``: NOT PRIVATE.

    A correct moment bound has a further ``1 + order`` below the right-hand side.
    """
    budget = published_budget(terms, epsilon)
    room = 2 * budget.epsilon + 2 / PUBLISHED_ORDER * math.log(budget.delta)
    if room <= 0:
        raise CalibrationError(
            f"The published bound allows no noise at epsilon {epsilon:g}: its right side is {room:g}."
        )
    return 1 / math.sqrt(room)


def moment_multiplier(budget: StepBudget) -> float:
    """Return the noise by the correct moment bound, ``(1 / z)^2 <= 2 (epsilon + log(delta) / k) / (1 + k)``.

    Guarantee:
        The privacy loss is normal with mean ``s / 2`` and variance ``s = (1 / z)^2``, so its moment of order ``k`` is
        ``exp(s k (1 + k) / 2)``; Markov's inequality at the best order is what is solved here.
    """
    log_delta = -math.log(checks.probability("delta", budget.delta))
    epsilon = checks.positive("epsilon", budget.epsilon)
    order = (log_delta + math.sqrt(log_delta * (log_delta + epsilon))) / epsilon
    return 1 / math.sqrt(2 * (epsilon - log_delta / order) / (1 + order))


def step_multiplier(budget: StepBudget) -> float:
    """Return the least Gaussian noise that keeps a step's own budget."""
    return calibrate_noise(
        dp_event.GaussianDpEvent, epsilon=budget.epsilon, delta=budget.delta, adjacency=Adjacency.ADD_REMOVE
    )


def sound_budget(terms: Terms, epsilon: float) -> StepBudget:
    """Return the largest step budget that advanced composition and amplification allow.

    Guarantee:
        A step that is (e, d) private before Poisson sampling is (log(1 + q (exp(e) - 1)), q d) private after it; T such
        steps of (e', d') are (sqrt(2 T log(1 / s)) e' + T e' (exp(e') - 1), T d' + s) private (Dwork, Rothblum and
        Vadhan 2010). Half of delta goes to ``s``, half to the steps.
    """
    target, slack = checks.positive("epsilon", epsilon), terms.delta / 2

    def excess(log_step: float) -> float:
        sampled = math.log1p(terms.rate * math.expm1(math.exp(log_step)))
        whole = math.sqrt(2 * terms.steps * math.log(1 / slack)) * sampled + terms.steps * sampled * math.expm1(sampled)
        return whole - target

    # the lower side of the crossing, so that rounding never spends more
    step = math.exp(brentq(excess, math.log(1e-9), math.log(50.0), xtol=1e-12)) * (1 - 1e-9)
    return StepBudget(epsilon=step, delta=slack / (terms.steps * terms.rate))


def sound_multiplier(terms: Terms, epsilon: float) -> float:
    """Return the noise of a step by :func:`sound_budget`."""
    return step_multiplier(sound_budget(terms, epsilon))


def moments_formula(terms: Terms, epsilon: float) -> float:
    """Return ``2 q sqrt(T log(1 / delta)) / epsilon``, a rule of thumb that follows Abadi et al. (2016)."""
    return 2 * terms.rate * math.sqrt(terms.steps * math.log(1 / terms.delta)) / checks.positive("epsilon", epsilon)


def tight_multiplier(terms: Terms, epsilon: float) -> float:
    """Return the least Gaussian noise of a step that keeps the whole budget."""
    return calibrate_noise(
        lambda value: terms.sampled(dp_event.GaussianDpEvent(value)),
        epsilon=epsilon,
        delta=terms.delta,
        adjacency=Adjacency.ADD_REMOVE,
    )


def run_budget_study(
    *,
    seeds: Sequence[int],
    device: torch.device,
    epsilons: Sequence[float] = (0.5, 1.0, 2.0, 8.0),
    terms: Terms = MNIST,
) -> Iterator[Row]:
    """Yield the noise of every rule at every epsilon, and the epsilon that it really keeps; nothing is random."""
    rules = {
        "published bound": published_multiplier,
        "published split, moment bound corrected": lambda terms, epsilon: moment_multiplier(
            published_budget(terms, epsilon)
        ),
        "published split, exact noise": lambda terms, epsilon: step_multiplier(published_budget(terms, epsilon)),
        "advanced composition, sound": sound_multiplier,
        "rule of thumb": moments_formula,
        "tight": tight_multiplier,
    }
    for epsilon in epsilons:
        for name, rule in rules.items():
            noise = rule(terms, epsilon)
            event = terms.sampled(dp_event.GaussianDpEvent(noise))
            yield {
                "arm": name,
                "seed": seeds[0],
                "epsilon": epsilon,
                "noise_multiplier": noise,
                "true_epsilon": spent_epsilon(event, delta=terms.delta, adjacency=Adjacency.ADD_REMOVE),
                "rate": terms.rate,
                "steps": terms.steps,
                "delta": terms.delta,
            }


def budget_table(rows: Sequence[Row]) -> str:
    """Return the study as Markdown: noise multiplier, and in brackets the epsilon that it really keeps."""
    epsilons = sorted({row["epsilon"] for row in rows})
    head = ["rule", *(f"claims {epsilon:g}" for epsilon in epsilons)]
    lines = [head]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        cells = {row["epsilon"]: row for row in rows if row["arm"] == arm}
        shown = [
            f"{cells[one]['noise_multiplier']:.3g} ({cells[one]['true_epsilon']:.3g})" if one in cells else ""
            for one in epsilons
        ]
        lines.append([arm, *shown])
    row = rows[0]
    terms = (
        f"Noise over the bound of a step, and in brackets the epsilon it really keeps at delta {row['delta']:g}: "
        f"Poisson rate {row['rate']:.4g}, {row['steps']} steps. Where that is above the claim, the promise is broken."
    )
    return terms + "\n\n" + markdown(lines) + "\n"
