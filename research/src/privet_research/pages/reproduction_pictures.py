"""Pictures of repeated tables and figures, drawn from rows alone, so that they can be drawn again without a run."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from privet_research.pages.study_pictures import PICTURES
from privet_research.reproduction.entry import Lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from privet_research.reproduction.running import Reproduction

Rows = Sequence[Mapping[str, Any]]
_COLUMNS = 3


def pictures(made: Reproduction) -> dict[str, bytes]:
    """Return the files of an entry's pictures by name: the lines it declares, or its studies' own pictures."""
    if made.entry.lines is not None:
        return {f"figure.{kind}": data for kind, data in line_picture(made.rows, made.entry.lines).items()}
    drawn = {}
    for study in made.entry.studies:
        draw, rows = PICTURES.get(study), made.rows_of(study)
        if draw is not None and rows:
            drawn[f"{study}.png"] = draw(rows)
    return drawn


def line_picture(rows: Rows, how: Lines) -> dict[str, bytes]:
    """Draw means over seeds with standard errors, as PNG and SVG; the same rows give the same bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    own = [row for row in rows if row.get(how.x) is not None and row.get(how.y) is not None]
    panels = list(dict.fromkeys(row.get(how.panel) if how.panel else None for row in own)) or [None]
    columns = min(_COLUMNS, len(panels))
    height = -(-len(panels) // columns)
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "privet", "font.size": 9, "text.parse_math": False}
    with rc_context(style):
        figure = Figure(figsize=(max(4.5, 3.4 * columns), max(3.0, 2.5 * height)), dpi=120, layout="constrained")
        for place, panel in enumerate(panels):
            axes = figure.add_subplot(height, columns, place + 1)
            _draw(axes, [row for row in own if how.panel is None or row.get(how.panel) == panel], how)
            if panel is not None:
                axes.set_title(str(panel), fontsize=9)
        files = {}
        for kind, facts in (("png", {"Software": ""}), ("svg", {"Date": None, "Creator": None})):
            file = io.BytesIO()
            figure.savefig(file, format=kind, metadata=facts)
            files[kind] = file.getvalue()
    return files


def _draw(axes: Axes, rows: Rows, how: Lines) -> None:
    names = list(dict.fromkeys(row.get(how.line) if how.line else None for row in rows))
    for name in names:
        own = [row for row in rows if how.line is None or row.get(how.line) == name]
        places = sorted({row[how.x] for row in own})
        found = [[float(row[how.y]) for row in own if row[how.x] == place] for place in places]
        errors = [statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0 for values in found]
        label = None if name is None else str(name)
        means = [statistics.fmean(values) for values in found]
        axes.errorbar(places, means, yerr=errors, marker="o", markersize=3, capsize=2, label=label)
    if how.log_x:
        axes.set_xscale("log")
        # The usual powers of ten are written as formulas, which are switched off: names of arms may hold dollar signs.
        axes.xaxis.set_major_formatter(_plain)
        axes.xaxis.set_minor_formatter(_nothing)
    axes.set_xlabel(how.x_label, fontsize=8)
    axes.set_ylabel(how.y_label, fontsize=8)
    axes.tick_params(labelsize=8)
    if how.line is not None:
        axes.legend(fontsize=7, title=how.line.replace("_", " "), title_fontsize=7)


def _plain(value: float, place: float) -> str:
    return f"{value:g}"


def _nothing(value: float, place: float) -> str:
    return ""
