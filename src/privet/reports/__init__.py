"""Reports on a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privet._lazy import lazily

if TYPE_CHECKING:
    from privet.reports.comparison import write_comparison as write_comparison
    from privet.reports.content import gather as gather
    from privet.reports.run_report import write_report as write_report
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "privet.reports.comparison": ("write_comparison",),
            "privet.reports.content": ("gather",),
            "privet.reports.run_report": ("write_report",),
        },
    )
