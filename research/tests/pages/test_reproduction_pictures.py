from __future__ import annotations

from typing import Any

import pytest
import torch

from privet_research.pages.mask_pictures import digits_picture, mask_statistics_picture
from privet_research.pages.reproduction_pictures import line_picture
from privet_research.reproduction.entry import Lines
from privet_research.studies.reconstruction import encoded

PNG = b"\x89PNG"
ROWS: list[dict[str, Any]] = [
    {"seed": seed, "x": x, "y": x + seed, "arm": arm, "part": f"$p{seed % 2}$"}
    for seed in range(3)
    for x in (0.1, 1.0, 10.0)
    for arm in ("first", "second")
]


@pytest.mark.parametrize("log_x", [False, True], ids=["linear", "logarithmic"])
def test_lines_are_drawn_as_png_and_svg_and_the_same_rows_give_the_same_bytes(log_x: bool) -> None:
    how = Lines(x="x", y="y", line="arm", panel="part", log_x=log_x, x_label="across", y_label="along")
    drawn = line_picture([*ROWS, {"seed": 9, "arm": "without figures"}], how)
    assert drawn["png"].startswith(PNG)
    svg = drawn["svg"].decode()
    for word in ("first", "second", "across", "along", "$p0$", "$p1$"):
        assert word in svg
    assert "without figures" not in svg
    assert "mathdefault" not in svg
    assert line_picture(ROWS, how)["svg"] == line_picture(ROWS, how)["svg"]


def test_clouds_and_histograms_are_drawn_together_or_alone() -> None:
    cloud = {"seed": 0, "part": "deviations", "title": "t", "p_value": 0.5, "points": [[0.0, 1.0], [1.0, 0.0]]}
    histogram = {"seed": 0, "part": "frequency", "title": "random masks", "histogram": [3, 2, 1]}
    pictures = [mask_statistics_picture(rows) for rows in ([cloud], [histogram], [cloud, histogram])]
    assert all(picture.startswith(PNG) for picture in pictures)
    assert len(set(pictures)) == 3


def test_digits_are_drawn_even_if_some_arms_have_fewer() -> None:
    rows = [
        {"seed": 0, "arm": arm, "pictures": encoded(torch.rand(count, 1, 28, 28, generator=torch.manual_seed(0)))}
        for arm, count in (("right", 4), ("wrong", 2), ("none", 0))
    ]
    assert digits_picture(rows).startswith(PNG)
