"""Comparison of several runs as one self-contained HTML file: privacy against every measured figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privet import __version__
from privet.accounting.guarantee import rounded_up
from privet.errors import ArgumentError, CheckpointError
from privet.reports.content import RunContent, have_same_data
from privet.reports.differences import Figure, difference, is_supported, shown_difference, shown_numbers
from privet.reports.facets import Facet, facets_of
from privet.reports.page import load_template
from privet.reports.plots import BLUE, INK, ORANGE, Plot
from privet.reports.run_report import stamps
from privet.runs.run_files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RUN_HEADER = ("run", "title", "data", "model", "epsilon", "delta", "protected", "visible", "steps", "marks")


def write_comparison(runs: Sequence[RunContent], output: str | Path) -> Path:
    """Write the comparison of two or more runs and return its path.

    Raises:
        ArgumentError: there are fewer than two runs.
        CheckpointError: the file cannot be written.
        DependencyError: the packages that draw and write reports are not installed.
    """
    path = Path(output)
    if not path.parent.is_dir():
        raise CheckpointError(f"The comparison {path} cannot be written: its folder does not exist. Make it first.")
    write_whole(path, render_comparison(runs))
    return path


def render_comparison(runs: Sequence[RunContent]) -> str:
    """Return the HTML text of a comparison. The others are compared with the first run."""
    if len(runs) < 2:
        raise ArgumentError(f"A comparison needs at least two runs, got {len(runs)}. Name more of them.")
    template = load_template("comparison.html.j2")
    facets = facets_of(runs)
    has_same_data = have_same_data(runs)
    sentences = [sentence for facet in facets for sentence in described_differences(facet)] if has_same_data else []
    return template.render(
        {
            "version": __version__,
            "num_runs": len(runs),
            "run_header": RUN_HEADER,
            "runs": [_run_row(number, run) for number, run in enumerate(runs, start=1)],
            "has_same_data": has_same_data,
            "privacy_note": privacy_note(runs),
            "sentences": sentences,
            "num_compared": sum(max(0, facet.num_known - 1) for facet in facets if facet.figures[0] is not None),
            "facet_header": ("measured", *(f"run {number}" for number in range(1, len(runs) + 1))),
            "facets": [
                (
                    f"{facet.name} ({facet.interval})",
                    *(_cell(figure, facet, run) for figure, run in zip(facet.figures, runs, strict=True)),
                )
                for facet in facets
            ],
            "more_for": _more_for(runs),
            "plots": [facet_plot(facet, runs) for facet in facets if facet.num_known > 1] if has_same_data else [],
        }
    )


def _run_row(number: int, run: RunContent) -> tuple[str, ...]:
    spent = run.ledger.spent
    return (
        f"run {number}: {run.folder.resolve().name}",
        run.title,
        run.data_name,
        run.model_name,
        rounded_up(spent.epsilon),
        rounded_up(spent.delta),
        spent.adjacency.words(spent.unit),
        spent.released.value.replace("_", " "),
        f"{run.plan.num_steps:,}",
        ", ".join(text for _, text in stamps(run)) or "none",
    )


def privacy_note(runs: Sequence[RunContent]) -> str:
    """Say whether the epsilons of the runs can be compared."""
    terms: dict[str, set[Any]] = {
        "delta": {run.ledger.spent.delta for run in runs},
        "the protected unit": {(run.ledger.spent.adjacency, run.ledger.spent.unit) for run in runs},
        "the release": {run.ledger.spent.released for run in runs},
    }
    differing = [name for name, values in terms.items() if len(values) > 1]
    if differing:
        return f"The epsilons cannot be compared: the runs differ in {', '.join(differing)}."
    return "All epsilons have the same delta, the same protected unit and the same release: they can be compared."


def _more_for(runs: Sequence[RunContent]) -> str:
    """Name the runs to which figures can be added: public data with a recipe."""
    numbers = [f"run {number}" for number, run in enumerate(runs, start=1) if run.is_public]
    return "every run" if len(numbers) == len(runs) else ", ".join(numbers)


def _cell(figure: Figure | None, facet: Facet, run: RunContent) -> str:
    if figure is None and run.recipe is None:
        return "unknown: a training loop of your own"
    if figure is None:
        return "not measured" if run.is_public else "not stored: the data are private"
    figures = (figure.value, figure.low, figure.high)
    shown = [f"{100 * each:.1f} %" for each in figures] if facet.is_share else shown_numbers(figures)
    value, low, high = shown
    return f"{value} ({low} to {high}, n = {figure.num_examples:,})"


def described_differences(facet: Facet) -> list[str]:
    """Return a sentence for every run whose difference from the first has an interval that excludes zero."""
    first = facet.figures[0]
    if first is None:
        return []
    sentences = []
    for number, figure in enumerate(facet.figures[1:], start=2):
        if figure is None or not is_supported(found := difference(first, figure)):
            continue
        value, interval = shown_difference(found, is_share=facet.is_share)
        word = facet.more if found.value > 0 else facet.less
        sentences.append(f"Run {number} is {word} than run 1: {value} ({interval}).")
    return sentences


def facet_plot(facet: Facet, runs: Sequence[RunContent]) -> Plot:
    """Plot the figure of every run against its epsilon, with intervals; runs without privacy are hollow."""
    rows = [
        (number, run.ledger.spent.epsilon, figure, not run.ledger.spent.not_private_because)
        for number, (run, figure) in enumerate(zip(runs, facet.figures, strict=True), start=1)
        if figure is not None
    ]
    places = places_of([epsilon for _, epsilon, _, _ in rows])

    def draw(axes: Axes) -> None:
        for at, (number, _, figure, is_private) in zip(places, rows, strict=True):
            colour = BLUE if is_private else ORANGE
            axes.plot([at, at], [figure.low, figure.high], color=colour, linewidth=1.8, solid_capstyle="butt")
            axes.plot([at], [figure.value], "o", color=colour, markerfacecolor=colour if is_private else "none")
            axes.annotate(f"{number}", (at, figure.value), xytext=(7, -3), textcoords="offset points", color=INK)
        axes.set_xticks(places, [rounded_up(epsilon) for _, epsilon, _, _ in rows])
        axes.set(xlabel="epsilon, from small to large", ylabel=facet.axis, xlim=(min(places) - 0.5, max(places) + 0.6))
        axes.grid(axis="x", visible=False)

    return Plot(
        name=facet.key,
        title=facet.name[:1].upper() + facet.name[1:],
        note="Runs in the order of epsilon, not to scale; numbers name the runs, lines are 95 % intervals.",
        draw=draw,
        columns=("run", "epsilon", "value", "low", "high", "n"),
        rows=tuple(
            (float(number), None if math.isinf(eps) else eps, f.value, f.low, f.high, float(f.num_examples))
            for number, eps, f, _ in rows
        ),
    )


def places_of(epsilons: Sequence[float]) -> list[float]:
    """Return positions on the axis in the order of epsilon; runs of equal epsilon are close together."""
    order = sorted(range(len(epsilons)), key=lambda index: (epsilons[index], index))
    places = [0.0] * len(epsilons)
    at = 0.0
    for left, right in pairwise(order):
        at += 0.35 if math.isclose(epsilons[left], epsilons[right], rel_tol=1e-3) else 1.0
        places[right] = at
    return places
