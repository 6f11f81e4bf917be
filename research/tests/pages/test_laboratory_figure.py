from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from PIL import Image

from privet.datasets.two_patch import TwoPatch
from privet.errors import DataError
from privet_research.pages.laboratory_figure import laboratory_figure, published_figure
from privet_research.pages.study_pictures import PICTURES
from privet_research.studies.laboratory import LabSettings, run_groups, run_phase_map, run_rotation
from privet_research.studies.patch_training import PatchTraining

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    small = LabSettings(num_examples=120, num_filters=3, training=PatchTraining(batch_size=20, num_steps=3))
    parts = {
        "groups": run_groups(TwoPatch(), (0.0, 0.5), small, seed=0, device=CPU),
        "phases": run_phase_map((1.0, 4.0), (0.1, 1.0), small, seed=0, device=CPU),
        "rotation": run_rotation((0, 90), small, seed=0, device=CPU),
    }
    return [{"part": name, **row} for name, own in parts.items() for row in own]


def test_the_laboratory_is_drawn_from_its_rows_alone_and_repeats(rows: list[dict[str, Any]]) -> None:
    first = laboratory_figure(rows)
    assert first == PICTURES["feature-to-noise"](rows)
    assert Image.open(io.BytesIO(first)).size == (1140, 864)
    changed = [{**row, "accuracy": 0.5} if row["part"] == "phases" else row for row in rows]
    assert laboratory_figure(changed) != first


def test_rows_without_a_part_are_refused(rows: list[dict[str, Any]]) -> None:
    with pytest.raises(DataError, match="'phases'"):
        laboratory_figure([row for row in rows if row["part"] != "phases"])


def test_figures_beside_the_paper_are_drawn_with_and_without_published_ones() -> None:
    def made(paper: float | None) -> list[dict[str, Any]]:
        return [
            {
                "arm": arm,
                "seed": seed,
                "accuracy": 0.9 - 0.1 * seed,
                "attacked_accuracy": 0.5,
                "paper_accuracy": paper,
                "paper_attacked_accuracy": paper,
            }
            for arm in ("0 % padding", "75 % padding")
            for seed in (0, 1)
        ]

    draw = published_figure("padding-mnist")
    assert Image.open(io.BytesIO(draw(made(97)))).format == "PNG"
    assert draw(made(None)) != draw(made(97))


def test_rows_of_several_epsilons_get_a_panel_each() -> None:
    def made(epsilons: tuple[float | None, ...]) -> list[dict[str, Any]]:
        return [
            {
                "arm": f"{size} fives" + ("" if epsilon is None else f", epsilon {epsilon:g}"),
                "seed": 0,
                "accuracy": 0.9,
                "attacked_accuracy": 0.5,
                "paper_accuracy": None,
                "paper_attacked_accuracy": None,
                "target_epsilon": epsilon,
            }
            for epsilon in epsilons
            for size in (100, 3000)
        ]

    draw = published_figure("class-size-mnist")
    one, three = (Image.open(io.BytesIO(draw(made(each)))).size for each in ((None,), (3.0, 8.0, 30.0)))
    assert three[0] > 1.5 * one[0]
    assert three[1] == one[1]
