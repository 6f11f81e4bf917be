"""A grid of pictures, such as originals in the first row and rebuilt pictures below."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from privet.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

_SIDE = 1.1  # inches of one picture
_LABEL = 1.5  # inches left of them


def picture_grid(rows: Mapping[str, Tensor], *, captions: Mapping[str, str] | None = None) -> bytes:
    """Draw rows of pictures with their names, as a PNG file.

    Pictures are records: draw such a grid of public images only.

    Args:
        rows: Pictures ``[picture, channel, height, width]`` from 0 to 1 by the row's name, equally many in every row.
        captions: A line under a row's name, such as its mean squared error.

    Returns:
        The file's bytes; the same pictures give the same file.
    """
    shapes = {tuple(pictures.shape) for pictures in rows.values()}
    if len(shapes) != 1 or len(shape := next(iter(shapes))) != 4 or shape[1] not in (1, 3) or 0 in shape:
        raise DataError(
            "picture_grid draws rows of equally many pictures [picture, channel, height, width] with 1 or 3 channels; "
            f"got {sorted(shapes)}."
        )
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_LABEL + _SIDE * shape[0], _SIDE * len(rows)), dpi=120)
    FigureCanvasAgg(figure)  # without the global state of pyplot
    axes = figure.subplots(len(rows), shape[0], squeeze=False)
    left = _LABEL / (_LABEL + _SIDE * shape[0])
    figure.subplots_adjust(left=left, right=0.99, top=0.99, bottom=0.01, wspace=0.05, hspace=0.05)
    for line, (name, pictures) in zip(axes, rows.items(), strict=True):
        values = np.clip(pictures.detach().cpu().double().numpy(), 0, 1).transpose(0, 2, 3, 1)
        for place, picture in zip(line, values, strict=True):
            place.imshow(picture.squeeze(2) if shape[1] == 1 else picture, cmap="gray", vmin=0, vmax=1)
            place.set_axis_off()
        text = name if captions is None or name not in captions else f"{name}\n{captions[name]}"
        line[0].text(-0.1, 0.5, text, transform=line[0].transAxes, ha="right", va="center", fontsize=8)
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": ""})
    return file.getvalue()
