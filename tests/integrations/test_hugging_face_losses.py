"""The loss of an example is what transformers gives for a batch of this example alone, for every kind of model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from privet.errors import UnsupportedModel
from privet.integrations import PrivateTrainer, PrivateTraining
from tests.integrations.tiny import arguments, encoder, plan, run, texts
from tests.integrations.words import tokenizer

_OF_BERT: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 32,
}  # fmt: skip
_OF_GPT: dict[str, Any] = {"vocab_size": 40, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}


def bert(kind: Any, **settings: Any) -> Any:
    return kind(transformers.BertConfig(**_OF_BERT, **settings))


def decoder_of_bert(kind: Any, config: Any) -> Any:
    return kind(config(**_OF_BERT, is_decoder=True))


def t5() -> Any:
    sizes = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    special = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **special))


def bart() -> Any:
    sizes = {f"{part}_{name}": value for part in ("encoder", "decoder") for name, value in
             {"layers": 1, "attention_heads": 2, "ffn_dim": 24}.items()}  # fmt: skip
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    config = transformers.BartConfig(vocab_size=40, d_model=16, max_position_embeddings=32, **sizes, **special)
    return transformers.BartForConditionalGeneration(config)


MODELS = {
    "GPT-2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**_OF_GPT)),
    "GPT": lambda: transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**_OF_GPT)),
    "CTRL": lambda: transformers.CTRLLMHeadModel(transformers.CTRLConfig(**_OF_GPT, dff=24)),
    "BERT, decoding": lambda: decoder_of_bert(transformers.BertLMHeadModel, transformers.BertConfig),
    "BERT, generating": lambda: decoder_of_bert(transformers.BertGenerationDecoder, transformers.BertGenerationConfig),
    "T5": t5,
    "BART": bart,
    "BERT, masked": lambda: bert(transformers.BertForMaskedLM),
    "BERT, tokens": lambda: bert(transformers.BertForTokenClassification, num_labels=40),
    "BERT, answers": lambda: bert(transformers.BertForQuestionAnswering),
    "BERT, classes": lambda: encoder(),
    "BERT, a number": lambda: encoder(num_labels=1),
    "BERT, several classes": lambda: encoder(num_labels=3),
}
LABELS = {
    "BERT, answers": {"start_positions": 1, "end_positions": 3},
    "BERT, classes": {"labels": 1},
    "BERT, a number": {"labels": 1.5},
    "BERT, several classes": {"labels": [1.0, 0.0, 1.0]},
}


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_of_an_example_is_that_of_the_model_on_this_example_alone(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().double().eval()
    rows = [{**item, **LABELS[name]} if name in LABELS else item for item in texts(6)]
    if name in LABELS and "labels" not in LABELS[name]:
        rows = [{key: value for key, value in row.items() if key != "labels"} for row in rows]
    batch = transformers.default_data_collator(rows)
    if name == "BERT, a number":
        batch["labels"] = batch["labels"].double()
    trainer = PrivateTrainer(model=model, args=arguments(tmp_path), train_dataset=rows, private=run())
    losses = trainer.compute_losses(model, batch)
    alone = [model(**{key: value[place : place + 1] for key, value in batch.items()}).loss for place in range(6)]
    torch.testing.assert_close(losses.float(), torch.stack(alone).float())  # theirs are single


def test_a_model_whose_labels_are_not_those_of_its_kind_is_refused(tmp_path: Path) -> None:
    model = transformers.XLNetLMHeadModel(transformers.XLNetConfig(vocab_size=40, d_model=16, n_layer=1, n_head=2))
    trainer = PrivateTrainer(model=model, args=arguments(tmp_path), train_dataset=texts(), private=run())
    with pytest.raises(UnsupportedModel, match="XLNetLMHeadModel"):
        trainer.compute_losses(model, transformers.default_data_collator(texts(2)))


def test_a_loss_that_balances_experts_is_refused_and_never_left_out_in_silence(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.MixtralConfig(**sizes, vocab_size=40, num_key_value_heads=1, num_local_experts=2)
    model, batch = transformers.MixtralForCausalLM(config), transformers.default_data_collator(texts(3))
    trainer = PrivateTrainer(model=model, args=arguments(tmp_path), train_dataset=texts(), private=run())
    assert trainer.compute_losses(model, batch).shape == (3,)
    model.config.output_router_logits = True
    with pytest.raises(UnsupportedModel, match="balances experts over the whole batch"):
        trainer.compute_losses(model, batch)


class PrivateSeq2SeqTrainer(PrivateTraining, transformers.Seq2SeqTrainer):  # type: ignore[misc]
    pass


def test_a_model_of_sequences_trains_and_generates(tmp_path: Path) -> None:
    model, words = t5(), tokenizer()
    rows = [{**item, "labels": item["input_ids"][:6]} for item in texts()]
    trainer = PrivateSeq2SeqTrainer(
        model=model,
        args=arguments(
            tmp_path, transformers.Seq2SeqTrainingArguments, predict_with_generate=True, generation_max_length=8
        ),
        train_dataset=rows,
        eval_dataset=[{**item, "labels": item["input_ids"][:6]} for item in texts(4, seed=9)],
        processing_class=words,
        data_collator=transformers.DataCollatorForSeq2Seq(words, model=model),
        private=run(plan=plan(steps=2)),
    )
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    trainer.train()
    assert [name for name, value in model.named_parameters() if torch.equal(value, before[name])] == []
    assert trainer.evaluate()["eval_loss"] > 0
    assert trainer.guarantee().epsilon == plan(steps=2).guarantee().epsilon
