"""Pictures of studies, by the study's name. Drawn from rows alone, so that they can be drawn again without a run."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]


def _reconstructions(rows: Rows) -> bytes:
    """Draw the originals of the first seed and what was rebuilt of them, a line for each noise and rate."""
    from privet.reports.picture_grid import picture_grid
    from privet_research.studies.reconstruction import decoded

    first = [row for row in rows if row["seed"] == rows[0]["seed"]]
    lines = {"original": decoded(next(row["originals"] for row in first if "originals" in row))}
    captions = {}
    for row in first:
        lines[row["arm"]] = decoded(row["pictures"])
        captions[row["arm"]] = f"MSE {row['mse']:.3f}"
    return picture_grid(lines, captions=captions)


def _signs(rows: Rows) -> bytes:
    """Draw training accuracy against the rate, a panel for each pair of noise and threshold."""
    panels = dict.fromkeys((row["kind"], row["panel"]) for row in rows)
    columns = min(3, len(panels))
    height = -(-len(panels) // columns)
    figure = _figure(3.2 * columns, 2.3 * height)
    for place, (kind, title) in enumerate(panels):
        axes = figure.add_subplot(height, columns, place + 1)
        own = [row for row in rows if (row["kind"], row["panel"]) == (kind, title)]
        rates = sorted({row["rate"] for row in own})
        found = [[100 * row["train_accuracy"] for row in own if row["rate"] == rate] for rate in rates]
        errors = [stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0 for values in found]
        axes.errorbar(rates, [fmean(values) for values in found], yerr=errors, marker="o", capsize=3, color="tab:blue")
        axes.axhline(fmean(found[0]), color="0.6", linewidth=0.8, linestyle="--")
        axes.set_title(f"{kind}: {title}", fontsize=9)
        axes.set_xlabel("final rate of the mask", fontsize=8)
        axes.set_ylabel("training accuracy, %", fontsize=8)
        axes.tick_params(labelsize=8)
    return _png(figure)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)  # a figure of its own, without the global state of pyplot
    return figure


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": ""})
    return file.getvalue()


def _laboratory(rows: Rows) -> bytes:
    from privet_research.pages.laboratory_figure import laboratory_figure

    return laboratory_figure(rows)


def _beside_the_paper(name: str) -> Callable[[Rows], bytes]:
    def draw(rows: Rows) -> bytes:
        from privet_research.pages.laboratory_figure import published_figure

        return published_figure(name)(rows)

    return draw


def _mask_statistics(rows: Rows) -> bytes:
    from privet_research.pages.mask_pictures import mask_statistics_picture

    return mask_statistics_picture(rows)


def _digits(rows: Rows) -> bytes:
    from privet_research.pages.mask_pictures import digits_picture

    return digits_picture(rows)


_BESIDE_THE_PAPER = ("padding-mnist", "padding-cifar10", "padding-vit", "class-size-mnist")

PICTURES: Mapping[str, Callable[[Rows], bytes]] = MappingProxyType(
    {
        "reconstruction-cifar10": _reconstructions,
        "sparsification-signs": _signs,
        "feature-to-noise": _laboratory,
        "mask-statistics": _mask_statistics,
        "digit-pictures": _digits,
        **{name: _beside_the_paper(name) for name in _BESIDE_THE_PAPER},
    }
)
"""From a study's rows to a PNG file's bytes, for the studies that have a picture."""
