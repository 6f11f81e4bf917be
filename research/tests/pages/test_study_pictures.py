"""Pictures of studies: from rows alone, for studies that exist."""

from __future__ import annotations

import pytest
import torch

from privet_research.pages.study_pictures import PICTURES
from privet_research.studies.catalogue import STUDIES
from privet_research.studies.reconstruction import encoded

pytest.importorskip("matplotlib")
PNG = b"\x89PNG\r\n"


def test_every_picture_belongs_to_a_study() -> None:
    assert set(PICTURES) <= set(STUDIES)


def test_reconstructions_are_drawn_below_their_originals_for_the_first_seed() -> None:
    texts = encoded(torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    first = {"arm": "noise 0, rate 0", "seed": 3, "mse": 0.1, "pictures": texts, "originals": texts}
    rows = [first, first | {"arm": "noise 0, rate 0.9"}, first | {"seed": 4}]
    draw = PICTURES["reconstruction-cifar10"]
    assert draw(rows).startswith(PNG)
    assert draw(rows) == draw(rows[:2])
    assert draw(rows) != draw(rows[:1])


def test_accuracy_against_rate_is_drawn_in_panels() -> None:
    rows = [
        {"kind": "private", "panel": f"panel {number}", "rate": rate, "seed": seed, "train_accuracy": 0.5 + rate / 10}
        for number in range(4)
        for rate in (0.0, 0.9)
        for seed in (0, 1)
    ]
    draw = PICTURES["sparsification-signs"]
    assert draw(rows).startswith(PNG)
    assert draw(rows) != draw(rows[:8])


def test_clouds_frequencies_and_accuracies_are_drawn_for_the_first_seed() -> None:
    rows = [
        {"part": "deviations", "title": "epoch 0", "p_value": 0.5, "points": [[0.0, 1.0], [1.0, 0.0]], "seed": 0},
        {"part": "frequency", "title": "random masks", "histogram": [1, 2, 1], "seed": 0},
        {"part": "accuracy", "way": "no mask", "accuracy": 0.5, "seed": 0},
    ]
    draw = PICTURES["mask-statistics"]
    assert draw(rows).startswith(PNG)
    assert draw(rows) == draw([*rows, {**rows[0], "seed": 1}])
    assert len({draw(rows[:2]), draw(rows[2:]), draw(rows)}) == 3, "also without clouds"
