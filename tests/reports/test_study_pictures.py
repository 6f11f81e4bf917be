"""Pictures of studies: from rows alone, for studies that exist."""

from __future__ import annotations

import pytest
import torch

from privet.experiments.studies.catalogue import STUDIES
from privet.experiments.studies.reconstruction import encoded
from privet.reports.study_pictures import PICTURES

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
