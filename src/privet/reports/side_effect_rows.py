"""Table rows of side effects: classes and groups, gaps and their sources, and accuracy under attack."""

from __future__ import annotations

import math

from privet.effects.feature_shift import FeatureShift
from privet.effects.groups import AttributeReport, FairnessReport
from privet.effects.radii import RobustnessReport, WeightGrowth
from privet.effects.reliability import Interval

_INTERVAL = "95 % interval"
GROUP_HEADER = ("group", "n", "accuracy", _INTERVAL, "loss", _INTERVAL, "calibration error", _INTERVAL)
GAP_HEADER = ("gap", "value", "95 % interval (bootstrap)", "n", "worst group")
SOURCE_HEADER = ("column", "group", "weaker features", "more clipping", "rarer", "together")
SHIFT_HEADER = ("class", "margin", "as if turned by", "nearest other public class", "worse start predicted")
RADIUS_HEADER = ("radius", "accuracy", "95 % interval (score)", "n")


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _range(found: Interval, *, is_share: bool) -> str:
    low, high = (_percent(value) if is_share else f"{value:.3f}" for value in (found.low, found.high))
    return f"{low} to {high}"


def group_rows(report: AttributeReport) -> list[tuple[str, ...]]:
    """Return one row per group of an attribute under ``GROUP_HEADER``."""
    rows: list[tuple[str, ...]] = [
        (
            group.name,
            f"{group.num_examples:,}",
            _percent(group.accuracy.value),
            _range(group.accuracy, is_share=True),
            f"{group.loss.value:.3f}",
            _range(group.loss, is_share=False),
            _percent(group.calibration_error.value),
            _range(group.calibration_error, is_share=True),
        )
        for group in report.groups
    ]
    return rows + [(name, "0", "", "no examples", "", "", "", "") for name in report.empty_groups]


def gap_rows(report: FairnessReport) -> list[tuple[str, ...]]:
    """Return the gaps of every attribute under ``GAP_HEADER``."""
    rows: list[tuple[str, ...]] = []
    count = f"{report.num_examples:,}"
    for found in report.attributes:
        name = found.attribute
        sure = f"{found.worst_group} (in {100 * found.worst_share:.0f} % of resamples)"
        accuracy = (_percent(found.accuracy_gap.value), _range(found.accuracy_gap, is_share=True))
        loss = (f"{found.loss_gap.value:.3f}", _range(found.loss_gap, is_share=False))
        calibration = (_percent(found.calibration_gap.value), _range(found.calibration_gap, is_share=True))
        rows += [
            (f"accuracy, by {name}", *accuracy, count, sure),
            (f"loss, by {name}", *loss, count, ""),
            (f"calibration error, by {name}", *calibration, count, ""),
        ]
    for one in report.decisions:
        for what, value, interval in (
            (f"share decided '{one.positive_class}'", one.demographic_parity, one.demographic_parity_interval),
            ("true or false positive rate", one.equalized_odds, one.equalized_odds_interval),
        ):
            between = "not computed" if interval is None else _range(interval, is_share=True)
            rows.append((f"{what}, by {one.attribute}", _percent(value), between, count, ""))
    return rows


def source_rows(report: FairnessReport) -> list[tuple[str, ...]]:
    """Return the expected sources of gaps under ``SOURCE_HEADER``: factors on the loss against the best group."""
    return [
        (
            row.attribute,
            row.name,
            *(f"x {value:.2f}" for value in (row.features, row.clipping, row.imbalance)),
            f"x {row.features * row.clipping * row.imbalance:.2f}",
        )
        for row in report.sources
    ]


def radius_rows(report: RobustnessReport) -> list[tuple[str, ...]]:
    """Return accuracy by radius under ``RADIUS_HEADER``."""
    return [
        (
            f"{point.radius:.4f}",
            _percent(point.accuracy.value),
            _range(point.accuracy, is_share=True),
            f"{report.num_examples:,}",
        )
        for point in report.points
    ]


def growth_sentence(growth: WeightGrowth) -> str:
    """Say how much of the weights' norm noise alone explains."""
    return (
        f"The weights have norm {growth.measured:.1f}; noise alone would give a norm of {growth.from_noise:.1f}, "
        f"which explains {100 * growth.noise_share:.0f} % of the squared norm."
    )


def shift_rows(shift: FeatureShift) -> list[tuple[str, ...]]:
    """Return the shift of every class and their mean under ``SHIFT_HEADER``."""
    rows = [
        (
            found.name,
            f"{found.margin:+.2f}",
            f"{math.degrees(found.angle):.0f} degrees",
            found.nearest_other,
            "yes" if found.is_harmed else "no",
        )
        for found in shift.classes
    ]
    mean = shift.margin
    interval = f"{100 * shift.confidence:g} %: {mean.low:+.2f} to {mean.high:+.2f}"
    return [*rows, ("mean", f"{mean.value:+.2f}", "", interval, "yes" if shift.harms_on_average else "no")]


def shift_warning(shift: FeatureShift) -> str | None:
    """Name the classes for which a worse start than from scratch is predicted; None if there are none."""
    if not shift.harmed_classes:
        return None
    extent = "and on average over the classes" if shift.harms_on_average else "though not on average over the classes"
    return (
        f"Pre-training on these data is predicted to be a worse start than none for {', '.join(shift.harmed_classes)}, "
        f"{extent} (Xu and Chen, 2026, Proposition 4.4, estimated from class means). Compare with a run from scratch, "
        "or choose public data that are nearer."
    )
