from __future__ import annotations

from typing import Any

import pytest
import torch

from privet.errors import DataError
from privet_research.pages.reconstruction_page import likeness_rows, reconstruction_page
from privet_research.pages.study_pages import PAGES
from privet_research.studies.reconstruction import encoded
from tests.reports.test_run_report import Page


def rows() -> list[dict[str, Any]]:
    texts = encoded(torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    by_image = {f"{key}_by_image": [0.1, 0.3] for key in ("mse", "psnr", "ssim")}
    first = {"arm": "noise 0, rate 0", "seed": 0, "mse": 0.2, "num_steps": 60, "pictures": texts, **by_image}
    return [first | {"originals": texts}, first | {"seed": 1}, first | {"arm": "<script>alert(1)</script>"}]


def test_the_page_of_the_study_holds_the_pictures_and_every_figure_with_interval_and_count() -> None:
    text = PAGES["reconstruction-cifar10"](rows())
    assert text.count('src="data:image/png;base64,') == 1
    assert "<script>alert" not in text
    words = Page(text).words
    assert "mean squared error" in words
    assert "SSIM" in words


def test_images_of_all_seeds_count() -> None:
    lines = likeness_rows(rows())
    assert [line[4] for line in lines] == ["4"] * 3 + ["2"] * 3
    assert lines[0][:3] == ("noise 0, rate 0", "mean squared error", "0.2000")
    assert all(" to " in line[3] for line in lines)


def test_figures_without_single_images_are_left_out_rather_than_shown_without_interval() -> None:
    older = [{key: value for key, value in row.items() if key != "ssim_by_image"} for row in rows()]
    assert {line[1] for line in likeness_rows(older)} == {"mean squared error", "PSNR, dB"}


def test_no_rows_are_refused() -> None:
    with pytest.raises(DataError, match="no rows"):
        reconstruction_page([])
