"""When masks help, at a small scale: the panels, the rows, and a table that says what the rows say."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from privet_research.studies import sparsification_signs as signs
from privet_research.studies.catalogue import STUDIES
from privet_research.studies.sparsification_signs import CLIP_ONLY, NOISE_ONLY, PANELS, PRIVATE, Panel
from privet_research.studies.sparsification_terms import run_terms_study, terms_table

CPU = torch.device("cpu")


def test_the_panels_are_all_pairs_and_each_half_of_the_mechanism_alone() -> None:
    assert [panel.kind for panel in PANELS] == [PRIVATE] * 9 + [CLIP_ONLY] * 3 + [NOISE_ONLY] * 3
    for panel in PANELS:
        pieces = (panel.clipping, panel.noise)
        assert any((piece.not_private_because is not None) for piece in pieces) == (panel.kind != PRIVATE)


def test_masks_hurt_under_little_noise_and_help_under_much(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(signs, "RATES", (0.0, 0.9))
    rows = list(signs.run_signs_study(seeds=[0], device=CPU, panels=(PANELS[0], PANELS[8])))
    found = {(row["panel"], row["rate"]): row["train_accuracy"] for row in rows}
    assert found["sigma 1, C 0.25", 0.9] < found["sigma 1, C 0.25", 0.0] - 0.002
    assert found["sigma 4, C 1", 0.9] > found["sigma 4, C 1", 0.0] + 0.01


def row(panel: Panel, rate: float, seed: int, accuracy: float) -> dict[str, Any]:
    facts = {"kind": panel.kind, "panel": panel.title, "noise_multiplier": panel.noise_multiplier, "norm": panel.norm}
    return facts | {"rate": rate, "seed": seed, "accuracy": accuracy, "train_accuracy": accuracy}


def test_the_table_names_the_panels_in_which_masks_help_without_noise_or_clipping() -> None:
    least, most, clip = PANELS[0], PANELS[8], PANELS[9]
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


def test_masked_noise_has_the_length_of_theory_and_gradients_between_theirs_and_it() -> None:
    pytest.importorskip("sklearn")
    rows = list(run_terms_study(seeds=[0], device=CPU, epochs=4))
    by_part = {part: [row for row in rows if row["part"] == part] for part in {row["part"] for row in rows}}
    for found in by_part["noise norm"]:
        assert found["value"] == pytest.approx(found["theory"], abs=2e-3)
    for found in by_part["gradient norm"]:
        assert 1 - 1e-6 <= found["value"] <= 1.1 * found["theory"]
    assert [row["title"] for row in by_part["deviations"]] == ["epoch 0", "epoch 1", "epoch 2", "epoch 4"]
    random, ranked = by_part["frequency"]
    assert sum(random["histogram"]) == sum(ranked["histogram"]) == 19_210
    assert random["value"] == 0
    assert "sqrt(1 - rate)" in terms_table(rows)
    assert {"sparsification-signs", "sparsification-terms"} <= set(STUDIES)
