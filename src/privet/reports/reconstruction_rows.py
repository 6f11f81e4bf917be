"""Rebuilt pictures of a run, as table rows of measures and as a grid under the originals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from privet.attacks.reconstruction.result import Mean, RebuiltReport
from privet.durable import write_durably
from privet.reports.picture_grid import picture_grid
from privet.runs.run_files import RunFiles, read_result

if TYPE_CHECKING:
    from privet.attacks.reconstruction.released_gradients import RebuiltPictures

REBUILT_HEADER = ("rebuilt from", "measure", "value", "95 % interval", "n")
_MEASURES = (("mse", "mean squared error", ".4f"), ("psnr", "PSNR, dB", ".1f"), ("ssim", "SSIM", ".3f"))


def write_rebuilt(folder: str | Path, found: RebuiltPictures) -> Path:
    """Draw the pictures into a file of the run's folder, for its report, and return the path."""
    path = RunFiles(folder=Path(folder)).reconstruction_pictures
    rows = {row.name: row for row in found.report.rows}
    captions = {name: f"MSE {row.mse.value:.3f}\nSSIM {row.ssim.value:z.2f}" for name, row in rows.items()}
    # The labels are left of the pictures, in two short lines.
    short = {name: name.replace(" as ", "\nas ", 1).replace("as this run ", "as this run\n", 1) for name in rows}
    lines = {"originals": found.originals} | {short[name]: found.rebuilt[name] for name in rows}
    write_durably(path, picture_grid(lines, captions={short[name]: text for name, text in captions.items()}))
    return path


def read_rebuilt(files: RunFiles) -> RebuiltReport | None:
    """Read the report on rebuilt pictures; None if the attack was not run."""
    return read_result(files.reconstruction, RebuiltReport.from_dict)


def rebuilt_rows(report: RebuiltReport) -> list[tuple[str, ...]]:
    """Return three measures of every row of pictures under ``REBUILT_HEADER``, with Student's t intervals."""
    rows: list[tuple[str, ...]] = []
    for row in report.rows:
        for key, words, form in _MEASURES:
            found: Mean = getattr(row, key)
            value, low, high = (format(number, form) for number in (found.value, found.low, found.high))
            rows.append((row.name, words, value, f"{low} to {high}", f"{report.num_images:,}"))
    return rows


def rebuilt_note(report: RebuiltReport) -> str:
    """Return a note on the knowledge of the attacker."""
    seen = (
        "The run neither clips nor adds noise, so there is one row."
        if report.noise_std is None
        else f"The run's row has its clipping, noise of standard deviation {report.noise_std:.3g} on every coordinate "
        f"and a mask of rate {report.mask_rate:g}."
    )
    return (
        f"Inverting Gradients (Geiping et al. 2020), {report.num_steps:,} steps, on the network before training. The "
        f"attacker knows the label, the mask and every other record of the batch. {seen} An attack that fails on bare "
        "gradients says nothing about the noise, and a stronger one may exist."
    )
