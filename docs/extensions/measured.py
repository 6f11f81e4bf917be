"""Figures of the pages, read from result files at build time, so that no page can show an older figure than its file.

Two things are defined here: the directive ``result-table``, which shows one table of a result file, or some of its
columns and rows; and the body of the page ``results``, which shows every result file there is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

PAGE = "results"
ROOT = Path(__file__).resolve().parents[2]
# Those of the library and those of the studies. No folder is in both.
RESULTS = (ROOT / "results", ROOT / "research" / "results")
# Folders in the order of the pages about methods, with their headings; others follow under their own names.
_HEADINGS = {
    "fashion_mnist": "Fashion-MNIST",
    "clipping": "Clipping",
    "regression": "Clipping in regression",
    "noise": "Noise",
    "sparsification": "Random masks",
    "views_and_averages": "Views and averages",
    "hidden_state": "Hidden state",
    "text": "Text",
    "side_effects": "Side effects",
}


class MissingFigure(ValueError):
    """A page asks for a figure that no result file has."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A Markdown table."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def keeping(self, columns: Sequence[str], pattern: str) -> Table:
        """Return some columns, in the order asked for, of the rows whose first cells match a pattern."""
        missing = [name for name in columns if name not in self.header]
        if missing:
            raise MissingFigure(f"no column {missing[0]!r}; there are {', '.join(self.header)}")
        places = [self.header.index(name) for name in columns] or range(len(self.header))
        kept = [row for row in self.rows if re.search(pattern, " | ".join(row))]
        if not kept:
            raise MissingFigure(f"no row matches {pattern!r}")
        return Table(
            header=tuple(self.header[place] for place in places),
            rows=tuple(tuple(row[place] for place in places) for row in kept),
        )

    def markdown(self) -> list[str]:
        """Return the lines of the table."""
        lines = [self.header, ("---",) * len(self.header), *self.rows]
        return [f"| {' | '.join(cells)} |" for cells in lines]


def tables(text: str) -> list[Table]:
    """Return the tables of a Markdown text, in order."""
    return [_table(block) for block in re.findall(r"(?:^\|.*\|[ ]*\n?)+", text, flags=re.MULTILINE)]


def _table(block: str) -> Table:
    header, _, *rows = [
        tuple(cell.strip() for cell in line.strip().strip("|").split("|")) for line in block.strip().splitlines()
    ]
    return Table(header=header, rows=tuple(rows))


def chosen(text: str, *, number: int = 1, columns: Sequence[str] = (), pattern: str = "") -> Table:
    """Return the table of this number, counted from 1, cut to what is asked for."""
    found = tables(text)
    if not 1 <= number <= len(found):
        raise MissingFigure(f"no table number {number}; there are {len(found)}")
    return found[number - 1].keeping(columns, pattern)


class ResultTable(SphinxDirective):
    """``{result-table} clipping/clipping-mnist.md``, with options ``table``, ``columns`` (split at ``;``), ``rows``."""

    required_arguments = 1
    option_spec = {  # noqa: RUF012 (docutils wants it so)
        "table": directives.positive_int,
        "columns": directives.unchanged,
        "rows": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        """Return the table and where it is from."""
        path = result_file(self.arguments[0])
        columns = [name.strip() for name in self.options.get("columns", "").split(";") if name.strip()]
        try:
            table = chosen(
                path.read_text(encoding="utf-8"),
                number=self.options.get("table", 1),
                columns=columns,
                pattern=self.options.get("rows", ""),
            )
        except (OSError, MissingFigure) as error:
            raise self.error(f"{named(path)}: {error}") from error
        self.env.note_dependency(str(path))
        lines = [
            *(line.replace(" ± ", "\u00a0±\u00a0") for line in table.markdown()),
            "",
            f"From `{named(path)}`.",
        ]
        box = nodes.container()
        self.state.nested_parse(StringList(lines, source=str(path)), self.content_offset, box)
        return box.children


def result_file(name: str) -> Path:
    """Return the result file of this name, such as ``clipping/clipping-mnist.md``, wherever it is kept."""
    return next((found for folder in RESULTS if (found := folder / name).exists()), RESULTS[0] / name)


def named(file: Path) -> str:
    """Return a result file's path in the repository."""
    return file.relative_to(ROOT).as_posix()


def result_files() -> Iterator[tuple[str, list[Path]]]:
    """Yield every folder of results with its Markdown files, the README first."""
    folders = {
        path.name: path for root in RESULTS for path in root.iterdir() if path.is_dir() and any(path.rglob("*.md"))
    }
    for name in [*(n for n in _HEADINGS if n in folders), *(n for n in sorted(folders) if n not in _HEADINGS)]:
        yield name, sorted(folders[name].rglob("*.md"), key=lambda path: (path.name != "README.md", path))


def results_page(page: Path) -> str:
    """Return the page's body: all result files, each as it stands, one heading per folder."""
    parts = []
    for name, files in result_files():
        parts.append(f"## {_HEADINGS.get(name, name.replace('_', ' ').capitalize())}\n")
        for file in files:
            where = os.path.relpath(file, page.parent)
            parts.append(f"```{{include}} {where}\n:heading-offset: 2\n:relative-images:\n```\n")
            parts.append(f"*File:* `{named(file)}`\n")
    return "\n".join(parts)


def _fill(app: Sphinx, page: str, source: list[str]) -> None:
    if page == PAGE:
        source[0] += "\n" + results_page(Path(app.env.doc2path(page)))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive, and fill the page when it is read."""
    app.add_directive("result-table", ResultTable)
    app.connect("source-read", _fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
