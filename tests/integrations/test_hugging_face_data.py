"""Data sets, batches, collate functions and optimizers of Hugging Face in privet's own loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.optimization import Adafactor

import datasets
import privet as pv
from privet.datasets import RecordStream
from tests.integrations.tiny import decoder, grouped, own_losses, plan, same_weights, texts
from tests.integrations.words import sentences, tokenizer


def trained(data: Any, *, collate: Any = None, optimizer: Any = None) -> Any:
    model = decoder()
    made = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer(model)
    with pv.privatize(model, made, data, plan(), seed=5, collate_fn=collate) as session:
        for step in session.steps():
            step.accumulate(lambda batch: own_losses(model, batch))
            step.update()
    return model


def test_a_data_set_of_hugging_face_is_a_data_set() -> None:
    items = texts()
    columns = {name: [item[name] for item in items] for name in items[0]}
    theirs = datasets.Dataset.from_dict(columns).with_format("torch")
    by_list = trained(items, collate=transformers.default_data_collator)
    assert same_weights(trained(theirs), by_list)
    assert same_weights(
        trained(datasets.Dataset.from_dict(columns), collate=transformers.default_data_collator), by_list
    )


def test_a_stream_cannot_be_sampled_and_is_refused_with_the_way_out() -> None:
    stream = datasets.Dataset.from_dict({"input_ids": [[1, 2]] * 8}).to_iterable_dataset()
    with pytest.raises(pv.PrivetError, match=r"cannot be sampled by index.*RecordStream\.stored"):
        trained(stream)


def test_a_stream_that_is_kept_trains_the_model_of_its_records(tmp_path: Path) -> None:
    items = texts()
    columns = {name: [item[name] for item in items] for name in items[0]}
    stream = datasets.Dataset.from_dict(columns).to_iterable_dataset()
    kept = RecordStream.stored(stream, folder=tmp_path / "stream")
    by_list = trained(items, collate=transformers.default_data_collator)
    assert same_weights(trained(kept, collate=transformers.default_data_collator), by_list)


def test_the_batch_of_a_tokenizer_is_a_batch() -> None:
    words = tokenizer()

    def collate(items: list[str]) -> transformers.BatchEncoding:
        batch = words(items, padding="max_length", max_length=8, truncation=True, return_tensors="pt")
        batch.pop("token_type_ids", None)
        batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        return batch

    assert not same_weights(trained(sentences(40, seed=1), collate=collate), decoder())


@pytest.mark.parametrize(
    "optimizer",
    [
        grouped,
        lambda model: Adafactor(model.parameters(), lr=1e-2, relative_step=False, scale_parameter=False),
        lambda model: torch.optim.Adafactor(model.parameters(), lr=1e-2),
    ],
    ids=["parameter groups", "transformers.Adafactor", "torch.Adafactor"],
)
def test_optimizers_of_theirs_follow_private_steps(optimizer: Any) -> None:
    model = trained(texts(), collate=transformers.default_data_collator, optimizer=optimizer)
    start = decoder().state_dict()
    assert [name for name, value in model.named_parameters() if torch.equal(value, start[name])] == []
