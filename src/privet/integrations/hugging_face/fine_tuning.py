"""Fine-tuning of a model in a local folder on private texts, without code: adapters, a plan, and the files of a run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from privet import checks
from privet.accounting.guarantee import Guarantee
from privet.errors import DependencyError, UnsupportedModel
from privet.integrations.hugging_face.losses import task_of
from privet.integrations.hugging_face.private_run import PrivateRun
from privet.integrations.hugging_face.text_records import (
    TextPair,
    TokenRows,
    causal_rows,
    labelled_rows,
    read_labelled,
    read_pairs,
)
from privet.plan import Plan

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

    def tokenizer(self) -> Any:
        """Return the model's tokenizer."""
        transformers, _ = libraries()
        return self._from_folder(transformers.AutoTokenizer)

    def causal(self) -> Any:
        """Return a model that foretells the next token, with adapters."""
        transformers, peft = libraries()
        model = self._from_folder(transformers.AutoModelForCausalLM)
        rows = causal_rows(self.tokenizer(), [TextPair(text="a " * self.length)], length=self.length).columns
        last = rows["input_ids"][:, -1:]
        others = torch.where(last > 0, last - 1, last + 1)
        ids = torch.cat([rows["input_ids"], torch.cat([rows["input_ids"][:, :-1], others], 1)])
        logits = self._tried(model, input_ids=ids, attention_mask=torch.ones_like(ids))[:, :-1]
        if not torch.allclose(logits[0], logits[1], rtol=1e-3, atol=1e-4):
            raise UnsupportedModel(
                f"{self.model} holds a model whose tokens see the ones after them, as an encoder's do, so there is "
                "nothing to foretell. Take the folder of a decoder; an encoder classifies: privet train FILE --text ..."
            )
        return self._adapted(model, peft.TaskType.CAUSAL_LM)

    def classifier(self, classes: Sequence[str]) -> Any:
        """Return an encoder with a new head for the declared classes, with adapters."""
        transformers, peft = libraries()
        named = {"num_labels": len(classes), "id2label": dict(enumerate(classes)), "ignore_mismatched_sizes": True}
        model = self._from_folder(transformers.AutoModelForSequenceClassification, **named)
        rows = labelled_rows(self.tokenizer(), ["a " * self.length], [0], length=self.length).columns
        self._tried(model, **{name: column for name, column in rows.items() if name != "labels"})
        return self._adapted(model, peft.TaskType.SEQ_CLS)

    def _tried(self, model: Any, **batch: Tensor) -> Tensor:
        """Return the logits of made-up texts of the declared length, or say that the model cannot take them."""
        try:
            with torch.no_grad():
                return cast(Tensor, model.eval()(**batch)["logits"])
        except (IndexError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UnsupportedModel(
                f"{self.model} cannot take texts of {self.length} tokens ({reason}). Declare fewer with --length."
            ) from error

    def _from_folder(self, kind: Any, **named: Any) -> Any:
        given: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False, **named}
        if "Model" in kind.__name__:
            given |= {"use_safetensors": True, "dtype": torch.float32}
        try:
            return kind.from_pretrained(str(self.model), **given)
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise UnsupportedModel(
                f"{self.model} is not the folder of a model with tokenizer and weights in safetensors: {reason}"
            ) from error

    def _adapted(self, model: Any, task: Any) -> Any:
        _, peft = libraries()
        task_of(model)  # refuses a model whose loss is not known, before anything is charged
        chosen = peft.LoraConfig(task_type=task, r=self.rank, lora_alpha=2 * self.rank, target_modules="all-linear")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="fan_in_fan_out")  # GPT-2 keeps weights the other way round
            return peft.get_peft_model(model, chosen)

    def train(self, model: Any, rows: TokenRows, plan: Plan, folder: Path, *, quiet: bool = True) -> Guarantee:
        """Train the adapters as the plan says, or go on with the run in the folder; save them in PEFT's format."""
        transformers, _ = libraries()
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
            private=PrivateRun(plan=plan, seed=self.seed),
        )
        trainer.remove_callback(transformers.PrinterCallback)  # it would tell how long training took
        trainer.train(resume_from_checkpoint=(folder / "privet" / "ledger.jsonl").exists())
        guarantee = trainer.guarantee()
        trainer.model.save_pretrained(folder / ADAPTER_FOLDER)
        (folder / ADAPTER_FOLDER / "guarantee.txt").write_text(f"{guarantee}\n", encoding="utf-8")
        return guarantee


def libraries() -> tuple[Any, Any]:
    """Return transformers and peft.

    Raises:
        DependencyError: one of them is not installed.
    """
    try:
        import accelerate  # noqa: F401 (its absence would be told in the middle of a run)
        import peft
        import transformers
    except ImportError as missing:
        raise DependencyError(
            f"Fine-tuning needs {missing.name}, which is not installed. Install it with: pip install 'privet[peft]'."
        ) from missing
    return transformers, peft


def plan_for(*, size: int, epsilon: float, delta: float, batch_size: int | None, epochs: int) -> Plan:
    """Return a plan for a declared number of records; a tenth of them is in a batch, unless a number is given."""
    return Plan.dpsgd(
        dataset_size=size, batch_size=batch_size or max(1, size // 10), epochs=epochs, epsilon=epsilon, delta=delta
    )


def pairs_of(job: FineTuning, path: Path) -> TokenRows:
    """Return the records of a file of JSON lines."""
    return causal_rows(job.tokenizer(), read_pairs(path), length=job.length)


def labelled_of(job: FineTuning, path: Path, *, text: str, target: str, classes: Sequence[str]) -> TokenRows:
    """Return the records of a CSV file."""
    texts, labels = read_labelled(path, text=text, target=target, classes=classes)
    return labelled_rows(job.tokenizer(), texts, labels, length=job.length)


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


def accuracy(model: Any, rows: TokenRows, *, at_once: int = 64) -> float:
    """Return the share of texts whose class is found; texts without a declared class count as errors."""
    right = 0
    model.eval()
    with torch.no_grad():
        for start in range(0, len(rows), at_once):
            part = {name: column[start : start + at_once].to(model.device) for name, column in rows.columns.items()}
            labels = part.pop("labels")
            right += int((model(**part)["logits"].argmax(1) == labels).sum())
    return right / max(1, len(rows))


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
