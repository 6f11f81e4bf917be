"""The benchmark of several views compares a whole job with the isolated step of its network."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from click.testing import CliRunner
from torch import nn

from benchmarks import views
from benchmarks.networks import StandardisedConv2d, WideResNet16, with_standardised_weights

SMALL = "--device cpu --widening 1 --records 32 --logical 8 --images-at-once 4 --views 2 --steps 1"


def test_a_job_is_compared_with_the_isolated_step(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    result = CliRunner().invoke(views.main, [*SMALL.split(), "--json-file", str(path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert [row["way"] for row in rows] == [
        "isolated step", "2 views, default", "2 views, one by one", "isolated step again",
    ]  # fmt: skip
    assert all(row["images_per_second"] > 0 for row in rows)
    assert rows[1]["share"] == rows[1]["images_per_second"] / rows[0]["images_per_second"]


def test_a_transform_counts_each_view() -> None:
    counted = views.Counted()
    assert counted(torch.zeros(6, 3, 32, 32)).shape == (6, 3, 32, 32)
    assert counted.number == 6


def test_standardised_filters_have_mean_zero_and_one_length() -> None:
    model = with_standardised_weights(WideResNet16(widening=1))
    assert not any(type(module) is nn.Conv2d for module in model.modules())
    layer = next(module for module in model.modules() if isinstance(module, StandardisedConv2d))
    ones = torch.ones(1, layer.in_channels, 3, 3)
    assert layer(ones)[0, :, 1, 1].abs().max() < 1e-5  # the sum of a filter
    single = torch.eye(ones.numel()).view(-1, *ones.shape[1:])
    lengths = layer(single)[:, :, 1, 1].square().sum(0)
    torch.testing.assert_close(lengths, torch.ones_like(lengths), rtol=1e-2, atol=0)
