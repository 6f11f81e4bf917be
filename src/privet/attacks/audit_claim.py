"""The claim that an audit puts to the test, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from privet import checks
from privet.accounting.accountants import curve
from privet.accounting.calibration import spent_epsilon
from privet.accounting.curves import GaussianCurve
from privet.accounting.profile import trade_off
from privet.errors import PlanError
from privet.mechanism.events import DpEvent
from privet.plan import Plan

Array = NDArray[np.float64]
_DOUBLINGS = 7
_PRECISION = 4e-3
# From rare to common and back, so that a step function on the grid loses little in either tail.
_RARE = np.logspace(-12, -2, 240, endpoint=False)
_GRID: Array = np.concatenate([[0.0], _RARE, np.linspace(0.01, 0.99, 600), 1 - _RARE[::-1], [1.0]])


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The claim of a plan about a number of its rounds, and the claim that it would make with other noise.

    Attributes:
        plan: The plan, calibrated.
        num_rounds: How many of its rounds an attacker saw.
    """

    plan: Plan
    num_rounds: int

    def __post_init__(self) -> None:
        """Refuse plans that promise nothing, and rounds that a plan does not have."""
        if self.plan.not_private_because:
            raise PlanError(
                f"There is nothing to audit, because the plan promises nothing: "
                f"{'; '.join(self.plan.not_private_because)}."
            )
        rounds = checks.count("num_rounds", self.num_rounds)
        if rounds > self.plan.num_rounds:
            raise PlanError(f"num_rounds is {rounds}, and the plan has {self.plan.num_rounds} rounds. Audit fewer.")
        if rounds != self.plan.num_rounds and self.plan.composition.needs_completion:
            raise PlanError("A plan that releases the last iterate only claims nothing about part of its rounds.")

    @property
    def noise_multiplier(self) -> float:
        """The ratio of noise to sensitivity that the plan claims."""
        noise = self.plan.noise
        multiplier = noise.noise_multiplier
        if multiplier is None:
            raise PlanError(f"{noise!r} has no noise_multiplier yet. Audit a plan that is calibrated.")
        return multiplier

    def event(self, noise_multiplier: float) -> DpEvent:
        """Return what the rounds would cost with this multiplier."""
        plan = replace(self.plan, noise=self.plan.noise.with_multiplier(noise_multiplier))
        return plan.composition.event(plan.round_event, self.num_rounds)

    def epsilon(self, noise_multiplier: float) -> float:
        """Return the epsilon of the rounds at the plan's delta."""
        return spent_epsilon(self.event(noise_multiplier), delta=self.plan.delta, adjacency=self.plan.adjacency)

    def false_negatives(self, noise_multiplier: float, false_positive_rates: Sequence[float] | Array) -> Array:
        """Return the least rates of false negatives that the claim allows."""
        event = self.event(noise_multiplier)
        drawn = curve(event, self.plan.adjacency)
        if isinstance(drawn, GaussianCurve):
            # the same function in closed form, a hundred times faster
            return np.asarray(ndtr(-ndtri(np.asarray(false_positive_rates)) - drawn.total_mu))
        return trade_off(event, adjacency=self.plan.adjacency, false_positive_rates=false_positive_rates)

    def inverse(self, noise_multiplier: float) -> Callable[[float], float]:
        """Return the function from a rate of true positives to the least rate of false positives that comes with it.

        Guarantee: never above the true one; between the points of a fixed grid it takes the lower end. The trade-off
        function of an adjacency relation is its own inverse, since either data set may be the true one.
        """
        table = self.false_negatives(noise_multiplier, _GRID)

        def least(true_positive_rate: float) -> float:
            place = int(np.searchsorted(_GRID, 1 - true_positive_rate, side="left"))
            return float(table[min(place, len(table) - 1)])

        return least

    def test(self, is_refuted: Callable[[float], bool]) -> tuple[bool, float | None]:
        """Return whether the claim is refuted, and the least multiplier found whose claim is; None if there is none.

        Args:
            is_refuted: Says of a multiplier whether the evidence refutes the claim made with it. More noise claims
                more, so once refuted, every larger multiplier is.
        """
        claimed = self.noise_multiplier
        broken = is_refuted(claimed)
        low, high = claimed, claimed
        for _ in range(_DOUBLINGS):
            if broken:
                low, high = low / 2, low
                if not is_refuted(low):
                    break
            else:
                low, high = high, high * 2
                if is_refuted(high):
                    break
        else:
            return broken, (low if broken else None)
        while high / low > 1 + _PRECISION:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if is_refuted(middle) else (middle, high)
        return broken, high


@dataclass(frozen=True, kw_only=True)
class AuditFinding:
    """The finding of one audit, beside the claim. It is about canaries only, not about training data.

    Attributes:
        audit: Which audit, in words.
        attacker: What the attacker used, in words.
        num_canaries: Canaries, each in or out by fair coins.
        num_observations: Scores that were judged.
        num_rounds: Rounds of the plan that were run and that the claim is about.
        confidence: A correct program passes with at least this probability.
        delta: Of both epsilons.
        epsilon_bound: Epsilon is at least this, with the confidence; 0 when nothing was proven.
        epsilon_claim: Epsilon is at most this, by the accountant.
        noise_bound: The multiplier is at most this, with the confidence; None when nothing was proven or not asked.
        noise_claim: The multiplier of the plan that was run.
        is_broken: Whether the claim is refuted.
    """

    audit: str
    attacker: str
    num_canaries: int
    num_observations: int
    num_rounds: int
    confidence: float
    delta: float
    epsilon_bound: float
    epsilon_claim: float
    noise_bound: float | None
    noise_claim: float
    is_broken: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain JSON values; infinite numbers as text."""
        return {
            name: "infinity" if isinstance(value, float) and math.isinf(value) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        with checks.reading("the finding of an audit"):
            bound = data["noise_bound"]
            return cls(
                audit=str(data["audit"]),
                attacker=str(data["attacker"]),
                is_broken=data["is_broken"] is True,
                noise_bound=None if bound is None else _number_in("noise_bound", bound),
                num_canaries=checks.count("num_canaries", data["num_canaries"], minimum=0),
                num_observations=checks.count("num_observations", data["num_observations"], minimum=0),
                num_rounds=checks.count("num_rounds", data["num_rounds"], minimum=0),
                **{name: _number_in(name, data[name]) for name in _NUMBERS},
            )


_NUMBERS = ("confidence", "delta", "epsilon_bound", "epsilon_claim", "noise_claim")


def _number_in(name: str, value: Any) -> float:
    return math.inf if value == "infinity" else checks.non_negative(name, value)
