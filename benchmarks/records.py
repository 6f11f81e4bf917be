"""The record of a benchmark: rows and machine, as JSON and as a table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

SCHEMA = 1
_ALLOWED = 4  # times the error of plain float32 autograd with exact factors


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contender on one model.

    Attributes:
        model: Short name of the workload.
        contender: Short name of the contender.
        role: "baseline", "privet" or "rival".
        option: "eager", "graph" or "compile".
        batch_size: Examples per step.
        noise_dtype: Precision of the noise.
        failure: Why there are no numbers; empty if the contender ran.
        seconds: Time per step of every round.
        inner_steps: Steps per timed sample.
        first_step_seconds: Set-up and first step together, the user's waiting time.
        peak_bytes: Peak memory of one step above the memory held between steps; None where it cannot be measured.
        relative_error: Error of the clipped sum against a float64 loop; None if it was not compared.
        missing_parameters: Number of trained parameters that the clipped sum leaves out.
        plain_error: Error of plain float32 autograd on the same examples, whose losses have the exact clipping factors.
        reserved_bytes: Most memory that the allocator took for the contender, its weights and graphs included.
        cold_seconds: Set-up and first step in a process that had done nothing else.
        remarks: What privet logged while the contender was set up.
        ratio: Throughput over that of eager plain training in the same run.
        ratio_fastest: The same from the fastest rounds.
        ratio_same_option: Throughput over that of plain training with the same launch option.
        ratio_to_best_rival: Throughput over that of the fastest rival with a correct sum.
        accumulated_seconds: Time per step of several such batches with one noise and one update, if it was timed.
        ratio_accumulated: Throughput of those steps over that of plain training.
        axis: In a growth record, the name of the growing quantity.
        value: In a growth record, its value.
    """

    model: str
    contender: str
    role: str
    option: str
    batch_size: int
    noise_dtype: str
    failure: str = ""
    seconds: tuple[float, ...] = ()
    inner_steps: int = 0
    first_step_seconds: float | None = None
    peak_bytes: int | None = None
    relative_error: float | None = None
    missing_parameters: int | None = None
    plain_error: float | None = None
    reserved_bytes: int | None = None
    cold_seconds: float | None = None
    remarks: str = ""
    ratio: float | None = None
    ratio_fastest: float | None = None
    ratio_same_option: float | None = None
    ratio_to_best_rival: float | None = None
    accumulated_seconds: tuple[float, ...] = ()
    ratio_accumulated: float | None = None
    axis: str = ""
    value: int | None = None

    @property
    def ran(self) -> bool:
        """Whether the row has timings."""
        return not self.failure and bool(self.seconds)

    @property
    def median_seconds(self) -> float:
        """Median time of a step over the rounds."""
        return statistics.median(self.seconds)

    @property
    def samples_per_second(self) -> float:
        """Throughput at the median."""
        return self.batch_size / self.median_seconds

    def is_right(self, tolerance: float) -> bool:
        """Whether the clipped sum was compared, is complete and agrees, as far as float32 can on this model."""
        if self.relative_error is None or self.missing_parameters != 0:
            return False
        return self.relative_error <= max(tolerance, _ALLOWED * (self.plain_error or 0.0))


