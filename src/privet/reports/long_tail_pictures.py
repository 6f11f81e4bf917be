"""The long tail of a run as a picture: public test pictures of lowest and highest loss."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

from privet.durable import write_durably
from privet.errors import CheckpointError
from privet.reports.picture_grid import picture_grid
from privet.runs.run_files import RunFiles

if TYPE_CHECKING:
    from privet.runs.evaluation.long_tail import TailPictures

_MAGIC = b"\x89PNG\r\n\x1a\n"
_MOST_BYTES = 5_000_000


def write_long_tail(folder: str | Path, found: TailPictures) -> Path:
    """Draw the pictures into a file of the run's folder, for its report, and return the path."""
    path = RunFiles(folder=Path(folder)).long_tail
    low, high = found.easiest_losses, found.hardest_losses
    right = f"{found.num_right_among_hardest} of {len(high)} right"
    write_durably(
        path,
        picture_grid(
            {"lowest loss": found.easiest, "highest loss": found.hardest},
            captions={
                "lowest loss": f"{low[0]:.2g} to {low[-1]:.2g}",
                "highest loss": f"{high[-1]:.2g} to {high[0]:.2g}\n{right}",
            },
        ),
    )
    return path


def read_picture(path: Path) -> str | None:
    """Return a PNG file of a run's folder as a data URL; None if it does not exist.

    Raises:
        CheckpointError: the file is a link, a pipe, too large or not a PNG file.
    """
    if not path.exists():
        return None
    is_readable = path.is_file() and not path.is_symlink() and path.stat().st_size <= _MOST_BYTES
    content = path.read_bytes() if is_readable else b""
    if not content.startswith(_MAGIC):
        raise CheckpointError(f"{path} is not a picture that privet drew. Remove it, or draw it again.")
    return "data:image/png;base64," + base64.b64encode(content).decode()
