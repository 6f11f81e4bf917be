"""Former place of ``privet.reports.write_report``; will be removed in 0.3."""

from __future__ import annotations

from privet._lazy import moved

__getattr__ = moved(
    __name__,
    {
        "write_report": "privet.reports.write_report",
    },
)
