"""Tables in Markdown: the one way in which studies and reproductions write them."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return a table of cells; its first line is the heading. There is no line break at its end."""
    heading, *rest = lines
    return "\n".join("| " + " | ".join(line) + " |" for line in [heading, ["---"] * len(heading), *rest])
