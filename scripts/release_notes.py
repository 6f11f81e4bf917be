"""Print the section of CHANGELOG.md about one version: ``python scripts/release_notes.py 0.2.0``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).resolve().parent.parent / "CHANGELOG.md"


def notes(version: str, text: str) -> str:
    """Return the text between the heading of a version and the next heading of that rank."""
    match = re.search(rf"^## \[{re.escape(version)}\].*?\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    if match is None:
        raise SystemExit(f"CHANGELOG.md has no section [{version}]: write it before the tag.")
    return match.group(1).strip() + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python scripts/release_notes.py VERSION")
    print(notes(sys.argv[1], CHANGELOG.read_text(encoding="utf-8")), end="")
