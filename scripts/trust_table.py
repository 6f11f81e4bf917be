"""Write docs/trust.md: run the acceptance tests that scripts/trust.toml names, and list the results.

Usage: python scripts/trust_table.py [--slow] [--workers N] [--only AT-8 ...] [--output docs/trust.md]
"""

from __future__ import annotations

import argparse
import os
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

# Before anything imports torch: small matrices are slower when threads share a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
HEAD = """# What was tested, and what came out

One row for each acceptance test (AT). Written by `make trust` ({which}); do not edit by hand. Which
tests belong to a row is listed in `scripts/trust.toml`; figures are those the tests themselves recorded. The mutants of
AT-10, one by one, are in `results/trust/mutants.md`.

| test | what must hold | tests run | figures | result |
|---|---|---|---|---|
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One acceptance test."""

    id: str
    promise: str
    tests: tuple[str, ...]
    waits: str | None = None  # why there is nothing to test yet

    def covers(self, file: str, name: str) -> bool:
        """Whether a test belongs to this row."""
        for node in self.tests:
            path, _, wanted = node.partition("::")
            if (file == path or file.startswith(path.rstrip("/") + "/")) and name.startswith(wanted):
                return True
        return False


@dataclass
class Outcome:
    """The results of a row's tests; skipped tests are not counted."""

    passed: int = 0
    failed: int = 0
    figures: dict[str, list[str]] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        if self.failed:
            return f"**{self.failed} failed**"
        return "holds" if self.passed else "not run"


class AcceptanceTests:
    """A pytest plugin that runs only the tests of some rows, and records their results."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows
        self.outcomes = {row.id: Outcome() for row in rows}

    def _rows_of(self, nodeid: str) -> list[Row]:
        file, _, name = nodeid.partition("::")
        return [row for row in self._rows if row.covers(file, name)]

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect the tests of no row."""
        others = [item for item in items if not self._rows_of(item.nodeid)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if self._rows_of(item.nodeid)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the call of a test, and failures before or after the call."""
        if report.when != "call" and not report.failed:
            return
        for row in self._rows_of(report.nodeid):
            outcome = self.outcomes[row.id]
            outcome.failed += report.failed
            outcome.passed += report.passed
            for name, value in report.user_properties:
                outcome.figures.setdefault(name, []).append(str(value))


def summed(name: str, values: list[str]) -> str:
    """Combine the values of a figure from many tests: the largest of maxima, sums of numbers, counts of names."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return f"{name}: {len(set(values)):,}"
    total = max(numbers) if name.startswith("largest") else sum(numbers)
    return f"{name}: {total:,.0f}" if total == int(total) else f"{name}: {total:.7g}"


def read_rows(only: list[str]) -> list[Row]:
    """Read the table of tests."""
    found = tomllib.loads((ROOT / "scripts" / "trust.toml").read_text(encoding="utf-8"))["row"]
    rows = [Row(**{**each, "tests": tuple(each["tests"])}) for each in found]
    unknown = sorted(set(only) - {row.id for row in rows})
    if unknown:
        sys.exit(f"There is no row {unknown[0]}. Rows: {', '.join(row.id for row in rows)}.")
    return [row for row in rows if not only or row.id in only]


def run_tests(rows: list[Row], *, slow: bool, workers: int) -> dict[str, Outcome]:
    """Run the tests of all rows, each once, and return the results of each row.

    Several workers run whole files; their tests of no row are not counted.
    """
    files = sorted({node.partition("::")[0] for row in rows for node in row.tests})
    present = [file for file in files if (ROOT / file).exists()]
    for file in sorted(set(files) - set(present)):
        print(f"{file} does not exist; rows without other tests say 'not run'.", file=sys.stderr)
    plugin = AcceptanceTests(rows)
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    options = ["--slow"] if slow else []
    options += ["-n", str(workers)] if workers > 1 else []
    pytest.main(["-q", "-p", "no:cacheprovider", *options, *present], plugins=[plugin])
    return plugin.outcomes


def table(rows: list[Row], outcomes: dict[str, Outcome], *, slow: bool) -> tuple[str, bool]:
    """Return the page, and whether every row holds."""
    lines = []
    for row in rows:
        outcome = outcomes[row.id]
        figures = "; ".join(summed(name, values) for name, values in sorted(outcome.figures.items()))
        lines.append(f"| {row.id} | {row.promise} | {outcome.passed:,} | {figures} | {row.waits or outcome.verdict} |")
    which = "with the slow tests" if slow else "the quick tests; `make trust-slow` runs all"
    all_hold = all(row.waits or outcomes[row.id].verdict == "holds" for row in rows)
    return HEAD.format(which=which) + "\n".join(lines) + "\n", all_hold


def main() -> int:
    """Run the tests and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow", action="store_true", help="also the tests marked slow")
    parser.add_argument("--workers", type=int, default=1, help="processes that run the tests")
    parser.add_argument("--only", nargs="*", default=[], metavar="AT", help="only these rows; print, do not write")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "trust.md")
    asked = parser.parse_args()
    rows = read_rows(asked.only)
    page, all_hold = table(rows, run_tests(rows, slow=asked.slow, workers=asked.workers), slow=asked.slow)
    if asked.only:
        print(page)
    else:
        asked.output.write_text(page, encoding="utf-8")
    return 0 if all_hold else 1


if __name__ == "__main__":
    sys.exit(main())
