"""The text study as tables: all variants beside each other, and the one that held-out sentences choose."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from privet_research.studies.arms import LOCAL, NON_PRIVATE, SCALED
from privet_research.studies.clipping_table import clipping_table, summarise
from privet_research.studies.markdown import markdown

Row = Mapping[str, Any]


def text_table(rows: Sequence[Row]) -> str:
    """Return the study as Markdown: the chosen variant's arms, and, if there are several, what it was chosen from."""
    by_variant: dict[str, list[Row]] = {}
    for row in rows:
        by_variant.setdefault(row["variant"], []).append(row)
    order = sorted(by_variant, key=lambda name: _held_out(by_variant[name]), reverse=True)
    chosen = order[0]
    parts = [clipping_table(by_variant[chosen]).rstrip("\n"), f"Variant: {chosen}."]
    if len(order) > 1:
        lines = [["variant", "arm", "held out %", "development %", "runs", "seconds"]]
        lines += [line for name in order for line in _lines(name, by_variant[name])]
        table = markdown(lines)
        parts.append(f"It has the highest private accuracy on held-out training sentences of {len(order)} variants:")
        parts.append(table)
    return "\n\n".join(parts) + "\n"


def _held_out(rows: Sequence[Row]) -> float:
    """The figure by which variants are chosen: that of local clipping, or of all private arms if it was not run."""
    private = [row for row in rows if row["arm"] not in (NON_PRIVATE, SCALED)]
    local = [row for row in private if row["arm"] == LOCAL]
    values = [row["held_out_accuracy"] for row in local or private if row["held_out_accuracy"] is not None]
    return statistics.fmean(values) if values else -1.0


def _lines(variant: str, rows: Sequence[Row]) -> list[list[str]]:
    lines = []
    for arm in dict.fromkeys(row["arm"] for row in rows if row["arm"] != SCALED):
        own = [row for row in rows if row["arm"] == arm]
        held_out = [row["held_out_accuracy"] for row in own if row["held_out_accuracy"] is not None]
        cells = [
            summarise(held_out).shown(100, 1) if held_out else "",
            summarise([row["accuracy"] for row in own]).shown(100, 1),
            str(len(own)),
            f"{statistics.fmean(row['seconds'] for row in own):.0f}",
        ]
        lines.append([variant, arm, *cells])
    return lines
