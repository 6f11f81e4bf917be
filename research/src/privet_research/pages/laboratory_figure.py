"""The feature-to-noise laboratory as one picture: figures 1 to 3 of Xu and Chen (2026), redrawn from a study's rows."""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from privet.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Sequence[Mapping[str, Any]]
# Told apart by people with any colour vision, and by their line styles in print.
_COLOURS = ("#3a8fd0", "#d9822b", "#1fa187", "#8a5fbf")
_STYLES = ("-", "--", "-.", ":")


def laboratory_figure(rows: Rows) -> bytes:
    """Draw the phase map, the groups' loss and accuracy under attack by noise, and fine-tuning by angle, as a PNG file.

    Args:
        rows: Of the study ``feature-to-noise``; means over its seeds are drawn.

    Raises:
        DataError: a part of the study is missing.
    """
    parts = {name: [row for row in rows if row.get("part") == name] for name in ("phases", "groups", "rotation")}
    missing = [name for name, own in parts.items() if not own]
    if missing:
        raise DataError(f"The rows lack the part {missing[0]!r} of the laboratory. Run the whole study.")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 7.2), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)  # a figure of its own, without the global state of pyplot
    axes = figure.subplots(2, 2)
    _phases(axes[0][0], parts["phases"])
    _groups(axes[0][1], parts["groups"], "loss", "(2) test loss of the groups", "loss")
    _groups(axes[1][0], parts["groups"], "attacked_accuracy", "(3) groups under attack", "share that is right")
    _angles(axes[1][1], parts["rotation"])
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": ""})
    return file.getvalue()


def _phases(axes: Axes, rows: Rows) -> None:
    sizes, levels = (sorted({row[key] for row in rows}) for key in ("feature_size", "noise_std"))
    grid = np.full((len(sizes), len(levels)), np.nan)
    for line, size in enumerate(sizes):
        own = [row for row in rows if row["feature_size"] == size]
        for level, mean in zip(*_means(own, "noise_std", "accuracy"), strict=True):
            grid[line, levels.index(level)] = mean
    shown = axes.imshow(grid, origin="lower", aspect="auto", vmin=0.5, vmax=1.0, cmap="viridis")
    for (line, place), value in np.ndenumerate(grid):
        axes.text(place, line, f"{value:.2f}", ha="center", va="center", fontsize=6, color="w" if value < 0.8 else "k")
    axes.set_xticks(range(len(levels)), [f"{level:g}" for level in levels])
    axes.set_yticks(range(len(sizes)), [f"{size:g}" for size in sizes])
    axes.set(xlabel="noise per coordinate", ylabel="feature size", title="(1) accuracy: a phase transition")
    axes.figure.colorbar(shown, ax=axes, label="share that is right")


def _groups(axes: Axes, rows: Rows, measure: str, title: str, label: str) -> None:
    for place, cell in enumerate(dict.fromkeys(row["cell"] for row in rows)):
        own = [row for row in rows if row["cell"] == cell]
        words = f"{cell} (size {own[0]['feature_size']:g}, share {own[0]['share']:g})"
        levels, means = _means(own, "noise_std", measure)
        (line,) = axes.plot(levels, means, marker="o", markersize=4, label=words)
        line.set(color=_COLOURS[place % 4], linestyle=_STYLES[place % 4])
    axes.set(xlabel="noise per coordinate", ylabel=label, title=title)
    axes.legend(fontsize=7, frameon=False)
    axes.grid(alpha=0.3)


def _angles(axes: Axes, rows: Rows) -> None:
    tuned = [row for row in rows if row["angle"] is not None]
    fresh = [row["loss"] for row in rows if row["angle"] is None]
    angles, losses = _means(tuned, "angle", "loss")
    axes.plot(angles, losses, "o-", color=_COLOURS[0], markersize=4, label="after pre-training")
    if fresh:
        axes.axhline(statistics.fmean(fresh), color=_COLOURS[1], linestyle="--", label="from scratch")
    axes.axvline(45, color="0.6", linewidth=1, linestyle=":", label="worse start predicted from here")
    axes.set(xlabel="angle between the features, degrees", ylabel="loss", title="private fine-tuning")
    axes.legend(fontsize=7, frameon=False)
    axes.grid(alpha=0.3)


def _means(rows: Rows, key: str, measure: str) -> tuple[list[float], list[float]]:
    """Return the values of one column, ascending, and the mean of another at each."""
    places = sorted({row[key] for row in rows})
    return places, [statistics.fmean(row[measure] for row in rows if row[key] == place) for place in places]


def published_figure(name: str) -> Callable[[Rows], bytes]:
    """Return the drawing of a study whose rows have the paper's figures beside ours, clean and under attack.

    Rows that name a target epsilon get a panel for each.
    """

    def draw(rows: Rows) -> bytes:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        panels = list(dict.fromkeys(row.get("target_epsilon") for row in rows))
        figure = Figure(figsize=(6.4 if len(panels) == 1 else 3.6 * len(panels), 3.8), dpi=120, layout="constrained")
        FigureCanvasAgg(figure)
        for axes, epsilon in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _beside_the_paper(axes, [row for row in rows if row.get("target_epsilon") == epsilon])
            axes.set_title(name if epsilon is None else f"{name}, epsilon {epsilon:g}", fontsize=10)
        figure.supxlabel("bars span the seeds", fontsize=8)
        file = io.BytesIO()
        figure.savefig(file, format="png", metadata={"Software": ""})
        return file.getvalue()

    return draw


def _beside_the_paper(axes: Axes, rows: Rows) -> None:
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    for place, (ours, paper, words) in enumerate(
        (
            ("accuracy", "paper_accuracy", "clean"),
            ("attacked_accuracy", "paper_attacked_accuracy", "under attack, 8/255"),
        )
    ):
        found = [[100 * row[ours] for row in rows if row["arm"] == arm] for arm in arms]
        means = [statistics.fmean(values) for values in found]
        spread = [[m - min(v) for m, v in zip(means, found, strict=True)],
                  [max(v) - m for m, v in zip(means, found, strict=True)]]  # fmt: skip
        axes.errorbar(range(len(arms)), means, yerr=spread, fmt="o-", color=_COLOURS[place], label=f"ours, {words}")
        said = [next(row[paper] for row in rows if row["arm"] == arm) for arm in arms]
        if all(value is not None for value in said):
            axes.plot(range(len(arms)), said, "x--", color=_COLOURS[place], alpha=0.6, label=f"paper, {words}")
    # what a panel's title says already is left out
    axes.set_xticks(range(len(arms)), [arm.partition(", epsilon")[0] for arm in arms], fontsize=8)
    axes.set(ylabel="right, %", ylim=(0, 101))
    axes.legend(fontsize=7, frameon=False)
    axes.grid(alpha=0.3)
