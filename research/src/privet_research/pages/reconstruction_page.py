"""The study of reconstruction as a page: originals, what was rebuilt of them, and every figure with n and interval."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from privet import __version__
from privet.attacks.reconstruction.result import Mean
from privet.errors import DataError
from privet.reports.page import load_template
from privet_research.pages.study_pictures import PICTURES

Rows = Sequence[Mapping[str, Any]]
HEADER = ("noise and mask", "measure", "value", "95 % interval", "n")
_MEASURES = (("mse", "mean squared error", ".4f"), ("psnr", "PSNR, dB", ".1f"), ("ssim", "SSIM", ".3f"))


def reconstruction_page(rows: Rows) -> str:
    """Return the page as HTML text.

    Raises:
        DataError: there are no rows.
        DependencyError: the packages that draw and write reports are not installed.
    """
    if not rows:
        raise DataError("There is nothing to show: the study has no rows.")
    picture = base64.b64encode(PICTURES["reconstruction-cifar10"](rows)).decode()
    return load_template("reconstruction.html.j2", package="privet_research", folder="pages/templates").render(
        {
            "version": __version__,
            "num_steps": f"{rows[0]['num_steps']:,}",
            "picture": f"data:image/png;base64,{picture}",
            "header": HEADER,
            "rows": likeness_rows(rows),
        }
    )


def likeness_rows(rows: Rows) -> list[tuple[str, ...]]:
    """Return three measures of every arm over all images of all seeds, as ``HEADER`` says."""
    lines: list[tuple[str, ...]] = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        for key, words, form in _MEASURES:
            values = [value for row in own for value in row.get(f"{key}_by_image", [])]
            # rows of earlier versions keep single images for the first measure only
            if len(values) < 2:
                continue
            found = Mean.of(values)
            value, low, high = (format(number, form) for number in (found.value, found.low, found.high))
            lines.append((arm, words, value, f"{low} to {high}", f"{len(values):,}"))
    return lines
