"""Bar chart of the waste of samplers, as an SVG file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from privet.accounting.batch_sizes import Waste
from privet.durable import write_durably
from privet.errors import DependencyError

# Okabe and Ito's palette, which people with any colour vision can distinguish.
_COLOURS = {"never seen": "#3a8fd0", "stragglers": "#d9822b", "dropped": "#1fa187", "padding": "#b07aa1"}


def write_waste_plot(table: Sequence[Waste], path: str | Path) -> Path:
    """Draw the shares of every sampler side by side; the same table gives the same bytes."""
    target = Path(path)
    write_durably(target, waste_svg(table).encode())
    return target


def waste_svg(table: Sequence[Waste]) -> str:
    """Return the chart as SVG text."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError:
        raise DependencyError("Plots need matplotlib. Install it with: pip install 'privet[report]'.") from None
    shares = {
        "never seen": [row.never_seen for row in table],
        "stragglers": [row.stragglers for row in table],
        "dropped": [row.dropped for row in table],
        "padding": [row.padding for row in table],
    }
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "privet", "font.size": 9, "text.parse_math": False}
    with rc_context(style):
        figure = Figure(figsize=(7.0, 3.2), layout="constrained")
        axes = FigureCanvasSVG(figure).figure.subplots()
        width = 0.8 / len(shares)
        for place, (name, values) in enumerate(shares.items()):
            at = [index + (place - (len(shares) - 1) / 2) * width for index in range(len(table))]
            axes.bar(at, [100 * value for value in values], width, label=name, color=_COLOURS[name])
        axes.set_xticks(range(len(table)), [row.sampler for row in table])
        axes.set_ylabel("percent")
        axes.set_ylim(0, 100)
        axes.legend(frameon=False, ncols=len(shares))
        axes.spines[["top", "right"]].set_visible(False)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    return drawn.getvalue()
