"""Says what the browser tests need and do not find; exits with 1 if that is the browser. Installs nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.browser.chromium import NAMES, find_browser

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"


def missing() -> list[str]:
    """Return one line for everything that is not there."""
    found = []
    if find_browser() is None:
        found.append(
            f"No Chromium is installed (looked for {', '.join(NAMES)}). On Debian: apt-get install chromium. "
            "Without it every browser test is skipped."
        )
    if not AXE.exists():
        found.append(
            "The accessibility checker axe-core is not there: npm install --prefix tests/browser. Without it its test "
            "is skipped; all others run."
        )
    return found


if __name__ == "__main__":
    sys.stderr.write("".join(f"{line}\n" for line in missing()))
    sys.exit(find_browser() is None)
