"""Write the list of tables and figures into ``docs/reproduction.md``, between its two marks.

::

    python scripts/reproduction_table.py          # write
    python scripts/reproduction_table.py --check  # fail if the page is out of date
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from privet_research.reproduction.entry import entries
from privet_research.reproduction.pages import list_page

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reproduction.md"
BEGIN, END = "<!-- entries: written by scripts/reproduction_table.py -->\n", "<!-- end of entries -->\n"


def with_list(text: str) -> str:
    """Return a page with the current list between its marks."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{list_page(entries())}\n{END}{after}"


def main() -> int:
    """Write the page, or check that it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is out of date")
    asked = parser.parse_args()
    old = PAGE.read_text("utf-8")
    new = with_list(old)
    if asked.check:
        if new != old:
            print(f"{PAGE.name} is out of date. Run: python scripts/reproduction_table.py")
        return int(new != old)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
