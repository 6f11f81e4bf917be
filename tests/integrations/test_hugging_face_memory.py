"""How much memory a private step holds on top of plain training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from torch.profiler import ProfilerActivity, profile

from privet.integrations import PrivateTrainer
from tests.integrations.tiny import arguments, plan, run

VOCABULARY, LENGTH, AT_ONCE = 2000, 64, 16


def adapted() -> Any:
    """Return a decoder whose logits and activations are large beside its weights, as in real ones."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=176, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, pad_token_id=0,
    )  # fmt: skip
    base = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    return peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj"]))


def most_held(model: Any, trainer: Any) -> int:
    """Return the bytes that training holds at most, weights included."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        trainer.train()
    events = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]  # type: ignore[union-attr]
    most = held = sum(value.numel() * value.element_size() for value in model.parameters())
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def test_adapters_of_a_decoder_train_in_little_more_memory_than_without_privacy(tmp_path: Path) -> None:
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(1, VOCABULARY, (2 * AT_ONCE, LENGTH))]
    settings = {"per_device_train_batch_size": AT_ONCE, "bf16": True, "weight_decay": 0.0}
    given = {"model": adapted(), "train_dataset": rows}
    plain = transformers.Trainer(**given, args=arguments(tmp_path / "plain", max_steps=2, **settings))
    most = most_held(given["model"], plain)
    given["model"] = adapted()
    every_row = run(plan=plan(steps=2, size=len(rows), batch_size=len(rows) * (1 - 1e-9)))
    private = PrivateTrainer(**given, args=arguments(tmp_path / "private", **settings), private=every_row)
    assert most_held(given["model"], private) <= 1.1 * most  # a rule that held wider inputs would take 1.13
