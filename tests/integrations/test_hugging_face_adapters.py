"""PEFT's adapters and TRL's trainers: every trainable tensor moves in the first step, and what is saved is PEFT's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
import trl
from torch import nn

import datasets
import privet as pv
from privet.integrations import PrivateTrainer, PrivateTraining
from privet.integrations.hugging_face.losses import completion_scores
from tests.integrations.tiny import (
    arguments,
    decoder,
    encoder,
    plan,
    run,
    same_weights,
    texts,
    trained_by_hand,
)
from tests.integrations.words import sentences, tokenizer

LINEAR = ["q_proj", "v_proj"]
CAUSAL = {
    "LoRA": peft.LoraConfig(r=2, target_modules=LINEAR),
    "DoRA": peft.LoraConfig(r=2, target_modules=LINEAR, use_dora=True),
    "IA3": peft.IA3Config(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "prompt": peft.PromptTuningConfig(num_virtual_tokens=3),
    "prefix": peft.PrefixTuningConfig(num_virtual_tokens=3),
    "p-tuning": peft.PromptEncoderConfig(num_virtual_tokens=3, encoder_hidden_size=8),
    "LoHa": peft.LoHaConfig(r=2, target_modules=LINEAR),
}
MERGED = {"LoRA", "DoRA", "IA3", "LoHa"}


def adapted(config: peft.PeftConfig, *, task: str = "CAUSAL_LM", model: Any = None) -> Any:
    config.task_type = task
    base = decoder(dtype=torch.float32) if model is None else model
    torch.manual_seed(4)
    return peft.get_peft_model(base, config)


def trainable(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters() if value.requires_grad}


def logits_of(model: Any) -> torch.Tensor:
    batch = transformers.default_data_collator(texts(4, seed=6))
    with torch.no_grad():
        return model.eval()(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", CAUSAL)
def test_every_trainable_tensor_moves_in_the_first_step_and_merging_changes_the_logits(
    name: str, tmp_path: Path
) -> None:
    model = adapted(CAUSAL[name])
    before, frozen = trainable(model), {n: v.clone() for n, v in model.state_dict().items()}
    public = logits_of(decoder(dtype=torch.float32))
    trainer = PrivateTrainer(
        model=model, args=arguments(tmp_path), train_dataset=texts(), private=run(plan=plan(steps=1))
    )
    trainer.train()
    after = trainable(model)
    assert [n for n in before if torch.equal(before[n], after[n])] == []
    assert all(torch.equal(frozen[n], v) for n, v in model.state_dict().items() if n not in before and n in frozen)
    trainer.save_model(str(tmp_path / "adapter"))
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    again = peft.PeftModel.from_pretrained(decoder(dtype=torch.float32), tmp_path / "adapter")
    torch.testing.assert_close(logits_of(again), logits_of(model))
    if name in MERGED:
        merged = logits_of(again.merge_and_unload())
        torch.testing.assert_close(merged, logits_of(model), rtol=1e-4, atol=1e-5)
        assert (merged - public).abs().max() > 1e-4


def test_adapters_of_an_encoder_train_with_its_head(tmp_path: Path) -> None:
    model = adapted(
        peft.LoraConfig(r=2, target_modules=["query", "value"]), task="SEQ_CLS", model=encoder(dtype=torch.float32)
    )
    before = trainable(model)
    assert any("classifier" in name for name in before)
    data = [{**item, "labels": place % 2} for place, item in enumerate(texts())]
    PrivateTrainer(model=model, args=arguments(tmp_path), train_dataset=data, private=run(plan=plan(steps=1))).train()
    assert [n for n, v in trainable(model).items() if torch.equal(before[n], v)] == []


class Quantised(nn.Linear):
    """Stands in for a layer of bitsandbytes: weights of eight bits and a scale for each row, not trainable."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=False, dtype=layer.weight.dtype)
        del self.weight
        scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("codes", (layer.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)

    @property
    def weight(self) -> torch.Tensor:
        return self.codes.to(self.scale.dtype) * self.scale  # type: ignore[operator,no-any-return]

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(given, self.weight)


def test_adapters_on_a_quantised_frozen_base_train_and_leave_it_alone(tmp_path: Path) -> None:
    base = decoder(dtype=torch.float32)
    for layer in base.model.layers:
        for name in LINEAR:
            setattr(layer.self_attn, name, Quantised(getattr(layer.self_attn, name)))
    for value in base.parameters():
        value.requires_grad_(False)
    model = adapted(peft.LoraConfig(r=2, target_modules=LINEAR), model=base)
    before, codes = trainable(model), {n: v.clone() for n, v in model.state_dict().items() if "codes" in n}
    assert codes
    PrivateTrainer(
        model=model, args=arguments(tmp_path), train_dataset=texts(), private=run(plan=plan(steps=1))
    ).train()
    assert [n for n, v in trainable(model).items() if torch.equal(before[n], v)] == []
    assert all(torch.equal(codes[n], model.state_dict()[n]) for n in codes)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="bitsandbytes computes on CUDA devices")
