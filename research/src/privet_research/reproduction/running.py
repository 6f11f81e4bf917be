"""Running an entry: run its missing parts, gather the rows, judge the claims, write table and verdict."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privet.datasets.data_folder import ROOT_VARIABLE
from privet.errors import DataError
from privet.runs.run_files import read_json, write_json, write_whole
from privet_research.reproduction.cost import Cost, total_cost
from privet_research.reproduction.entry import Entry, Profile
from privet_research.reproduction.units import Say, Unit, kept_rows, run_missing, units_of
from privet_research.reproduction.verdicts import Finding, Verdict, judge, matches, summed_up
from privet_research.studies.study import Row

# Sub-folder of the official files of each data set, to check whether they exist.
_DATA_FOLDERS = {
    "mnist": "MNIST",
    "fashion_mnist": "FashionMNIST",
    "cifar10": "cifar-10-batches-bin",
    "svhn": "SVHN",
    "california_housing": "tabular",
    "wine_red": "tabular",
    "sst2": "SST-2",
}
# First characters of a formula in spreadsheets.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_EXTRA_MODULES = {"scattering": "kymatio", "text": "transformers", "effects": "sklearn", "report": "matplotlib"}


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Settings of a reproduction.

    Attributes:
        folder: Output folder.
        profile: Full or quick.
        device: Name of the device; ``auto`` takes a GPU if there is one.
        num_seeds: Runs per arm; None for the number of the entry.
        num_workers: Number of parallel processes.
        source: A folder of rows that ``privet study`` has written, which are judged in place of new runs; None runs.
    """

    folder: Path
    profile: Profile
    device: str = "auto"
    num_seeds: int | None = None
    num_workers: int = 1
    source: Path | None = None

    def units(self, entry: Entry) -> list[Unit]:
        """Return the units that an entry needs."""
        seeds = self.num_seeds or entry.num_seeds(self.profile)
        return [unit for study in entry.studies for unit in units_of(study, num_seeds=seeds, profile=self.profile)]


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """One entry, run and judged.

    Attributes:
        name: Of the entry.
        entry: What was asked.
        profile: Full or quick.
        rows: Its rows, each marked with its study.
        findings: Its claims beside what was found.
        failures: Reasons why units could not be run.
        cost: What the runs of its studies took; entries share studies.
        commits: States of the source that made the rows.
        environments: On what they were made.
    """

    name: str
    entry: Entry
    profile: Profile
    rows: Sequence[Row]
    findings: Sequence[Finding]
    failures: Sequence[str]
    cost: Cost
    commits: Sequence[str]
    environments: Sequence[Mapping[str, Any]] = field(default_factory=tuple)

    @property
    def verdict(self) -> tuple[Verdict, str]:
        """One verdict for all claims, and what it rests on."""
        why = self.entry.unavailable if not self.entry.studies else None
        return summed_up(self.findings, why or (self._not_run if not self.rows else None))

    @property
    def _not_run(self) -> str:
        """Why there are no rows, in a few words where data or packages are missing; ``failures`` has the whole."""
        lacking = lacks(self.entry) if self.failures else None
        return f"{lacking}: not run" if lacking is not None else "; ".join(self.failures)

    @property
    def line(self) -> str:
        """The verdict in words."""
        verdict, reason = self.verdict
        return f"{verdict.value} ({reason})"

    def folder(self, choices: Choices) -> Path:
        """Return where its files are written."""
        return choices.folder / self.profile.value / self.name

    def rows_of(self, study: str) -> list[Row]:
        """Return the rows that one study made."""
        return [row for row in self.rows if row["study"] == study]


def availability(entry: Entry) -> str:
    """Say in a few words whether an entry can be run here: ``ready``, or what is missing."""
    if not entry.studies:
        return "not available"
    return lacks(entry) or ("ready" if entry.unavailable is None else "ready in part")


def lacks(entry: Entry) -> str | None:
    """Name the data and the optional parts that an entry needs and this machine does not have; None if it has all."""
    root = os.environ.get(ROOT_VARIABLE)
    files = [name for name in entry.data if root is None or not (Path(root) / _DATA_FOLDERS[name]).is_dir()]
    extras = [name for name in entry.extras if importlib.util.find_spec(_EXTRA_MODULES[name]) is None]
    lacking = [*files, *(f"privet[{name}]" for name in extras)]
    return f"needs {', '.join(lacking)}" if lacking else None


