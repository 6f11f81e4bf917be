"""Fine-tuning of a model in a local folder on private texts, without code: adapters, a plan, and the files of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from privet import checks
from privet.accounting.guarantee import Guarantee
from privet.errors import LedgerError, UnsupportedModel
from privet.integrations.hugging_face.losses import task_of
from privet.integrations.hugging_face.private_run import PrivateRun
from privet.integrations.hugging_face.text_records import (
    TextPair,
    TokenRows,
    causal_rows,
    read_pairs,
)
from privet.plan import Plan
from privet.runs.run_files import RunFiles
from privet.runs.text_models import LocalModel, libraries, with_adapters

ADAPTER_FOLDER = "model"


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """How a model in a folder is tuned.

    Attributes:
        model: The folder of a model of transformers, with its tokenizer. Nothing is downloaded, and no code in it runs.
        length: The declared number of tokens of every record; longer ones are cut.
        rank: The rank of the adapters (LoRA), at every linear layer.
        learning_rate: Of AdamW.
        physical_batch_size: How many records go through the model at once.
        seed: Makes the run repeatable and NOT PRIVATE; for tests.
    """

    model: Path
    length: int = 128
    rank: int = 8
    learning_rate: float = 1e-3
    physical_batch_size: int = 8
    seed: int | None = None

    def __post_init__(self) -> None:
        """Refuse sizes below one."""
        checks.fields(self, checks.count, "length", "rank", "physical_batch_size")
        checks.fields(self, checks.positive, "learning_rate")

    @property
    def _local(self) -> LocalModel:
        return LocalModel(folder=self.model, length=self.length)

    def tokenizer(self) -> Any:
        """Return the model's tokenizer."""
        return self._local.tokenizer()

    def causal(self) -> Any:
        """Return a model that foretells the next token, with adapters."""
        model = self._local.model("AutoModelForCausalLM")
        rows = causal_rows(self.tokenizer(), [TextPair(text="a " * self.length)], length=self.length).columns
        last = rows["input_ids"][:, -1:]
        others = torch.where(last > 0, last - 1, last + 1)
        ids = torch.cat([rows["input_ids"], torch.cat([rows["input_ids"][:, :-1], others], 1)])
        logits = self._local.tried(model, input_ids=ids, attention_mask=torch.ones_like(ids))[:, :-1]
        if not torch.allclose(logits[0], logits[1], rtol=1e-3, atol=1e-4):
            raise UnsupportedModel(
                f"{self.model} holds a model whose tokens see the ones after them, as an encoder's do, so there is "
                "nothing to foretell. Take the folder of a decoder; an encoder classifies: privet train FILE --text ..."
            )
        task_of(model)  # refuses a model whose loss is not known, before anything is charged
        return with_adapters(model, "CAUSAL_LM", rank=self.rank)

    def train(self, model: Any, rows: TokenRows, plan: Plan, folder: Path, *, quiet: bool = True) -> Guarantee:
        """Train the adapters as the plan says, or go on with the run in the folder; save them in PEFT's format.

        Raises:
            LedgerError: the folder holds a run whose ledger is elsewhere, as an earlier version of privet wrote it.
        """
        transformers, _ = libraries()
        former, files = folder / "privet", RunFiles(folder=folder)
        if (former / "ledger.jsonl").exists():  # a second ledger would count what was spent before as nothing
            raise LedgerError(
                f"{folder} holds a run of an earlier version of privet, whose ledger is in {former}. Move the files of "
                f"{former} into {folder} to go on with it, or name another folder for another run."
            )
        from privet.integrations.hugging_face.trainer import PrivateTrainer

        trainer = PrivateTrainer(
            model=model,
            args=transformers.TrainingArguments(
                output_dir=str(folder),
                per_device_train_batch_size=self.physical_batch_size,
                learning_rate=self.learning_rate,
                save_strategy="steps",
                save_steps=max(1, plan.num_steps // 10),
                save_total_limit=2,
                logging_strategy="no",
                report_to="none",
                disable_tqdm=quiet,
            ),
            train_dataset=rows,
            private=PrivateRun(plan=plan, seed=self.seed, folder=folder),
        )
        trainer.remove_callback(transformers.PrinterCallback)  # it would tell how long training took
        trainer.train(resume_from_checkpoint=files.ledger.exists())
        guarantee = trainer.guarantee()
        trainer.model.save_pretrained(folder / ADAPTER_FOLDER)
        (folder / ADAPTER_FOLDER / "guarantee.txt").write_text(f"{guarantee}\n", encoding="utf-8")
        return guarantee


def plan_for(*, size: int, epsilon: float, delta: float, batch_size: int | None, epochs: int) -> Plan:
    """Return a plan for a declared number of records; a tenth of them is in a batch, unless a number is given."""
    return Plan.dpsgd(
        dataset_size=size, batch_size=batch_size or max(1, size // 10), epochs=epochs, epsilon=epsilon, delta=delta
    )


def pairs_of(job: FineTuning, path: Path) -> TokenRows:
    """Return the records of a file of JSON lines."""
    return causal_rows(job.tokenizer(), read_pairs(path), length=job.length)


def perplexity(model: Any, rows: TokenRows, *, at_once: int = 16) -> float:
    """Return the perplexity of public texts: over all of their tokens, with each as likely as the model says."""
    from privet.integrations.hugging_face.losses import token_losses

    total, count = 0.0, 0
    model.eval()
    with torch.no_grad():
        for start in range(0, len(rows), at_once):
            part = {name: column[start : start + at_once].to(model.device) for name, column in rows.columns.items()}
            labels = part.pop("labels")[:, 1:]
            counted = (labels != -100).sum(1)
            total += float((token_losses(model(**part)["logits"][:, :-1], labels) * counted).sum())
            count += int(counted.sum())
    return math.exp(total / max(1, count))


def samples(model: Any, tokenizer: Any, *, prompt: str, number: int, length: int) -> list[str]:
    """Return texts drawn from a tuned model; what a private model says is covered by its guarantee."""
    rows = causal_rows(tokenizer, [TextPair(prompt=prompt or " ", text="")], length=length)
    size = max(1, int(rows.columns["attention_mask"].sum()))
    start = rows.columns["input_ids"][:, :size].to(model.device)
    model.eval()
    with torch.no_grad():
        drawn = model.generate(
            input_ids=start.repeat(number, 1),
            attention_mask=torch.ones_like(start).repeat(number, 1),
            do_sample=True,
            max_new_tokens=max(1, length - size),
            pad_token_id=int(rows.columns["input_ids"][0, -1]),
        )
    return [str(text) for text in tokenizer.batch_decode(drawn, skip_special_tokens=True)]
