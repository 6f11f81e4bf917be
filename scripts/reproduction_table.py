"""Write what ``research/results`` says of the publications into two pages.

Counts and entries go into ``docs/reproduction.md``, all verdicts into ``research/results/reproduction/full.md``.

::

    python scripts/reproduction_table.py          # write
    python scripts/reproduction_table.py --check  # fail if a page is out of date
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from privet_research.reproduction.entry import Profile, entries
from privet_research.reproduction.pages import counts_line, list_page, summary_page, verdict_lines
from privet_research.reproduction.points import counts_in_words, points
from privet_research.reproduction.running import Choices, Reproduction, judged, stored_studies

ROOT = Path(__file__).resolve().parent.parent
PAGE, RESULTS = ROOT / "docs" / "reproduction.md", ROOT / "research" / "results"
FULL = RESULTS / "reproduction" / "full.md"
ENTRIES = "<!-- entries: written by scripts/reproduction_table.py -->\n", "<!-- end of entries -->\n"
COUNTS = "<!-- counts: written by scripts/reproduction_table.py -->\n", "<!-- end of counts -->\n"
HEAD = """# Published tables and figures, repeated in full

```
privet reproduce --all --from research/results -o reproduced
```

judges the rows of full profiles that are kept in `research/results`. `scripts/reproduction_table.py` writes this page.

A claim holds only if its whole 95 % interval over seeds lies within the tolerance or the bound that the entry declares
with its reason; it differs if the whole interval lies outside; everything between is UNDECIDED. An entry holds only if
all its claims do. A STAND-IN has other data or another network than the publication, and counts for nothing but itself.
Costs are the running times of the studies behind an entry, summed over runs; entries share studies, and runs that went
side by side took less by the clock. The commands that made the rows are in the README of each folder.
"""


def stored() -> list[Reproduction]:
    """Judge every entry by the rows that are kept."""
    choices = Choices(folder=RESULTS, profile=Profile.FULL, source=RESULTS)
    return [
        judged(name, entry, stored_studies(entry, RESULTS, Profile.FULL), choices, ())
        for name, entry in entries().items()
    ]


def counts(found: list[Reproduction]) -> str:
    """Return the counts of claims, entries and points."""
    return f"{counts_line(found)} {counts_in_words(points())}."


def between(text: str, marks: tuple[str, str], new: str) -> str:
    """Return a page with new text between two marks."""
    before, rest = text.split(marks[0])
    _, after = rest.split(marks[1])
    return f"{before}{marks[0]}\n{new}\n{marks[1]}{after}"


def pages() -> dict[Path, str]:
    """Return the current text of both pages."""
    found = stored()
    page = between(PAGE.read_text("utf-8"), ENTRIES, list_page(entries()))
    page = between(page, COUNTS, counts(found) + "\n")
    table = summary_page(found, links=False).split("\n", 1)[1]
    each = "\n\n".join("\n".join([f"{made.name}: {made.entry.title}", *verdict_lines(made)]) for made in found)
    return {PAGE: page, FULL: f"{HEAD}{table}\n{counts_in_words(points())}.\n\n```text\n{each}\n```\n"}


def main() -> int:
    """Write the pages, or check that they are up to date."""
    parser = argparse.ArgumentParser(description="Write the verdicts of the kept rows into two pages.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is out of date")
    asked = parser.parse_args()
    new = {path: text for path, text in pages().items() if path.read_text("utf-8") != text}
    for path, text in new.items():
        if asked.check:
            print(f"{path.name} is out of date. Run: python scripts/reproduction_table.py")
        else:
            path.write_text(text, encoding="utf-8")
    return int(asked.check and bool(new))


if __name__ == "__main__":
    sys.exit(main())
