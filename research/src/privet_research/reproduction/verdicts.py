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
    STAND_IN = "STAND-IN"
    UNDECIDED = "UNDECIDED"
    NOT_RUN = "NOT RUN"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One claim beside what was found.

    Attributes:
        claim: What the publication says.
        verdict: Whether it agrees with the rows.
        reason: Why it was not decided, or what the verdict rests on.
        value: Our figure, the mean over seeds; None where there is none.
        width: Half its 95 % interval over seeds; None for a single seed.
        spread: Standard deviation over seeds; None for a single seed.
        num_seeds: Seeds it rests on.
    """

    claim: Claim
    verdict: Verdict
    reason: str
    value: float | None = None
    width: float | None = None
    spread: float | None = None
    num_seeds: int = 0

    @property
    def effect(self) -> float | None:
        """The distance from the paper's figure, or from the bound, in standard deviations over seeds.

        An interval shrinks with the number of seeds; this does not. None without a spread.
        """
        if self.value is None or not self.spread:
            return None
        return (self.value - self.claim.compared_with) / self.spread

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
            "effect": self.effect,
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


def judge(claim: Claim, rows: Sequence[Row], profile: Profile, stand_in: str | None = None) -> Finding:
    """Hold a claim against rows.

    A claim holds if the whole 95 % interval over seeds lies within its tolerance or its bound, and differs if the whole
    interval lies outside. Everything between is undecided. Rows of other data or of another network than the
    publication's decide nothing about it: the claim is a stand-in, and the reason says what the rows show.

    Edge cases: no rows, and rows without the figure (a run that diverged), are not run; a single seed has no interval
    and is undecided, unless the quantity is computed and not sampled.

    Args:
        claim: What the publication says.
        rows: What was measured.
        profile: The size of the runs.
        stand_in: Which data or network stand for the publication's; None if they are its own.
    """
    if rows and profile is Profile.QUICK and not claim.quick:
        return Finding(claim=claim, verdict=Verdict.NOT_RUN, reason="needs the full profile")
    values = _by_seed(claim, rows)
    if not values:
        return Finding(claim=claim, verdict=Verdict.NOT_RUN, reason="no rows for it")
    value, width = statistics.fmean(values), 0.0 if claim.exact else half_width(values)
    verdict, reason = _compared(claim, value, width)
    replaced = claim.stand_in or stand_in
    if replaced is not None:
        verdict, reason = Verdict.STAND_IN, f"{replaced}; by itself it {_BY_ITSELF[verdict]}"
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Finding(
        claim=claim, verdict=verdict, reason=reason,
        value=value, width=width, spread=spread, num_seeds=len(values),
    )  # fmt: skip


_BY_ITSELF = {Verdict.HOLDS: "holds", Verdict.DIFFERS: "differs", Verdict.UNDECIDED: "is undecided"}


def _compared(claim: Claim, value: float, width: float | None) -> tuple[Verdict, str]:
    """Compare an interval with the range in which the claim is true."""
    if width is None:
        return Verdict.UNDECIDED, "one seed has no interval"
    least, most = claim.accepted
    # Differences of decimal fractions are a rounding error off.
    slack = 1e-9 * max(1.0, abs(claim.compared_with))
    if least - slack <= value - width and value + width <= most + slack:
        return Verdict.HOLDS, ""
    if value + width < least - slack or value - width > most + slack:
        return Verdict.DIFFERS, f"off by {value - claim.compared_with:+.3g}"
    return Verdict.UNDECIDED, "the interval has both answers in it: more seeds would tell"


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


def counted(findings: Sequence[Finding]) -> dict[Verdict, int]:
    """Return how many claims got each verdict, in the order of the verdicts; those that none got are left out."""
    counts = {verdict: sum(one.verdict is verdict for one in findings) for verdict in Verdict}
    return {verdict: count for verdict, count in counts.items() if count}


def summed_up(findings: Sequence[Finding], unavailable: str | None = None) -> tuple[Verdict, str]:
    """Return one verdict for all claims of an entry, and what it rests on.

    One claim that differs makes the whole differ, and only all claims together make it hold. Between the two it is
    undecided: claims that hold are counted beside stand-ins, undecided and unrun ones, never instead of them.
    """
    counts = counted(findings)
    if not counts or set(counts) == {Verdict.NOT_RUN}:
        return Verdict.NOT_RUN, unavailable or "; ".join(dict.fromkeys(one.reason for one in findings))
    if len(counts) == 1:
        return next(iter(counts)), "all claims"
    if Verdict.DIFFERS in counts:
        verdict = Verdict.DIFFERS
    elif Verdict.HOLDS in counts or Verdict.UNDECIDED in counts:
        verdict = Verdict.UNDECIDED
    else:
        verdict = Verdict.STAND_IN
    return verdict, f"{', '.join(f'{count} {one.value}' for one, count in counts.items())} of {len(findings)} claims"
