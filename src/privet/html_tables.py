"""Small HTML tables for notebooks. Every text in them is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape


def facts_table(title: str, facts: Mapping[str, object], *, notes: Sequence[str] = (), about: str = "notes") -> str:
    """Return a heading, one row per fact, and notes that fold away.

    Guarantee: texts are escaped, so nothing in a plan, a ledger or a file can become markup.
    """
    left = 'style="text-align:left"'
    rows = "".join(
        f"<tr><th {left}>{escape(str(name))}</th><td {left}>{escape(str(value))}</td></tr>"
        for name, value in facts.items()
    )
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    folded = f"<details><summary>{escape(about)} ({len(notes)})</summary><ul>{listed}</ul></details>" if notes else ""
    return f"<div><p><strong>{escape(title)}</strong></p><table>{rows}</table>{folded}</div>"
