"""Table rows of calibration, and of membership attacks beside the limits of the guarantee."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from privet.accounting.guarantee import rounded_up
from privet.attacks.membership_verdict import MembershipReport
from privet.effects.reliability import CalibrationReport, Interval

CONFIDENCE_HEADER = ("on test data", "value", "95 % interval (bootstrap)", "n")
# Names of the same figure in the measures of a run.
_OTHER_NAMES = {"cross entropy": "negative log-likelihood"}


@dataclass(frozen=True, kw_only=True)
class AttackRow:
    """One measure of one attack, as text.

    ``has_limit`` is False for a run without privacy.
    """

    attack: str
    measure: str
    value: str
    interval: str
    num_examples: str
    limit: str
    exceeds: bool
    has_limit: bool


def confidence_rows(report: CalibrationReport, *, measured: Collection[str] = ()) -> list[tuple[str, str, str, str]]:
    """Return the figures of a calibration report under ``CONFIDENCE_HEADER``.

    Figures named in ``measured`` are left out: the page shows them already, with another kind of interval.
    """
    bins = f"{len(report.reliability.bins)} bins of {report.reliability.binning.value}"
    count, worst = report.num_examples, report.reliability.worst_bin_size
    named: list[tuple[str, Interval | None, bool, int]] = [
        ("accuracy", report.accuracy, True, count),
        (f"expected calibration error, {bins}", report.expected_error, True, count),
        ("of this, over-confident", report.over_confidence, True, count),
        ("of this, under-confident", report.under_confidence, True, count),
        ("largest calibration error of a bin", report.largest_error, True, worst),
        ("Brier score", report.brier_score, False, count),
        ("negative log-likelihood", report.negative_log_likelihood, False, count),
    ]
    already_shown = {_OTHER_NAMES.get(name, name) for name in measured}

    def shown(value: float, is_share: bool) -> str:
        return f"{100 * value:.2f} %" if is_share else f"{value:.4f}"

    return [
        (name, shown(found.value, is_share), f"{shown(found.low, is_share)} to {shown(found.high, is_share)}", f"{n:,}")
        for name, found, is_share, n in named
        # Files of earlier versions hold no interval of the two parts.
        if found is not None and name not in already_shown
    ]


def membership_rows(report: MembershipReport) -> list[AttackRow]:
    """Return the area under the curve and the members found at few false accusations, with their limits rounded up."""
    area = report.area
    rows = [
        AttackRow(
            attack=report.attack,
            measure="area under the ROC curve",
            value=f"{area.value:.4f}",
            interval=f"{area.low:.4f} to {area.high:.4f} (DeLong)",
            num_examples=f"{report.num_members:,} + {report.num_non_members:,}",
            limit=rounded_up(report.area_limit, 3),
            exceeds=area.low > report.area_limit,
            has_limit=report.area_limit < 1,
        )
    ]
    for point in report.points:
        found = point.true_positives
        rows.append(
            AttackRow(
                attack=report.attack,
                measure=f"members found at {100 * point.level:g} % false alarms",
                value=f"{100 * found.value:.2f} %",
                interval=f"{100 * found.low:.2f} % to {100 * found.high:.2f} % (Clopper-Pearson)",
                num_examples=f"{found.num_trials:,}",
                limit=f"{rounded_up(100 * point.limit, 3)} %",
                exceeds=point.exceeds_limit,
                has_limit=point.limit < 1,
            )
        )
    return rows
