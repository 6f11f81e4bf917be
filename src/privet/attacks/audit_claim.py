"""The claim that an audit tests, and the result of the audit."""

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
# Dense near 0 and near 1, so that a step function on the grid loses little in either tail.
_RARE = np.logspace(-12, -2, 240, endpoint=False)
_GRID: Array = np.concatenate([[0.0], _RARE, np.linspace(0.01, 0.99, 600), 1 - _RARE[::-1], [1.0]])


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The privacy claim of a plan for some of its rounds, at the plan's noise multiplier or at another one.

    Attributes:
        plan: The calibrated plan.
        num_rounds: Number of rounds that the attacker observes.
    """

    plan: Plan
    num_rounds: int

    def __post_init__(self) -> None:
        if self.plan.not_private_because:
            raise PlanError(
                f"The plan gives no guarantee to audit, it promises nothing: "
                f"{'; '.join(self.plan.not_private_because)}."
            )
        rounds = checks.count("num_rounds", self.num_rounds)
        if rounds > self.plan.num_rounds:
            raise PlanError(f"num_rounds is {rounds}, and the plan has {self.plan.num_rounds} rounds. Audit fewer.")
        if rounds != self.plan.num_rounds and self.plan.composition.needs_completion:
            raise PlanError("A plan that releases the last iterate only claims nothing about part of its rounds.")

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier that the plan claims."""
        noise = self.plan.noise
        multiplier = noise.noise_multiplier
        if multiplier is None:
            raise PlanError(f"{noise!r} has no noise_multiplier yet. Call plan.calibrated(...) before the audit.")
        return multiplier

    def event(self, noise_multiplier: float) -> DpEvent:
        """Return the event of the rounds at this multiplier."""
        plan = replace(self.plan, noise=self.plan.noise.with_multiplier(noise_multiplier))
        return plan.composition.event(plan.round_event, self.num_rounds)

    def epsilon(self, noise_multiplier: float) -> float:
        """Return the epsilon of the rounds at the plan's delta."""
        return spent_epsilon(self.event(noise_multiplier), delta=self.plan.delta, adjacency=self.plan.adjacency)

    def false_negatives(self, noise_multiplier: float, false_positive_rates: Sequence[float] | Array) -> Array:
        """Return the smallest false-negative rates that the claim allows at these false-positive rates."""
        event = self.event(noise_multiplier)
        privacy_curve = curve(event, self.plan.adjacency)
        if isinstance(privacy_curve, GaussianCurve):
            # closed form of the same function, a hundred times faster
            return np.asarray(ndtr(-ndtri(np.asarray(false_positive_rates)) - privacy_curve.total_mu))
        return trade_off(event, adjacency=self.plan.adjacency, false_positive_rates=false_positive_rates)

    def inverse(self, noise_multiplier: float) -> Callable[[float], float]:
        """Return the function from a true-positive rate to the smallest false-positive rate that the claim allows.

        Guarantee: never above the exact value: between two grid points it returns the smaller value. The trade-off
        function of an adjacency relation is its own inverse, because the relation is symmetric.
        """
        table = self.false_negatives(noise_multiplier, _GRID)

        def least(true_positive_rate: float) -> float:
            place = int(np.searchsorted(_GRID, 1 - true_positive_rate, side="left"))
            return float(table[min(place, len(table) - 1)])

        return least

    def test(self, is_refuted: Callable[[float], bool]) -> tuple[bool, float | None]:
        """Return whether the claim is refuted, and the smallest refuted multiplier found; None if none is refuted.

        Args:
            is_refuted: Whether the evidence refutes the claim at a multiplier. More noise is a stronger claim, so
                every multiplier above a refuted one is refuted too.
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
    """The result of one audit beside the claim. It contains facts about canaries only, not about training data.

    Attributes:
        audit: Name of the audit.
        attacker: Name of the attack.
        num_canaries: Number of canaries; a fair coin decides the membership of each.
        num_observations: Number of scores.
        num_rounds: Number of rounds that the audit ran, which the claim covers.
        confidence: A correct program passes with at least this probability.
        delta: Delta of both epsilons.
        epsilon_bound: Lower bound on epsilon at the confidence; 0 if nothing was proven.
        epsilon_claim: Upper bound on epsilon, by the accountant.
        noise_bound: Upper bound on the noise multiplier at the confidence; None if nothing was proven.
        noise_claim: Noise multiplier of the plan.
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
        """Return the finding as JSON values; infinite numbers become text."""
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
