"""The examination of a model in rows: its confidence, and attacks beside what the guarantee allows."""

from __future__ import annotations

from dataclasses import dataclass

from privet.accounting.guarantee import rounded_up
from privet.attacks.verdict import MembershipReport
from privet.effects.reliability import CalibrationReport


@dataclass(frozen=True, kw_only=True)
class AttackRow:
    """One measure of one attack, as text."""

    attack: str
    measure: str
    value: str
    interval: str
    num_examples: str
    limit: str
    exceeds: bool


def confidence_rows(report: CalibrationReport) -> list[tuple[str, str, str]]:
    """Return (what, value, interval) of a calibration report."""
    bins = f"{len(report.reliability.bins)} bins of {report.reliability.binning.value}"
    named = [
        ("accuracy", report.accuracy, True),
        (f"expected calibration error, {bins}", report.expected_error, True),
        (
            f"largest calibration error, {bins} (in a bin of {report.reliability.worst_bin_size:,} examples)",
            report.largest_error,
            True,
        ),
        ("Brier score", report.brier_score, False),
        ("negative log-likelihood", report.negative_log_likelihood, False),
    ]

    def shown(value: float, is_share: bool) -> str:
        return f"{100 * value:.2f} %" if is_share else f"{value:.4f}"

    rows = [
        (name, shown(found.value, is_share), f"{shown(found.low, is_share)} to {shown(found.high, is_share)}")
        for name, found, is_share in named
    ]
    over, under = report.reliability.over_confidence, report.reliability.under_confidence
    rows.append(("over-confident part of the error", shown(over, True), ""))
    rows.append(("under-confident part of the error", shown(under, True), ""))
    return rows


def membership_rows(report: MembershipReport) -> list[AttackRow]:
    """Return the area and the hits at few false alarms, each with its counts and beside its limit, rounded up."""
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
            )
        )
    return rows
