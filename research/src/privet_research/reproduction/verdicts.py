"""From rows to verdicts: what a publication says, what was found, and whether the two agree."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from privet_research.reproduction.entry import Claim, Filter, Profile
from privet_research.studies.regression_table import half_width

Row = Mapping[str, Any]


class Verdict(Enum):
    """What can be said of a claim, or of all claims of an entry."""

    HOLDS = "HOLDS"
    DIFFERS = "DIFFERS"
    NOT_TESTED = "NOT TESTED"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One claim beside what was found.

    Attributes:
        claim: What the publication says.
        verdict: Whether it agrees with the rows.
        reason: Why it was not tested, or what the verdict rests on.
        value: Our figure, the mean over seeds; None where there is none.
        width: Half its 95 % interval over seeds; None for a single seed.
        num_seeds: Seeds it rests on.
    """

    claim: Claim
    verdict: Verdict
    reason: str
    value: float | None = None
    width: float | None = None
    num_seeds: int = 0

    @property
    def shown(self) -> str:
        """Our figure with its interval, as text; empty where there is none."""
        if self.value is None:
            return ""
        text = f"{self.value:,.0f}" if abs(self.value) >= 1000 else f"{self.value:.4g}"
        return text if self.width is None else f"{text} \N{PLUS-MINUS SIGN} {self.width:.2g}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "says": self.claim.says,
            "paper": self.claim.paper,
            "rule": self.claim.rule,
            "value": self.value,
            "half_width": self.width,
            "num_seeds": self.num_seeds,
            "verdict": self.verdict.value,
            "reason": self.reason,
        }


def matches(row: Row, facts: Filter) -> bool:
    """Say whether a row has all the facts."""
    return all(
        key in row and (row[key] in value if isinstance(value, list) else row[key] == value)
        for key, value in facts.items()
    )


def judge(claim: Claim, rows: Sequence[Row], profile: Profile) -> Finding:
    """Hold a claim against rows.

    A claim with a tolerance holds if our mean is as near to the paper's figure as that and known as well as that, and
    differs if not even the interval reaches there. A claim with a bound holds if the whole 95 % interval over seeds
    keeps it, and differs if none of the interval does. Everything between is not tested: the rows do not tell.

    Edge cases: no rows, rows without the figure (a run that diverged) and, for a bound, a single seed are not tested.
    """
    if rows and profile is Profile.QUICK and not claim.quick:
        return Finding(claim=claim, verdict=Verdict.NOT_TESTED, reason="needs the full profile")
    values = _by_seed(claim, rows)
    if not values:
        return Finding(claim=claim, verdict=Verdict.NOT_TESTED, reason="no rows for it")
    value, width = statistics.fmean(values), half_width(values)
    verdict, reason = _near(claim, value, width) if claim.tolerance is not None else _bounded(claim, value, width)
    return Finding(claim=claim, verdict=verdict, reason=reason, value=value, width=width, num_seeds=len(values))


def _near(claim: Claim, value: float, width: float | None) -> tuple[Verdict, str]:
    assert claim.paper is not None
    assert claim.tolerance is not None
    off = abs(value - claim.paper)
    # differences of decimal fractions are a rounding error off
    slack = 1e-9 * max(1.0, abs(claim.paper))
    if off <= claim.tolerance + slack:
        if width is not None and width > claim.tolerance + slack:
            return Verdict.NOT_TESTED, "the interval is wider than the tolerance: more seeds would tell"
        return Verdict.HOLDS, ""
    if width is not None and off - width <= claim.tolerance:
        return Verdict.NOT_TESTED, "the interval reaches the tolerance: more seeds would tell"
    return Verdict.DIFFERS, f"off by {value - claim.paper:+.3g}"


def _bounded(claim: Claim, value: float, width: float | None) -> tuple[Verdict, str]:
    if width is None:
        return Verdict.NOT_TESTED, "one seed has no interval"
    gap = value - claim.at_least if claim.at_least is not None else _other(claim) - value
    if gap - width >= 0:
        return Verdict.HOLDS, ""
    if gap + width < 0:
        return Verdict.DIFFERS, "the whole interval lies on the other side"
    return Verdict.NOT_TESTED, "the interval has both answers in it: more seeds would tell"


def _other(claim: Claim) -> float:
    assert claim.at_most is not None
    return claim.at_most


def _by_seed(claim: Claim, rows: Sequence[Row]) -> list[float]:
    """Return the claim's quantity for every seed that has it."""
    first = _means(claim, rows, claim.of)
    if claim.minus is None:
        return list(first.values())
    both = _on_both_sides(rows, claim.of, claim.minus)
    first, second = _means(claim, both, claim.of), _means(claim, both, claim.minus)
    return [value - second[seed] for seed, value in first.items() if seed in second]


def _on_both_sides(rows: Sequence[Row], of: Filter, minus: Filter) -> list[Row]:
    """Leave out what only one side has of a seed, such as a network whose other runs are missing.

    Where the two sides have no setting in common it is the settings that are compared, and all rows stay.
    """
    settings = [{(row["seed"], row.get("setting")) for row in rows if matches(row, facts)} for facts in (of, minus)]
    common = settings[0] & settings[1]
    return [row for row in rows if not common or (row["seed"], row.get("setting")) in common]


def _means(claim: Claim, rows: Sequence[Row], facts: Filter) -> dict[Any, float]:
    found: dict[Any, list[Row]] = {}
    for row in rows:
        if matches(row, facts) and row.get(claim.measure) is not None:
            found.setdefault(row["seed"], []).append(row)
    return {
        seed: claim.scale * statistics.fmean(float(row[claim.measure]) for row in chosen)
        for seed, own in found.items()
        if (chosen := _chosen(claim, own))
    }


def _chosen(claim: Claim, rows: list[Row]) -> list[Row]:
    key = claim.chosen_by
    if key is None:
        return rows
    judged = sorted((row for row in rows if row.get(key) is not None), key=lambda row: row[key])
    return judged[:1] if claim.chosen_smallest else judged[-1:]


def summed_up(findings: Sequence[Finding], unavailable: str | None = None) -> tuple[Verdict, str]:
    """Return one verdict for all claims of an entry, and what it rests on.

    One claim that differs makes the whole differ. Claims that were not tested are counted, never taken as confirmed.
    """
    by_verdict = {verdict: [one for one in findings if one.verdict is verdict] for verdict in Verdict}
    held, off, untested = (by_verdict[verdict] for verdict in Verdict)
    tested = f"{len(held) + len(off)} of {len(findings)} claims tested"
    if off:
        return Verdict.DIFFERS, f"{len(off)} of {len(findings)} claims; {tested}"
    if held:
        return Verdict.HOLDS, "all claims" if not untested else tested
    reasons = "; ".join(dict.fromkeys(one.reason for one in untested))
    return Verdict.NOT_TESTED, unavailable or reasons
