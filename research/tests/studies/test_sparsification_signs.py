"""When masks help, at a small scale: the panels, the rows, and a table that says what the rows say."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from privet_research.studies import sparsification_signs as signs
from privet_research.studies.mask_tasks import DIGITS
from privet_research.studies.sparsification_signs import CLIP_ONLY, PANELS, PRIVATE, Panel

CPU = torch.device("cpu")


def test_the_panels_are_all_pairs_and_each_half_of_the_mechanism_alone() -> None:
    private = {(panel.noise_multiplier, panel.norm) for panel in PANELS if panel.kind == PRIVATE}
    assert private == set(itertools.product(signs.NOISES, signs.NORMS))
    for panel in PANELS:
        pieces = (panel.clipping, panel.noise)
        assert any((piece.not_private_because is not None) for piece in pieces) == (panel.kind != PRIVATE)


def test_masks_hurt_under_little_noise_and_help_under_much() -> None:
    pytest.importorskip("sklearn")
    panels = (panel_of(1.0, 0.25), panel_of(4.0, 1.0))
    rows = list(signs.run_signs_study(DIGITS, seeds=[0], device=CPU, panels=panels))
    found = {(row["panel"], row["rate"]): row["train_accuracy"] for row in rows}
    assert found["sigma 1, C 0.25", 0.9] < found["sigma 1, C 0.25", 0.0] - 0.002
    assert found["sigma 4, C 1", 0.9] > found["sigma 4, C 1", 0.0] + 0.01


def panel_of(noise_multiplier: float | None, norm: float | None) -> Panel:
    return next(panel for panel in PANELS if (panel.noise_multiplier, panel.norm) == (noise_multiplier, norm))


def row(panel: Panel, rate: float, seed: int, accuracy: float) -> dict[str, Any]:
    facts = {"kind": panel.kind, "panel": panel.title, "noise_multiplier": panel.noise_multiplier, "norm": panel.norm}
    return facts | {"rate": rate, "seed": seed, "accuracy": accuracy, "train_accuracy": accuracy}


def test_the_table_names_the_panels_in_which_masks_help_without_noise_or_clipping() -> None:
    least, most, clip = panel_of(1.0, 0.25), panel_of(4.0, 1.0), panel_of(None, 0.25)
    rows = [
        row(panel, rate, seed, accuracy + 0.001 * seed)
        for panel, pair in ((least, (0.9, 0.8)), (most, (0.7, 0.8)), (clip, (0.9, 0.9)))
        for rate, accuracy in zip((0.0, 0.9), pair, strict=True)
        for seed in (0, 1, 2)
    ]
    table = signs.signs_table(rows)
    assert "Under the least noise (sigma 1, C 0.25) the mask changes training accuracy by -10.0 ± 0.0" in table
    assert "under the most (sigma 4, C 1) by +10.0 ± 0.0" in table
    assert "it surely helps in no panel" in table
    for each in rows:
        if each["kind"] == CLIP_ONLY and each["rate"]:
            each["train_accuracy"] += 0.02
    assert "it surely helps in no noise, C 0.25 (+2.0 ± 0.0)" in signs.signs_table(rows)
    assert "needs private panels" in signs.signs_table([row(clip, 0.0, 0, 0.5), row(clip, 0.9, 0, 0.5)])
