"""The guarantee: an epsilon with delta, adjacency, unit, release, accountant and assumptions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

from scipy.special import ndtr, ndtri

from privet import checks
from privet.accounting.accountants import RDP, ExactGaussian, tightest
from privet.accounting.curves import GaussianCurve, PrivacyCurve
from privet.accounting.profile import Profile, delta_at, privacy_profile, trade_off, true_positive_bound
from privet.accounting.total_variation import SurchargedCurve
from privet.errors import AccountingError, ArgumentError, TruncationError
from privet.html_tables import facts_table
from privet.mechanism.events import DpEvent
from privet.vocabulary import Adjacency, Release, Unit

__all__ = [
    "Guarantee",
    "Profile",
    "delta_at",
    "guarantee",
    "privacy_profile",
    "rounded_up",
    "trade_off",
    "unverifiable_assumptions",
]

_INFINITY = "infinity"
_ATTACK_RATE = 0.01
# Above this an epsilon allows odds beyond a hundred million, which is no protection.
LARGEST_USEFUL_EPSILON = 20.0
# The exponential of a larger number overflows a double.
_LARGEST_EXPONENT = 700.0
# Discretisation error of a loss distribution. If it exceeds RDP by more, one of the two is wrong.
_BRACKET_RELATIVE, _BRACKET_ABSOLUTE = 1e-3, 1e-3
_SEEN_BY = {
    Release.EVERY_ITERATE: "everyone who sees the model after any or all of the training steps, checkpoints included",
    Release.LAST_ITERATE: "everyone who sees the final model, provided no earlier version of it was ever shown",
}
_CHANGE = {
    Adjacency.ADD_REMOVE: "add-or-remove one {unit}",
    Adjacency.REPLACE_ONE: "replace one {unit}",
    Adjacency.ZERO_OUT: "blank one {unit}",
}


_ITEM = {
    Unit.RECORD: "one record is one item of the data set, and reading an item (__getitem__) reads that record only",
    Unit.PERSON: "one person is one item of the data set, and reading an item (__getitem__) reads that person's only",
    Unit.CLIENT: "one client is one party of the federation, whose update is computed from its own records only",
}


_OWNED_ITEM = "one item of the data set is one record of one person, and reading an item reads that record only"
OWNED = ("every record names the one person it is about, and nobody has two names",)
"""The assumption about persons whose records are told by their owners; no program can verify it."""


def unverifiable_assumptions(unit: Unit, *, has_owners: bool = False) -> tuple[str, ...]:
    """Return the assumptions of every guarantee of a run that no program can verify.

    Args:
        unit: The unit of the guarantee.
        has_owners: Whether items are records that name their owner, who is the unit.
    """
    return (
        "learning rates, stopping and every other choice during the run were made without looking at private values",
        "weights were changed by the optimizer's own rule from noisy gradients, and else by named public changes only",
        "no program read examples in another thread, switched off torch's dispatch modes or replaced torch's operators",
        _OWNED_ITEM if has_owners else _ITEM[unit],
    )


SEEDED = "its random streams were seeded by the user"
"""The reason why a run with a seed of the user is not private."""


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """A privacy guarantee with its terms, its assumptions and its accountant.

    Attributes:
        epsilon: Bound on the log-odds that an observer can gain; inf without a guarantee.
        delta: Probability with which that bound may fail.
        mu: At every epsilon the mechanism is as private as mu-GDP, up to delta; None if not computed.
        adjacency: The neighbouring relation of data sets.
        unit: The meaning of one item of the data set.
        released: The models that the observer is assumed to see.
        accountant: Name of the accountant that computed epsilon.
        lower: A proven lower bound on epsilon, or None.
        cross_check: Epsilon of the independent RDP accountant, or None if RDP itself is the accountant.
        assumptions: Assumptions of the guarantee, in words.
        proven: False for heuristics.
        is_upper_bound: False for comparison figures, which guarantee nothing.
        witness: Epsilon of the dp-accounting library, if it was computed (:mod:`privet.accounting.library_check`).
        not_private_because: Reasons why there is no guarantee, such as a seed chosen by the user.
        tried: Operations for which the isolation of examples was tested by experiments and not proven.
    """

    epsilon: float
    delta: float
    mu: float | None
    adjacency: Adjacency
    unit: Unit
    released: Release
    accountant: str
    lower: float | None
    cross_check: float | None
    assumptions: tuple[str, ...]
    proven: bool
    is_upper_bound: bool
    witness: float | None = None
    not_private_because: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checks.probability("delta", self.delta)
        for name in ("epsilon", "mu", "lower", "cross_check", "witness"):
            value = getattr(self, name)
            if (value is not None or name == "epsilon") and checks.number(name, value) < 0:
                raise ArgumentError(f"{name} must be zero or more, got {value!r}.")
        for name, kind in (("adjacency", Adjacency), ("unit", Unit), ("released", Release)):
            if not isinstance(getattr(self, name), kind):
                raise ArgumentError(f"{name} must be a privet {kind.__name__}, got {getattr(self, name)!r}.")

    def __str__(self) -> str:
        """Return one line; epsilon, delta and mu are rounded up.

        Edge cases: without a guarantee the line begins with NOT PRIVATE and states the figures as hypothetical.
        """
        if self.not_private_because:
            reasons = f"NOT PRIVATE: {'; '.join(self.not_private_because)}"
            if math.isinf(self.epsilon):
                return f"{reasons} \N{MIDDLE DOT} nothing is promised for any {self.unit.value}"
            return f"{reasons} \N{MIDDLE DOT} without that it would be {self._terms()}"
        proven = f"tried, not proven: {'; '.join(self.tried)}" if self.tried else "proven"
        words = (proven if self.proven else "heuristic") if self.is_upper_bound else "approximation, not a bound"
        return f"{self._terms()} \N{MIDDLE DOT} {words}"

    def _repr_html_(self) -> str:
        """Return the guarantee for a notebook."""
        facts = {
            "epsilon": rounded_up(self.epsilon),
            "delta": rounded_up(self.delta),
            "mu": "not computed" if self.mu is None else rounded_up(self.mu, 3),
            "adjacency": self.adjacency.words(self.unit),
            "released": self.released.value.replace("_", " "),
            "accountant": self.accountant,
        }
        return facts_table(str(self), facts, notes=self.assumptions, about="assumptions")

    def _terms(self) -> str:
        mu = "" if self.mu is None else f", \N{GREEK SMALL LETTER MU}\N{LESS-THAN OR EQUAL TO}{rounded_up(self.mu, 3)}"
        line = (
            f"(\N{GREEK SMALL LETTER EPSILON}={rounded_up(self.epsilon)}, "
            f"\N{GREEK SMALL LETTER DELTA}={rounded_up(self.delta)})-DP{mu}"
        )
        parts = [
            line,
            _CHANGE[self.adjacency].format(unit=self.unit.value),
            self.released.value.replace("_", " "),
            self.accountant,
        ]
        return " \N{MIDDLE DOT} ".join(parts)

    def statement(self) -> str:
        """Return the guarantee in plain sentences. Certificates contain this text, so it is part of their format."""
        if self.not_private_because:
            reasons = f"No privacy is promised: {'; '.join(self.not_private_because)}."
            without = "" if math.isinf(self.epsilon) else f" Without that, the guarantee would be {self._promise()}"
            return reasons + without
        if not (self.is_upper_bound and self.proven):
            return f"No privacy is promised: the figures are not proven bounds. They read {self._promise()}"
        conditions = "".join(f" It assumes that {assumption}." for assumption in self.assumptions)
        return f"What is promised is {self._promise()}{conditions}{self._evidence}"

    @property
    def _evidence(self) -> str:
        if not self.tried:
            return ""
        return (
            " That examples of a batch were kept apart was tried by experiment and not proven, because of: "
            f"{'; '.join(self.tried)}."
        )

    def _promise(self) -> str:
        unit = self.unit.value
        if math.isinf(self.epsilon):
            return f"nothing: some release has no noise, so no {unit} is protected."
        return (
            f"({rounded_up(self.epsilon)}, {rounded_up(self.delta)})-differential privacy "
            f"with respect to {self.adjacency.words(self.unit)}, against {_SEEN_BY[self.released]}, "
            f"even if they know all other data. "
            f"In words: apart from an exception of probability {rounded_up(self.delta)}, anything an observer may see "
            f"or conclude is at most {self._odds} times as likely as it would be had that one {unit} been changed in "
            f"this way, and the other way round. "
            f"An attacker who guesses whether the {unit} was used, and who accuses wrongly in at most "
            f"{_ATTACK_RATE:.0%} of cases, is right in at most {self._attack_success():.1%} of the cases in which it "
            f"was. "
            f"One {unit} is what is protected: {_who(self.unit)} "
            f"The figures were computed with the {self.accountant} accountant{self._confirmation()}."
        )

    @property
    def weakness(self) -> str | None:
        """A warning for a guarantee with a very large epsilon; None for other guarantees, and without one."""
        if self.not_private_because or not LARGEST_USEFUL_EPSILON < self.epsilon < math.inf:
            return None
        return (
            f"epsilon {rounded_up(self.epsilon)} promises next to nothing: because of one {self.unit.value}, anything "
            f"that an observer may see is allowed to become {self._odds} times as likely. Choose an epsilon below 8."
        )

    @property
    def _odds(self) -> str:
        """The exponential of epsilon, rounded up; written as a power if it overflows."""
        if self.epsilon < _LARGEST_EXPONENT:
            return rounded_up(math.exp(self.epsilon))
        return f"e to the power of {rounded_up(self.epsilon)}"

    def _confirmation(self) -> str:
        if self.witness is None:
            return ""
        if self.released is Release.LAST_ITERATE:
            return (
                f" (by a theorem that no other library has), and the dp-accounting library gives the release that it "
                f"comes to the same {rounded_up(self.witness)}"
            )
        return f" and confirmed by the dp-accounting library, which gives {rounded_up(self.witness)}"

    def _attack_success(self) -> float:
        """Upper bound on the true-positive rate at 1 % false positives, rounded up to 0.1 %."""
        bound = min(1.0, true_positive_bound(self.epsilon, self.delta, _ATTACK_RATE))
        if self.mu is not None:
            bound = min(bound, float(ndtr(ndtri(_ATTACK_RATE) + self.mu)) + self.delta)
        return min(1.0, math.ceil(bound * 1000) / 1000)

    def to_dict(self) -> dict[str, Any]:
        """Return the guarantee as plain JSON values, which ``from_dict`` reads exactly."""
        return {
            "epsilon": _number_out(self.epsilon),
            "delta": self.delta,
            "mu": _number_out(self.mu),
            "adjacency": self.adjacency.value,
            "unit": self.unit.value,
            "released": self.released.value,
            "accountant": self.accountant,
            "lower": _number_out(self.lower),
            "cross_check": _number_out(self.cross_check),
            "witness": _number_out(self.witness),
            "assumptions": list(self.assumptions),
            "proven": self.proven,
            "is_upper_bound": self.is_upper_bound,
            "not_private_because": list(self.not_private_because),
            "tried": list(self.tried),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Guarantee:
        """Read what ``to_dict`` wrote; unknown, missing or ill-typed entries raise ``ArgumentError``."""
        expected = set(cls.__dataclass_fields__)
        if set(data) | {"tried"} != expected:  # earlier versions have no entry "tried"
            raise ArgumentError(f"A guarantee has exactly the entries {sorted(expected)}, got {data!r}.")
        try:
            adjacency, unit = Adjacency(data["adjacency"]), Unit(data["unit"])
            released = Release(data["released"])
        except ValueError as error:
            raise ArgumentError(f"The guarantee cannot be read: {error}.") from None
        return cls(
            epsilon=_number_in("epsilon", data["epsilon"]),
            delta=checks.probability("delta", data["delta"]),
            mu=None if data["mu"] is None else _number_in("mu", data["mu"]),
            adjacency=adjacency,
            unit=unit,
            released=released,
            accountant=_words_in("accountant", [data["accountant"]])[0],
            lower=None if data["lower"] is None else _number_in("lower", data["lower"]),
            cross_check=None if data["cross_check"] is None else _number_in("cross_check", data["cross_check"]),
            assumptions=_words_in("assumptions", data["assumptions"]),
            proven=_flag_in("proven", data["proven"]),
            is_upper_bound=_flag_in("is_upper_bound", data["is_upper_bound"]),
            witness=None if data["witness"] is None else _number_in("witness", data["witness"]),
            not_private_because=_words_in("not_private_because", data["not_private_because"]),
            tried=_words_in("tried", data.get("tried", [])),
        )


def guarantee(
    event: DpEvent,
    *,
    delta: float,
    adjacency: Adjacency,
    unit: Unit,
    released: Release = Release.EVERY_ITERATE,
    assumptions: tuple[str, ...] = (),
    of_unit: tuple[str, ...] | None = None,
    not_private_because: tuple[str, ...] = (),
) -> Guarantee:
    """Return the guarantee of an event at delta, from the tightest accountant that supports the event.

    ``of_unit`` replaces the assumptions about items that are units, where items are records of their owners.

    Guarantee: epsilon is an upper bound. If it does not come from RDP, the independent RDP accountant is the
    cross-check: if RDP is smaller, one of the two is wrong and ``AccountingError`` is raised.
    Edge cases: an empty event gives epsilon 0; a release without noise gives inf; events without a supporting
    accountant raise ``AccountingError``.
    """
    if not isinstance(unit, Unit):
        raise ArgumentError(f"unit must be a privet Unit, got {unit!r}.")
    accountant = tightest(event, adjacency, delta)
    curve = accountant.curve(event, adjacency)
    epsilon = curve.epsilon(delta)
    _check_surcharge(curve, epsilon, delta)
    cross_check = None if accountant == RDP() else RDP().epsilon(event, delta=delta, adjacency=adjacency)
    _check_bracket(accountant.name, epsilon, cross_check)
    return Guarantee(
        epsilon=epsilon,
        delta=checks.probability("delta", delta),
        mu=curve.mu(delta),
        adjacency=adjacency,
        unit=unit,
        released=released,
        accountant=curve.accountant,
        lower=epsilon if isinstance(curve, GaussianCurve) and accountant == ExactGaussian() else None,
        cross_check=cross_check,
        assumptions=(*assumptions, *(unit.assumptions if of_unit is None else of_unit)),
        proven=True,
        is_upper_bound=True,
        not_private_because=tuple(not_private_because),
    )


def _check_surcharge(curve: PrivacyCurve, epsilon: float, delta: float) -> None:
    if isinstance(curve, SurchargedCurve) and math.isinf(epsilon) and math.isfinite(curve.base.epsilon(delta)):
        raise TruncationError(
            f"Batches overflow with probability {curve.total_variation:.2g} over the run, so no epsilon exists "
            f"at delta = {delta:g}. Increase max_batch_size, lower the rate, or use Truncation.TIGHT."
        )


def _check_bracket(name: str, epsilon: float, looser: float | None) -> None:
    if looser is not None and epsilon > looser * (1 + _BRACKET_RELATIVE) + _BRACKET_ABSOLUTE:
        raise AccountingError(
            f"{name} gives epsilon {epsilon!r}, but RDP, which is looser, gives {looser!r}. "
            "One of them is wrong, so there is no guarantee. Please report this event as a bug."
        )


def rounded_up(value: float, digits: int = 4) -> str:
    """Return a number with few significant digits, rounded up."""
    if math.isinf(value):
        return "\N{INFINITY}"
    # Via the shortest decimal form: 1e-05 stays 1e-05 and does not become 1.001e-05.
    return f"{float(Context(prec=digits, rounding=ROUND_CEILING).plus(Decimal(repr(float(value))))):.{digits}g}"


def _who(unit: Unit) -> str:
    if unit is Unit.PERSON:
        return "everything the data hold about one person counts as one."
    if unit is Unit.CLIENT:
        return "everything one party of the federation holds counts as one."
    return "someone with several records is protected less with every further record."


def _number_out(value: float | None) -> float | str | None:
    return _INFINITY if value is not None and math.isinf(value) else value


def _number_in(name: str, value: object) -> float:
    return math.inf if value == _INFINITY else checks.number(name, value)


def _words_in(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ArgumentError(f"{name} must be text, got {value!r}.")
    return tuple(value)


def _flag_in(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ArgumentError(f"{name} must be true or false, got {value!r}.")
    return value