def test_states_of_eight_bits_follow_private_steps() -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    model = nn.Linear(64, 64).cuda()
    optimizer = bitsandbytes.optim.Adam8bit(model.parameters(), lr=1e-2)
    before = trainable(model)
    data = torch.utils.data.TensorDataset(torch.randn(40, 64), torch.randn(40, 64))
    with pv.privatize(model, optimizer, data, plan(), seed=1) as session:
        for step in session.steps():
            step.accumulate(lambda x, y: (model(x) - y).square().mean(1))
            step.update()
    assert [n for n, v in trainable(model).items() if torch.equal(before[n], v)] == []


class PrivateSFT(PrivateTraining, trl.SFTTrainer):  # type: ignore[misc]
    pass


class PrivateDPO(PrivateTraining, trl.DPOTrainer):  # type: ignore[misc]
    pass


def test_supervised_fine_tuning_ends_with_the_weights_of_the_own_loop(tmp_path: Path) -> None:
    data = datasets.Dataset.from_dict({"text": sentences(40, seed=2)})
    trainer = PrivateSFT(
        model=decoder(),
        args=arguments(tmp_path, trl.SFTConfig, bf16=False, max_length=12),
        train_dataset=data,
        processing_class=tokenizer(),
        private=run(),
    )
    trainer.train()
    by_hand, collate = decoder(), trainer.data_collator
    assert trainer.args.activation_checkpointing  # TRL's default
    by_hand.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    items = trainer._remove_unused_columns(trainer.train_dataset, description="training")

    def losses(model: Any, batch: Any) -> torch.Tensor:
        batch = {"attention_mask": torch.ones_like(batch["input_ids"])} | dict(batch)
        logits, labels = (
            model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits,
            batch["labels"],
        )
        labels = nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
        each = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
        counted = (labels != -100).to(each.dtype)
        return (each * counted).sum(1) / counted.sum(1).clamp(min=1)

    trained_by_hand(by_hand, items, run(), losses=losses, collate=collate)
    assert same_weights(trainer.model, by_hand)
    assert not [name for row in trainer.state.log_history for name in row if "loss" in name or "accuracy" in name]


@pytest.mark.parametrize(
    "reference",
    [
        "adapters off",
        pytest.param("another model", marks=pytest.mark.slow),
        pytest.param("computed before", marks=pytest.mark.slow),
    ],
)
def test_preferences_are_trained_pair_by_pair(tmp_path: Path, reference: str) -> None:
    parts = {name: sentences(40, seed=place) for place, name in enumerate(("prompt", "chosen", "rejected"))}
    trainer = PrivateDPO(
        model=decoder(dtype=torch.float32),
        ref_model=decoder(dtype=torch.float32) if reference == "another model" else None,
        args=arguments(
            tmp_path, trl.DPOConfig, bf16=False, max_length=20, precompute_ref_log_probs=reference == "computed before"
        ),
        train_dataset=datasets.Dataset.from_dict(parts),
        processing_class=tokenizer(),
        peft_config=peft.LoraConfig(r=2, target_modules=LINEAR) if reference == "adapters off" else None,
        private=run(plan=plan(steps=2)),
    )
    before = trainable(trainer.model)
    trainer.train()
    assert [n for n, v in trainable(trainer.model).items() if torch.equal(before[n], v)] == []
    assert trainer.guarantee().epsilon == plan(steps=2).guarantee().epsilon


def test_the_score_of_an_answer_is_the_sum_over_its_tokens() -> None:
    model, ids = decoder(), torch.tensor([[1, 5, 7, 9, 2]])
    counted = torch.tensor([[0, 0, 1, 1, 0]])
    scores = completion_scores(model, ids, torch.ones_like(ids), counted)
    log_probs = model(input_ids=ids).logits.log_softmax(-1)
    torch.testing.assert_close(scores, (log_probs[0, 1, 7] + log_probs[0, 2, 9]).reshape(1))