@dataclass(frozen=True, kw_only=True)
class Record:
    """A whole benchmark: machine, settings and rows."""

    environment: Mapping[str, Any]
    settings: Mapping[str, Any]
    rows: tuple[Row, ...]

    def to_json(self) -> str:
        """Return the record as JSON for :meth:`from_json`."""
        content = {
            "schema": SCHEMA,
            "environment": dict(self.environment),
            "settings": dict(self.settings),
            "rows": [asdict(row) for row in self.rows],
        }
        return json.dumps(content, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Read a record.

        Raises:
            ValueError: the text is not a record of this schema.
        """
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise ValueError(f"Not a benchmark record of schema {SCHEMA}: run the benchmark again to make one.")
        known = {field.name for field in fields(Row)}
        rows = []
        for entry in content["rows"]:
            if unknown := sorted(set(entry) - known):
                raise ValueError(f"A row has fields that schema {SCHEMA} does not know: {unknown}.")
            times = {name: tuple(entry.get(name, ())) for name in ("seconds", "accumulated_seconds")}
            rows.append(Row(**{**entry, **times}))
        return cls(environment=content["environment"], settings=content["settings"], rows=tuple(rows))

    def write(self, path: Path) -> None:
        """Write the JSON file, and create its folder."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.to_json(), encoding="utf-8")


def with_ratios(rows: Sequence[Row], *, tolerance: float) -> tuple[Row, ...]:
    """Return the rows of one model, all of one run, with their ratios."""
    baselines = {row.option: row for row in rows if row.role == "baseline" and row.ran}
    plain = baselines.get("eager")
    # A rival that trains fewer parameters or computes wrong sums has not done the timed work.
    honest = (row for row in rows if row.role == "rival" and row.ran and _acceptable(row, tolerance))
    best = max((row.samples_per_second for row in honest), default=None)
    return tuple(_with_ratios(row, plain, baselines.get(row.option), best) for row in rows)


def _acceptable(row: Row, tolerance: float) -> bool:
    return row.relative_error is None or row.is_right(tolerance)


def _with_ratios(row: Row, plain: Row | None, alike: Row | None, best_rival: float | None) -> Row:
    if not row.ran:
        return row
    return replace(
        row,
        ratio=plain.median_seconds / row.median_seconds if plain else None,
        ratio_fastest=min(plain.seconds) / min(row.seconds) if plain else None,
        ratio_same_option=alike.median_seconds / row.median_seconds if alike else None,
        ratio_to_best_rival=row.samples_per_second / best_rival if best_rival else None,
        ratio_accumulated=_accumulated_ratio(row, plain),
    )


def _accumulated_ratio(row: Row, plain: Row | None) -> float | None:
    if plain is None or not plain.accumulated_seconds or not row.accumulated_seconds:
        return None
    return statistics.median(plain.accumulated_seconds) / statistics.median(row.accumulated_seconds)


_COLUMNS = (
    "model",
    "contender",
    "ms/step",
    "samples/s",
    "ratio",
    "fastest",
    "accumulated",
    "same option",
    "x best rival",
    "peak MB",
    "first step s",
    "error",
    "noise",
)


def markdown(record: Record) -> str:
    """Return the record as a Markdown document: machine, settings, one table."""
    lines = [f"- {key}: {value}" for key, value in (*record.environment.items(), *record.settings.items())]
    lines += ["", _line(_COLUMNS), _line("---" for _ in _COLUMNS)]
    lines += [_line(_cells(row)) for row in record.rows]
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cells(row: Row) -> list[str]:
    error = _error_cell(row)
    if not row.ran:
        reason = row.failure.replace("|", "/").replace("\n", " ")
        return [row.model, row.contender, f"failed: {reason}", *[""] * 8, error, row.noise_dtype]
    return [
        row.model,
        row.contender,
        f"{row.median_seconds * 1e3:.3f}",
        f"{row.samples_per_second:,.0f}",
        _number(row.ratio, 2),
        _number(row.ratio_fastest, 2),
        _number(row.ratio_accumulated, 2),
        _number(row.ratio_same_option, 2),
        _number(row.ratio_to_best_rival, 2),
        _number(None if row.peak_bytes is None else row.peak_bytes / 1e6, 1),
        _number(row.first_step_seconds, 2),
        error,
        row.noise_dtype,
    ]


def _error_cell(row: Row) -> str:
    if row.relative_error is None:
        return ""
    missing = f", {row.missing_parameters} parameters missing" if row.missing_parameters else ""
    return f"{row.relative_error:.0e}{missing}"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
