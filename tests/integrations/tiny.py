"""Tiny models and data sets for the trainers of other libraries; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

import privet as pv
from privet.integrations import PrivateRun

VOCABULARY, LENGTH = 40, 10
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}


def decoder(*, dtype: torch.dtype = torch.float64, seed: int = 0, **settings: Any) -> Any:
    """Return a small causal language model; equal seeds give equal weights."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(**_SIZES, bos_token_id=1, eos_token_id=2, **settings)
    return transformers.LlamaForCausalLM(config).to(dtype)


def encoder(*, dtype: torch.dtype = torch.float64, seed: int = 0, num_labels: int = 2) -> Any:
    """Return a small classifier of texts."""
    torch.manual_seed(seed)
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            **_SIZES, num_labels=num_labels, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )
    ).to(dtype)


def texts(size: int = 40, *, seed: int = 1) -> list[dict[str, Any]]:
    """Return texts of several lengths, padded, whose first tokens have no part in the loss."""
    draw = torch.Generator().manual_seed(seed)
    items = []
    for _ in range(size):
        length = int(torch.randint(4, LENGTH + 1, (), generator=draw))
        ids = torch.randint(3, VOCABULARY, (length,), generator=draw).tolist()
        rest = LENGTH - length
        items.append(
            {
                "input_ids": ids + [0] * rest,
                "attention_mask": [1] * length + [0] * rest,
                "labels": [-100, -100, *ids[2:]] + [-100] * rest,
            }
        )
    return items


def plan(*, steps: int = 6, size: int = 40, batch_size: float = 8.0, noise_multiplier: float = 1.0) -> pv.Plan:
    return pv.Plan.dpsgd(
        dataset_size=size, batch_size=batch_size, steps=steps, noise_multiplier=noise_multiplier, delta=1e-5
    )


def run(seed: int | None = 3, **settings: Any) -> PrivateRun:
    given = {"plan": plan(), "seed": seed} | settings
    return PrivateRun(**given)


def arguments(output: Path, kind: Any = transformers.TrainingArguments, **settings: Any) -> Any:
    usual = {
        "output_dir": str(output),
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "weight_decay": 0.1,
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "report_to": "none",
        "use_cpu": True,
    }
    return kind(**(usual | settings))


def own_losses(model: Any, batch: Any) -> torch.Tensor:
    """Return the loss of each text, as a user of privet's own loop writes it."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)
    labels = torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)  # each token foretells the next
    each = torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="none").view_as(labels)
    counted = (labels != -100).to(each.dtype)
    return (each * counted).sum(1) / counted.sum(1).clamp(min=1)


def losses_one_by_one(model: Any, batch: Any) -> torch.Tensor:
    """Return the loss of each text by the definition: its mean over its own labelled tokens."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    losses = []
    for scores, labels in zip(logits[:, :-1], batch["labels"][:, 1:], strict=True):
        kept = labels != -100
        losses.append(torch.nn.functional.cross_entropy(scores[kept], labels[kept]))
    return torch.stack(losses)


def grouped(model: Any, *, lr: float = 1e-2, weight_decay: float = 0.1) -> torch.optim.Optimizer:
    """Return the optimizer that the trainer makes by default."""
    trained = [(name.lower(), value) for name, value in model.named_parameters() if value.requires_grad]
    decayed = [value for name, value in trained if "norm" not in name and "bias" not in name]
    others = [value for name, value in trained if "norm" in name or "bias" in name]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, fused=True)


def trained_by_hand(
    model: Any, data: Any, private: PrivateRun, *, losses: Any = own_losses, context: Any = None, collate: Any = None
) -> pv.Session:
    """Train with privet's own loop as the trainer would: same optimizer, same schedule, same seeds."""
    optimizer = grouped(model)
    schedule = transformers.get_scheduler(
        "linear", optimizer, num_warmup_steps=0, num_training_steps=private.plan.num_steps
    )

    def computed(batch: Any) -> torch.Tensor:
        if context is None:
            return losses(model, batch)
        with context():
            return losses(model, batch)

    model.train()
    with pv.privatize(
        model,
        optimizer,
        data,
        private.plan,
        seed=private.seed,
        collate_fn=collate or transformers.default_data_collator,
        performance=pv.Performance(physical_batch_size=4),
    ) as session:
        for step in session.steps():
            step.accumulate(computed)
            step.update()
            schedule.step()
    return session


def same_weights(one: Any, other: Any) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