def reproduce(chosen: Mapping[str, Entry], choices: Choices, say: Say) -> list[Reproduction]:
    """Run whatever is missing of these entries, then judge each and write its files.

    Units are shared: one that two entries need is run once. An interrupted call loses the units that were running and
    nothing else; calling again goes on from there. With a source nothing is run.
    """
    if choices.source is not None:
        stored = [
            judged(name, entry, stored_studies(entry, choices.source, choices.profile), choices, ())
            for name, entry in chosen.items()
        ]
        for made in stored:
            write_files(made, choices)
        return stored
    units = {name: choices.units(entry) for name, entry in chosen.items()}
    everything = [unit for own in units.values() for unit in own]
    failures = run_missing(everything, choices.folder, device=choices.device, num_workers=choices.num_workers, say=say)
    found = []
    for name, entry in chosen.items():
        reasons = {unit: failures[unit] for unit in units[name] if unit in failures}
        kept = [values for unit in units[name] if unit not in reasons and (values := kept_rows(unit, choices.folder))]
        made = judged(name, entry, kept, choices, list(reasons.values()))
        write_files(made, choices)
        found.append(made)
    return found


def stored_studies(entry: Entry, source: Path, profile: Profile) -> list[dict[str, Any]]:
    """Return the rows of an entry's studies that ``privet study`` has written anywhere below a folder.

    Raises:
        DataError: two files hold the same study: rows counted twice would make the intervals too narrow.
    """
    found: list[dict[str, Any]] = []
    for study in entry.studies:
        values = {path: read_json(path) for path in sorted(source.rglob(f"{study}.json"))}
        own = {
            path: one
            for path, one in values.items()
            if one.get("study") == study and one.get("quick") is (profile is Profile.QUICK) and "rows" in one
        }
        if len(own) > 1:
            paths = " and ".join(str(path) for path in own)
            raise DataError(f"{paths} hold the same study {study!r}. Keep one of them below {source}.")
        found += own.values()
    return found


def judged(
    name: str, entry: Entry, kept: Sequence[Mapping[str, Any]], choices: Choices, failures: Sequence[str]
) -> Reproduction:
    """Gather the kept rows of an entry, and judge its claims by them."""
    marked = [{"study": values["study"], **row} for values in kept for row in values["rows"]]
    rows = [row for row in marked if matches(row, entry.where)]
    found = [values["environment"] for values in kept if "environment" in values]
    environments = {json.dumps(one, sort_keys=True): one for one in found}
    return Reproduction(
        name=name,
        entry=entry,
        profile=choices.profile,
        rows=rows,
        findings=[judge(claim, rows, choices.profile, entry.replaced(choices.profile)) for claim in entry.claims],
        failures=list(dict.fromkeys(failures)),
        cost=total_cost(kept),
        commits=sorted({values["commit"] for values in kept if "commit" in values}),
        environments=list(environments.values()),
    )


def write_files(made: Reproduction, choices: Choices) -> None:
    """Write rows, table and verdict of one entry."""
    from privet_research.reproduction.pages import entry_page

    folder = made.folder(choices)
    folder.mkdir(parents=True, exist_ok=True)
    verdict, reason = made.verdict
    write_json(
        folder / "verdict.json",
        {
            "name": made.name,
            "paper": made.entry.paper,
            "title": made.entry.title,
            "profile": made.profile.value,
            "verdict": verdict.value,
            "reason": reason,
            "findings": [finding.to_dict() for finding in made.findings],
            "not_run": list(made.failures),
            "minutes": {device: round(value, 1) for device, value in made.cost.minutes.items()},
            "cost": made.cost.shown,
            "commits": list(made.commits),
            "environments": list(made.environments),
        },
    )
    if made.rows:
        write_json(folder / "rows.json", {"name": made.name, "rows": list(made.rows)})
        write_whole(folder / "rows.csv", as_csv(made.rows))
    write_whole(folder / "table.md", entry_page(made))


def as_csv(rows: Sequence[Row]) -> str:
    """Return rows as CSV, one column for every key of any row; lists and pictures stay in the JSON file.

    Guarantee: no cell begins like a formula of a spreadsheet, except numbers; such words get an apostrophe before them.
    """
    plain = [
        {_as_word(key): _as_word(value) for key, value in row.items() if not isinstance(value, list | dict)}
        for row in rows
    ]
    keys = dict.fromkeys(key for row in plain for key in row)
    file = io.StringIO()
    writer = csv.DictWriter(file, fieldnames=list(keys), lineterminator="\n")
    writer.writeheader()
    writer.writerows(plain)
    return file.getvalue()


def _as_word(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    # A bare carriage return is not quoted by the writer, and begins a new row for some readers.
    word = value.replace("\r", " ")
    return f"'{word}" if value.startswith(_FORMULA_STARTS) else word
