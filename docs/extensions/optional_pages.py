"""Patterns of the index, such as ``trust*``, may match nothing: some pages are written by a command."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx


def without_empty_patterns(text: str, folder: Path) -> str:
    """Return an index without the patterns that no page matches; Sphinx would warn about them."""
    lines = text.splitlines()
    kept = [line for line in lines if not re.fullmatch(r"[\w-]+\*", line) or any(folder.glob(f"{line}.md"))]
    return "\n".join(kept)


def _clean(app: Sphinx, page: str, source: list[str]) -> None:
    if page == app.config.root_doc:
        source[0] = without_empty_patterns(source[0], Path(app.srcdir))


def setup(app: Sphinx) -> dict[str, bool]:
    """Clean the index when it is read."""
    app.connect("source-read", _clean)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
