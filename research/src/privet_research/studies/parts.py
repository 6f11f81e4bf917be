"""The rows of a study in files: whole, or in parts that processes side by side have made and that are put together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privet.errors import DataError
from privet.runs.run_files import read_json, write_json, write_whole
from privet_research.studies.study import Row, Study


@dataclass(frozen=True, kw_only=True)
class StudyFiles:
    """Where a study keeps its rows and its table.

    Attributes:
        folder: The folder that the user named.
        study: The study.
    """

    folder: Path
    study: Study

    def keep(self, rows: Sequence[Row], *, quick: bool, cost: Mapping[str, float], part: str | None = None) -> None:
        """Write the rows found so far, with their table; a part has no table of its own.

        Args:
            rows: What was found.
            quick: Whether they are of the small version.
            cost: Seconds that they took, by device.
            part: Name of the part; None for the whole study.
        """
        seconds = {device: round(value, 1) for device, value in cost.items()}
        values = {"study": self.study.name, "quick": quick, "cost": seconds, "rows": list(rows)}
        if part is not None:
            self._part(part).parent.mkdir(parents=True, exist_ok=True)
            write_json(self._part(part), values)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / f"{self.study.name}.json", values)
        text = f"# {self.study.name}\n\nMade by `privet study {self.study.name}`.\n\n{self.study.table(rows)}"
        write_whole(self.folder / f"{self.study.name}.md", text)

    def kept(self, *, quick: bool, part: str | None = None) -> list[Row]:
        """Return the rows that an earlier run has kept; none where there was none.

        Raises:
            DataError: what is there is of another study or of the other kind, quick or full.
        """
        path = self.folder / f"{self.study.name}.json" if part is None else self._part(part)
        if not path.exists():
            return []
        values = read_json(path)
        rows = values.get("rows")
        if values.get("study") != self.study.name or not isinstance(rows, list) or bool(values.get("quick")) != quick:
            wanted = "quick" if quick else "full"
            raise DataError(f"{path} holds no {wanted} rows of the study {self.study.name!r}. Move it elsewhere.")
        return rows

    def kept_cost(self, *, part: str | None = None) -> dict[str, float]:
        """Return the seconds, by device, of the rows that are kept; none where no file tells."""
        path = self.folder / f"{self.study.name}.json" if part is None else self._part(part)
        return dict(read_json(path).get("cost", {})) if path.exists() else {}

    def merged_cost(self) -> dict[str, float]:
        """Return the seconds of all parts together, by device; parts that do not tell count for nothing."""
        total: dict[str, float] = {}
        for path in sorted(self._parts.glob("*.json")):
            for device, seconds in read_json(path).get("cost", {}).items():
                total[device] = total.get(device, 0.0) + seconds
        return total

    def merge(self) -> tuple[list[Row], bool]:
        """Return the rows of all parts, sorted by part and in their order within it, and whether they are quick.

        Raises:
            DataError: there are no parts, one is of another study, quick and full ones are mixed, or two hold the same
                row: a run counted twice would make the intervals too narrow.
        """
        paths = sorted(self._parts.glob("*.json"))
        if not paths:
            raise DataError(
                f"{self._parts} holds no parts. Make some with: privet study {self.study.name} --part NAME."
            )
        rows: list[Row] = []
        kinds: dict[bool, Path] = {}
        seen: dict[str, Path] = {}
        for path in paths:
            values = read_json(path)
            if values.get("study") != self.study.name or not isinstance(values.get("rows"), list):
                raise DataError(f"{path} is not a part of the study {self.study.name!r}. Move it elsewhere.")
            kinds.setdefault(bool(values.get("quick")), path)
            for row in values["rows"]:
                first = seen.setdefault(_identity(row), path)
                if first != path:
                    raise DataError(
                        f"{first} and {path} hold the same run: {row['arm']}, seed {row['seed']}. Keep one."
                    )
                rows.append(row)
        if len(kinds) > 1:
            raise DataError(f"{kinds[True]} is quick and {kinds[False]} is not. Merge parts of one kind only.")
        return rows, next(iter(kinds))

    @property
    def _parts(self) -> Path:
        return self.folder / f"{self.study.name}.parts"

    def _part(self, name: str) -> Path:
        if not name or not all(letter.isalnum() or letter in "-_" for letter in name):
            raise DataError(f"A part is named by letters, digits, - and _, got {name!r}.")
        return self._parts / f"{name}.json"


def _identity(row: Mapping[str, Any]) -> str:
    """Name what was run: everything but times, which differ between two runs of the same."""
    return json.dumps({key: value for key, value in row.items() if not key.startswith("seconds")}, sort_keys=True)
