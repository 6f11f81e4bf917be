"""Public architectures whose gradients are easily lost: adapters made by custom functions, attention by rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from privet.gradients.engines.bookkeeping import BookKeeping
from privet.isolation.watch import Check, Waiver
from privet.mechanism.clipping import Threshold
from tests.gradients.reference import add, loop_clipped_sum, relative_error, started

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore")

CLIPPING = Threshold(norm=0.5)
SMALL = {
    "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 32, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 3,
}  # fmt: skip


def adapted_bert(adapter: object) -> nn.Module:
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL))
    return peft.get_peft_model(model, adapter)  # type: ignore[no-any-return]


def losses(model: nn.Module, words: Tensor) -> Tensor:
    options = {}
    if "longformer" in type(model).__name__.lower():
        options["global_attention_mask"] = functional.one_hot(torch.zeros(len(words), dtype=torch.long), words.shape[1])
    logits = model(input_ids=words, attention_mask=torch.ones_like(words), **options).logits
    return functional.cross_entropy(logits, words[:, 0] % 3, reduction="none")


def longformer() -> nn.Module:
    config = transformers.LongformerConfig(**SMALL, attention_window=4, pad_token_id=1)
    return transformers.LongformerForSequenceClassification(config)  # type: ignore[no-any-return]


COUNTS_GLOBAL_TOKENS = Waiver(
    check=Check.READS,
    because="Longformer asks for the largest number of global tokens, and masks what others have less",
)
MODELS = {
    "LoHa": lambda: adapted_bert(peft.LoHaConfig(r=2, target_modules=["query", "value"])),
    "OFT": lambda: adapted_bert(peft.OFTConfig(r=0, oft_block_size=4, target_modules=["query", "value"])),
    "Longformer": longformer,
}


@pytest.mark.parametrize("name", MODELS)
def test_no_gradient_is_lost_at_the_first_step_nor_after_weights_that_were_zero_have_moved(name: str) -> None:
    torch.manual_seed(0)
    model, words = MODELS[name]().double(), torch.randint(5, 50, (4, 8))
    running, into, rule = started(BookKeeping(), model, CLIPPING, waive=[COUNTS_GLOBAL_TOKENS])
    try:
        for _ in range(2):
            into.clear()
            add(running, model, words, rule, into, losses)
            assert relative_error(into.flat, loop_clipped_sum(model, losses, words, CLIPPING)) <= 1e-9
            with torch.no_grad():
                for value in model.parameters():
                    value.add_(0.1 * torch.randn_like(value) * value.requires_grad)
    finally:
        running.close()
