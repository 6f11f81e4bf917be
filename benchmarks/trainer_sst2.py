"""SST-2 through the Trainer of transformers: MiniLM with adapters at epsilon 3, as the recipe ``sst2_lora`` trains it.

    python -m benchmarks.trainer_sst2 --seed 1 --json-file runs/sst2_1.json

Needs the SST-2 files (``PRIVET_DATA``), privet[text] and privet[transformers].
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

import privet as pv
from benchmarks.machine import environment
from privet.datasets import load
from privet.models import MODELS

EPSILON, DELTA = 3.0, 1e-5
_RECORDS, _LENGTH = 67_349, 64
_RATE, _HEAD_RATE, _WARM_UP, _AVERAGE = 1e-3, 1e-2, 0.06, 0.95


class Sentences(pv.integrations.PrivateTrainer):
    """A trainer for a model that takes token numbers alone."""

    def compute_losses(self, model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
        """Return the cross-entropy of each sentence."""
        return functional.cross_entropy(model(inputs["tokens"]), inputs["labels"], reduction="none")


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Token numbers and labels by name; a batch is read at once."""

    def __init__(self, tokens: Tensor, labels: Tensor) -> None:
        self._columns = {"tokens": tokens, "labels": labels}

    def __len__(self) -> int:
        return len(self._columns["labels"])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: column[index] for name, column in self._columns.items()}


@torch.no_grad()
def accuracy(model: nn.Module, tokens: Tensor, labels: Tensor) -> float:
    """Return the share of sentences whose class is found."""
    model.eval()
    device = next(model.parameters()).device
    found = [model(part.to(device)).argmax(1).cpu() for part in tokens.split(64)]
    return float((torch.cat(found) == labels).float().mean())


def train(*, seed: int, epochs: int, batch_size: int, physical: int, records: int) -> dict[str, Any]:
    """Train once; return the accuracy on the development part and what was spent."""
    torch.manual_seed(seed)
    split = load("sst2")
    model = MODELS["minilm_lora"].build((_LENGTH,), 2)
    plan = pv.Plan.dpsgd(dataset_size=records, batch_size=batch_size, epochs=epochs, epsilon=EPSILON, delta=DELTA)
    head = list(model.upper.head.parameters())  # type: ignore[union-attr]
    body = [value for value in model.upper.layers.parameters() if value.requires_grad]  # type: ignore[union-attr]
    optimizer = pv.DPAdamW([{"params": body, "lr": _RATE}, {"params": head, "lr": _HEAD_RATE}], weight_decay=0.0)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Sentences(
            model=model,
            args=transformers.TrainingArguments(
                output_dir=folder, per_device_train_batch_size=physical, lr_scheduler_type="linear",
                warmup_steps=round(_WARM_UP * plan.num_steps), tf32=torch.cuda.is_available() or None,
                remove_unused_columns=False, save_strategy="no", logging_strategy="no", report_to="none",
                disable_tqdm=True, seed=seed,
            ),
            train_dataset=Rows(split.train.features[:records], split.train.labels[:records]),
            optimizers=(optimizer, None),
            private=pv.integrations.PrivateRun(plan=plan, averaging=pv.optim.ExponentialAverage(decay=_AVERAGE)),
        )  # fmt: skip
        trainer.train()
    seconds, last = time.monotonic() - began, accuracy(model, split.test.features, split.test.labels)
    assert trainer.session is not None
    trainer.session.adopt_average()
    return {
        "seed": seed, "accuracy": accuracy(model, split.test.features, split.test.labels), "accuracy_of_last": last,
        "seconds": seconds, "guarantee": str(trainer.guarantee()), "epsilon": trainer.guarantee().epsilon,
        "records": records, "epochs": epochs, "batch_size": batch_size, "physical": physical,
    }  # fmt: skip


@click.command()
@click.option("--seed", default=1, show_default=True, help="Of adapters and dropout; batches and noise are not seeded.")
@click.option("--epochs", default=10, show_default=True)
@click.option("--batch-size", default=4096, show_default=True)
@click.option("--physical", default=512, show_default=True, help="Sentences that go through the model at once.")
@click.option(
    "--records", default=_RECORDS, show_default=True, help="The first so many; fewer only to try the program."
)
@click.option("--json-file", type=click.Path(path_type=Path), required=True)
def main(seed: int, epochs: int, batch_size: int, physical: int, records: int, json_file: Path) -> None:
    """Train with one seed and write what was reached."""
    found = train(seed=seed, epochs=epochs, batch_size=batch_size, physical=physical, records=records)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    record = found | {"environment": environment(device, num_threads=torch.get_num_threads())}
    json_file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    click.echo(f"seed {seed}: {found['accuracy']:.4f} in {found['seconds']:.0f} s, {found['guarantee']}")


if __name__ == "__main__":
    main()
