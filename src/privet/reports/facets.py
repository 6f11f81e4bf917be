"""Facets of a comparison: one kind of figure, with an interval, for every run that has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from privet.attacks.membership_verdict import NEVER_TRAINED
from privet.effects.reliability import Interval
from privet.reports.content import RunContent
from privet.reports.differences import Figure


@dataclass(frozen=True, kw_only=True)
class Facet:
    """One kind of figure over several runs.

    Attributes:
        key: Short name of fixed words, for file names.
        name: Name of the measured quantity; may contain text from a file.
        axis: Fixed name for plots.
        more: Phrase for a run with a larger figure, such as ``more accurate``.
        less: Phrase for a run with a smaller figure.
        is_share: Whether it is shown in percent.
        interval: Method of its 95 % intervals.
        figures: One per run; None for a run without it.
    """

    key: str
    name: str
    axis: str
    more: str
    less: str
    is_share: bool
    interval: str
    figures: tuple[Figure | None, ...]

    @property
    def num_known(self) -> int:
        """Number of runs with the figure."""
        return sum(figure is not None for figure in self.figures)


def facets_of(runs: Sequence[RunContent]) -> list[Facet]:
    """Return every facet that at least one run has, in the order of the page."""
    found = [*_measures(runs), _calibration(runs), *_gaps(runs), *_robustness(runs), *_attacks(runs), _rebuilt(runs)]
    return [facet for facet in found if facet.num_known]


def _figure(found: Interval, num_examples: int) -> Figure:
    return Figure(value=found.value, low=found.low, high=found.high, num_examples=num_examples)


def _names(runs: Sequence[RunContent], of: Callable[[RunContent], Sequence[str]]) -> list[str]:
    """Return the names of all runs, in the order of their first appearance."""
    return list(dict.fromkeys(name for run in runs for name in of(run)))


def _measures(runs: Sequence[RunContent]) -> list[Facet]:
    def measured(run: RunContent, name: str) -> Figure | None:
        rows = () if run.metrics is None else run.metrics.measures
        return next(
            (
                Figure(value=row.value, low=row.low, high=row.high, num_examples=row.num_examples)
                for row in rows
                if row.name == name
            ),
            None,
        )

    names = _names(runs, lambda run: [] if run.metrics is None else [row.name for row in run.metrics.measures])
    return [
        Facet(
            key=f"measure-{place + 1}",
            name=f"test {name}",
            axis="test accuracy" if name == "accuracy" else "measure on test data",
            more="more accurate" if name == "accuracy" else f"higher in {name}",
            less="less accurate" if name == "accuracy" else f"lower in {name}",
            is_share=name == "accuracy",
            interval=_interval_words(runs, name),
            figures=tuple(measured(run, name) for run in runs),
        )
        for place, name in enumerate(names)
    ]


def _interval_words(runs: Sequence[RunContent], name: str) -> str:
    kinds = [
        row.interval for run in runs if run.metrics is not None for row in run.metrics.measures if row.name == name
    ]
    return ", ".join(dict.fromkeys(kind.removeprefix("95 % ") for kind in kinds))


def _calibration(runs: Sequence[RunContent]) -> Facet:
    reports = [run.calibration for run in runs]
    return Facet(
        key="calibration",
        name="expected calibration error",
        axis="calibration error",
        more="worse calibrated",
        less="better calibrated",
        is_share=True,
        interval="bootstrap",
        figures=tuple(None if one is None else _figure(one.expected_error, one.num_examples) for one in reports),
    )


def _gaps(runs: Sequence[RunContent]) -> list[Facet]:
    def gap(run: RunContent, name: str) -> Figure | None:
        if run.fairness is None:
            return None
        found = [one.accuracy_gap for one in run.fairness.attributes if one.attribute == name]
        return _figure(found[0], run.fairness.num_examples) if found else None

    def facet(number: int, name: str) -> Facet:
        return Facet(
            key=f"gap-{number}",
            name=f"gap in accuracy between best and worst, by {name}",
            axis="gap in accuracy",
            more=f"less even by {name}",
            less=f"more even by {name}",
            is_share=True,
            interval="bootstrap",
            figures=tuple(gap(run, name) for run in runs),
        )

    names = _names(runs, lambda run: [] if run.fairness is None else [one.attribute for one in run.fairness.attributes])
    return [facet(number, name) for number, name in enumerate(names, start=1)]


def _robustness(runs: Sequence[RunContent]) -> list[Facet]:
    """Accuracy at the largest radius that all attacked runs have in common, in the same norm."""
    reports = [run.robustness for run in runs]
    known = [one for one in reports if one is not None]
    shared = set.intersection(*({point.radius for point in one.points} for one in known)) - {0.0} if known else set()
    if not shared or len({one.norm for one in known}) > 1:
        return []
    radius = max(shared)
    return [
        Facet(
            key="robustness",
            name=f"accuracy when inputs are changed by up to {radius:.4f}",
            axis="accuracy under attack",
            more="harder to mislead",
            less="easier to mislead",
            is_share=True,
            interval="Wilson score",
            figures=tuple(
                None
                if one is None
                else _figure(next(p.accuracy for p in one.points if p.radius == radius), one.num_examples)
                for one in reports
            ),
        )
    ]


def _attacks(runs: Sequence[RunContent]) -> list[Facet]:
    def area(run: RunContent, name: str) -> Figure | None:
        found = [one for one in run.membership if one.attack == name]
        if not found:
            return None
        area = found[0].area
        counts = min(found[0].num_members, found[0].num_non_members)
        return Figure(value=area.value, low=area.low, high=area.high, num_examples=counts)

    # The control, an untrained network, is the same in every run.
    names = _names(runs, lambda run: [one.attack for one in run.membership if not one.attack.endswith(NEVER_TRAINED)])
    return [
        Facet(
            key=f"attack-{place + 1}",
            name=f"membership attack, area under the ROC curve: {name}",
            axis="area under the ROC curve",
            more=f"easier to attack by {name}",
            less=f"harder to attack by {name}",
            is_share=False,
            interval="DeLong",
            figures=tuple(area(run, name) for run in runs),
        )
        for place, name in enumerate(names)
    ]


def _rebuilt(runs: Sequence[RunContent]) -> Facet:
    def error(run: RunContent) -> Figure | None:
        if run.rebuilt is None:
            return None
        found = run.rebuilt.released.mse
        return Figure(value=found.value, low=found.low, high=found.high, num_examples=run.rebuilt.num_images)

    return Facet(
        key="rebuilt",
        name="error of pictures rebuilt from their gradients, mean squared",
        axis="error of rebuilt pictures",
        more="harder to rebuild pictures from",
        less="easier to rebuild pictures from",
        is_share=False,
        interval="Student's t",
        figures=tuple(error(run) for run in runs),
    )
