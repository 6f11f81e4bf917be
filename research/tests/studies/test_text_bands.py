from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from privet.errors import ArgumentError
from privet.models.token_states import TokenStates
from privet_research.studies import text_bands
from privet_research.studies.text_bands import BANDED, INDEPENDENT, BandSettings, band_table, run_band_study

WIDTH = 384


class Upper(torch.nn.Module):
    """A head on the mean of the states, in the place of the encoder's upper layers."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(WIDTH, 2)

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head((states * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp_min(1))
        return found


def states(seed: int, number: int) -> TokenStates:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 5, (number,), generator=generator)
    labels = torch.randint(0, 2, (number,), generator=generator)
    tokens = torch.randn(int(lengths.sum()), WIDTH, generator=generator)
    tokens[:, 0] += 3.0 * (2 * torch.repeat_interleave(labels, lengths) - 1)
    return TokenStates(states=tokens.half(), lengths=lengths, starts=lengths.cumsum(0) - lengths, labels=labels)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> BandSettings:
    parts = states(0, 200), states(1, 40), states(2, 50)
    monkeypatch.setattr(text_bands, "sentence_states", lambda settings, device: parts)
    monkeypatch.setattr(text_bands, "sentence_model", lambda settings, seed: Upper())
    base = BandSettings().shortened()
    return replace(base, dataset_size=200, batch_size=50, rates=("0.01", "0.5"), delta=1e-3)


def row(arm: str, seed: int, accuracy: float, **facts: Any) -> dict[str, Any]:
    known = {"dataset": "sst2", "target": 3.0, "epsilon": 3.0, "delta": 1e-6, "bands": 1, "noise_multiplier": 1.0}
    known |= {"steps": 1000, "epochs": 3, "batch_size": 200, "variant": "a body", "rate": 0.1, "final": 1.0}
    return known | {"arm": arm, "seed": seed, "accuracy": accuracy, "held_out_accuracy": 0.5, "num_test": 872} | facts


def test_both_kinds_of_noise_keep_the_same_guarantee() -> None:
    settings = BandSettings(dataset_size=4_000, bands=4)
    plans = [settings.plan(arm) for arm in (INDEPENDENT, BANDED)]
    assert all(2.99 < plan.guarantee().epsilon <= 3.0 for plan in plans)
    assert [plan.sampling.expected_batch_size for plan in plans] == [200, 200]


def test_every_arm_tries_all_courses_with_one_seed_and_the_best_one_with_all(small: BandSettings) -> None:
    rows = list(run_band_study([small], seeds=[3, 4], device=torch.device("cpu")))
    assert [(found["arm"], found["seed"]) for found in rows] == [
        (arm, seed) for arm in (INDEPENDENT, BANDED) for seed in (3, 3, 4)
    ]
    for arm in (INDEPENDENT, BANDED):
        *searched, last = [found for found in rows if found["arm"] == arm]
        assert last["rate"] == max(searched, key=lambda found: found["held_out_accuracy"])["rate"]
        assert last["epsilon"] <= small.epsilon


def test_the_rate_is_chosen_by_held_out_sentences_and_never_by_the_development_part() -> None:
    rows = [row(INDEPENDENT, seed, 0.8 + seed / 100, held_out_accuracy=0.9) for seed in range(3)]
    rows += [row(INDEPENDENT, 0, 0.99, held_out_accuracy=0.6, rate=0.4)]
    rows += [row(BANDED, seed, 0.85 + seed / 100, bands=8) for seed in range(3)]
    table = band_table(rows)
    assert "| 3 | 81.0 ± 2.5 | 86.0 ± 2.5 | 8 | +5.0 ± 0.0 | correlated noise is better |" in table


def test_a_gain_within_its_interval_decides_nothing() -> None:
    rows = [row(INDEPENDENT, seed, value) for seed, value in enumerate((0.80, 0.85, 0.82))]
    rows += [row(BANDED, seed, value) for seed, value in enumerate((0.84, 0.83, 0.82))]
    assert "not decided" in band_table(rows)
    assert "independent noise is better" in band_table([{**found, "accuracy": 0.5} if found["arm"] == BANDED else found
                                                        for found in rows])  # fmt: skip


def test_unknown_kinds_of_noise_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no arm 'other'"):
        BandSettings(arms=("other",))
