from __future__ import annotations

import json
from typing import Any

import pytest

from privet.attacks.reconstruction.result import Mean, RebuiltFigures, RebuiltReport
from privet.errors import ArgumentError


def report() -> RebuiltReport:
    mean = Mean.of([0.1, 0.2, 0.4])
    row = RebuiltFigures(name="bare", mse=mean, psnr=mean, ssim=mean)
    return RebuiltReport(num_images=3, num_steps=10, mask_rate=0.0, noise_std=None, rows=(row,))


def test_the_interval_of_a_mean_is_students() -> None:
    found = Mean.of([1.0, 2.0, 3.0, 4.0])
    # the 0.975 quantile at three degrees of freedom, as tables print it, times the standard error
    half = 3.182446 * (5 / 3) ** 0.5 / 2
    assert (found.value, found.low, found.high) == pytest.approx((2.5, 2.5 - half, 2.5 + half), abs=1e-5)


def test_one_value_has_no_interval() -> None:
    with pytest.raises(ArgumentError, match="two values"):
        Mean.of([1.0])


def test_a_report_comes_back_from_plain_values() -> None:
    assert RebuiltReport.from_dict(json.loads(json.dumps(report().to_dict()))) == report()


@pytest.mark.parametrize(
    ("key", "value"),
    [("rows", []), ("rows", [{}]), ("rows", 3), ("num_images", 0), ("mask_rate", 2.0), ("noise_std", "much")],
    ids=["no-rows", "empty-row", "rows-a-number", "no-images", "rate-above-one", "noise-a-word"],
)
def test_what_is_no_report_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ArgumentError):
        RebuiltReport.from_dict({**report().to_dict(), key: value})
