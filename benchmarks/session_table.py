"""The tables of a record of sessions: one line for a model, then one line for each contender."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.check import TOLERANCE
from benchmarks.records import Record, Row

_SESSIONS = ("session", "session_eager", "session_graph", "session_random")
_SUMMARY = (
    "model",
    "batch",
    "non-private ms",
    "session",
    "eager",
    "graph",
    "random sizes",
    "best rival",
    "session over it",
    "peak memory",
    "reserved memory",
    "later, s",
    "error",
    "error of float32 autograd",
)
_DETAILS = (
    "model",
    "contender",
    "ms/step",
    "fastest ms",
    "share",
    "share, fastest",
    "peak MB",
    "reserved MB",
    "first step s",
    "error",
    "remarks",
)


def session_markdown(record: Record) -> str:
    """Return the record as a Markdown document: machine, settings, both tables."""
    lines = [f"- {key}: {value}" for key, value in (*record.environment.items(), *record.settings.items())]
    models = list(dict.fromkeys(row.model for row in record.rows))
    lines += ["", *_table(_SUMMARY, (_summary([row for row in record.rows if row.model == model]) for model in models))]
    lines += ["", *_table(_DETAILS, (_details(row) for row in record.rows))]
    return "\n".join(lines) + "\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_line(columns), _line("---" for _ in columns), *map(_line, rows)]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"


def _summary(rows: Sequence[Row]) -> list[str]:
    """Compare the first session with plain training and with the fastest rival whose sums are right."""
    found = {row.contender: row for row in rows}
    plain, ours = found.get("non_private"), found.get("session")
    rivals = [row for row in rows if row.role == "rival" and row.ran and row.is_right(TOLERANCE)]
    best = min(rivals, key=lambda row: row.median_seconds, default=None)
    return [
        rows[0].model,
        str(rows[0].batch_size),
        "" if plain is None or not plain.ran else f"{plain.median_seconds * 1e3:.2f}",
        *(_share(found.get(name)) for name in _SESSIONS),
        "" if best is None else f"{_number(best.ratio, 2)} ({best.contender})",
        _over(best.median_seconds if best else None, ours.median_seconds if ours and ours.ran else None),
        _over(ours.peak_bytes if ours else None, plain.peak_bytes if plain else None),
        _over(ours.reserved_bytes if ours else None, plain.reserved_bytes if plain else None),
        _difference(ours.cold_seconds if ours else None, plain.cold_seconds if plain else None),
        "" if ours is None or ours.relative_error is None else _error(ours),
        "" if ours is None or ours.plain_error is None else f"{ours.plain_error:.0e}",
    ]


def _share(row: Row | None) -> str:
    if row is None:
        return ""
    return _number(row.ratio, 2) if row.ran else "failed"


def _over(one: float | None, other: float | None) -> str:
    return "" if not one or not other else f"{one / other:.2f}"


def _difference(one: float | None, other: float | None) -> str:
    return "" if one is None or other is None else f"{one - other:.1f}"


def _details(row: Row) -> list[str]:
    error = "" if row.relative_error is None else _error(row)
    if not row.ran:
        return [row.model, row.contender, f"failed: {row.failure}", *[""] * 6, error, row.remarks]
    return [
        row.model,
        row.contender,
        f"{row.median_seconds * 1e3:.3f}",
        f"{min(row.seconds) * 1e3:.3f}",
        _number(row.ratio, 2),
        _number(row.ratio_fastest, 2),
        _number(None if row.peak_bytes is None else row.peak_bytes / 1e6, 1),
        _number(None if row.reserved_bytes is None else row.reserved_bytes / 1e6, 1),
        _number(row.first_step_seconds, 2),
        error,
        row.remarks,
    ]


def _error(row: Row) -> str:
    missing = f", {row.missing_parameters} parameters missing" if row.missing_parameters else ""
    return f"{row.relative_error:.0e}{missing}"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
