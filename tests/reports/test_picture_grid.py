"""The grid of pictures: one file for the same pictures, readable, and nothing else accepted."""

from __future__ import annotations

import io

import pytest
import torch
from PIL import Image

from privet.errors import DataError
from privet.reports.picture_grid import picture_grid


@pytest.mark.parametrize("channels", [1, 3])
def test_a_grid_grows_with_its_rows_and_columns_and_is_repeatable(channels: int) -> None:
    torch.manual_seed(0)
    pictures = torch.rand(3, channels, 8, 8)
    first = picture_grid({"original": pictures, "rate 0.5": 1 - pictures}, captions={"rate 0.5": "MSE 0.33"})
    assert first == picture_grid({"original": pictures, "rate 0.5": 1 - pictures}, captions={"rate 0.5": "MSE 0.33"})
    assert first != picture_grid({"original": pictures, "rate 0.5": pictures}, captions={"rate 0.5": "MSE 0.33"})
    small, large = Image.open(io.BytesIO(picture_grid({"original": pictures[:2]}))), Image.open(io.BytesIO(first))
    assert large.width > small.width
    assert large.height == pytest.approx(2 * small.height, abs=2)


def test_rows_that_do_not_fit_together_are_refused() -> None:
    for rows in (
        {},
        {"a": torch.zeros(2, 1, 4, 4), "b": torch.zeros(3, 1, 4, 4)},
        {"a": torch.zeros(2, 2, 4, 4)},
        {"a": torch.zeros(2, 4, 4)},
        {"a": torch.zeros(0, 1, 4, 4)},
    ):
        with pytest.raises(DataError, match="equally many pictures"):
            picture_grid(rows)
