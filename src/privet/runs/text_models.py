"""Models of transformers in a local folder, with adapters: nothing is downloaded, and no code in the folder runs."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from privet.datasets.info import DatasetInfo
from privet.datasets.own.own_texts import Tokens
from privet.errors import DependencyError, RecipeError, UnsupportedModel
from privet.runs.recipes.text_settings import EncoderSettings

# Files that decide what a model says, and how it reads.
_READ = (".json", ".txt", ".model", ".safetensors")
_PIECE = 2**24


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
            f"Training on texts needs {missing.name}, which is not installed. Install it with: "
            "pip install 'privet[peft]'."
        ) from missing
    return transformers, peft


def fingerprint(folder: Path) -> str:
    """Return the SHA-256 of the files of a model: their names, sizes and contents.

    Raises:
        UnsupportedModel: the folder cannot be read, or holds no such file.
    """
    whole = hashlib.sha256()
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix in _READ and path.is_file())
        for path in files:
            whole.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as source:
                while piece := source.read(_PIECE):
                    whole.update(piece)
    except OSError as error:
        raise UnsupportedModel(f"The folder of the model {folder} cannot be read: {error.strerror}.") from None
    if not files:
        raise UnsupportedModel(
            f"{folder} is not the folder of a model with tokenizer and weights in safetensors: it holds no such file."
        )
    return whole.hexdigest()


@dataclass(frozen=True, kw_only=True)
class LocalModel:
    """A model of transformers in a folder, with its tokenizer.

    Attributes:
        folder: The folder, as ``save_pretrained`` writes it.
        length: The declared number of tokens of every record.
    """

    folder: Path
    length: int

    def model(self, kind: str, *, has_new_head: bool = False, **named: Any) -> Any:
        """Return the folder's model, and warn of weights that it lacks, but for those of a new head.

        Raises:
            UnsupportedModel: the folder does not hold it.
        """
        model, found = self.loaded(kind, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **named)
        body = f"{model.base_model_prefix}." if has_new_head else ""
        absent = sorted(name for name in found["missing_keys"] if name.startswith(body))
        if absent:
            warnings.warn(
                f"{self.folder} holds no weights for {', '.join(absent)}: training begins with random ones.",
                stacklevel=2,
            )
        return model

    def loaded(self, kind: str, **named: Any) -> Any:
        """Return what an auto class of transformers makes of the folder.

        Raises:
            UnsupportedModel: the folder does not hold it.
        """
        transformers, _ = libraries()
        given: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False, **named}
        try:
            with _quietly(transformers):
                return getattr(transformers, kind).from_pretrained(str(self.folder), **given)
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise UnsupportedModel(
                f"{self.folder} is not the folder of a model with tokenizer and weights in safetensors: {reason}"
            ) from error

    def tokenizer(self) -> Any:
        """Return the model's tokenizer."""
        return self.loaded("AutoTokenizer")

    def tried(self, model: Any, **batch: Tensor) -> Tensor:
        """Return the logits of made-up texts of the declared length.

        Raises:
            UnsupportedModel: the model cannot take them.
        """
        try:
            with torch.no_grad():
                return cast(Tensor, model.eval()(**batch)["logits"])
        except (IndexError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UnsupportedModel(
                f"{self.folder} cannot take texts of {self.length} tokens ({reason}). Declare fewer with --length."
            ) from error


def with_adapters(model: Any, task: str, *, rank: int) -> Any:
    """Return a model with adapters at every linear layer, which alone are trained, beside a new head."""
    _, peft = libraries()
    kind = getattr(peft.TaskType, task)
    chosen = peft.LoraConfig(task_type=kind, r=rank, lora_alpha=2 * rank, target_modules="all-linear")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="fan_in_fan_out")  # GPT-2 keeps weights the other way round
        warnings.filterwarnings("ignore", category=FutureWarning)  # PEFT uses a former name of transformers
        return peft.get_peft_model(model, chosen)


@contextmanager
def _quietly(transformers: Any) -> Iterator[None]:
    """Keep bars and reports of transformers off the terminal: a new head is no fault, and errors are raised."""
    told = transformers.utils.logging
    was_shown, verbosity = told.is_progress_bar_enabled(), told.get_verbosity()
    told.disable_progress_bar()
    told.set_verbosity_error()
    try:
        yield
    finally:
        told.set_verbosity(verbosity)
        if was_shown:
            told.enable_progress_bar()


def padding_of(tokenizer: Any) -> int:
    """Return the number of the token that fills rows."""
    number = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return 0 if number is None else int(number)


class TextClassifier(nn.Module):
    """An encoder with a head, of rows of tokens and masks."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, rows: Tensor) -> Tensor:
        """Return one output per class.

        Args:
            rows: Token numbers and padding masks, ``[text, 2, length]``.
        """
        logits: Tensor = self.encoder(input_ids=rows[:, 0], attention_mask=rows[:, 1])["logits"]
        return logits


def own_encoder(settings: EncoderSettings, info: DatasetInfo) -> TextClassifier:
    """Return the encoder of a recipe with adapters and a new head for the declared classes.

    Guarantee: the weights are those whose fingerprint the recipe holds. No code of the folder runs, and no record is
    read.

    Raises:
        RecipeError: the folder holds other files than those of the recipe.
        UnsupportedModel: it holds no such model, or one that cannot take texts of the declared length.
    """
    local = _checked(settings, info.input_shape[-1])
    names = dict(enumerate(info.class_names))
    named = {"num_labels": len(names), "id2label": names, "ignore_mismatched_sizes": True}
    model = local.model("AutoModelForSequenceClassification", has_new_head=True, **named)
    made_up = _rows(local.tokenizer(), ["a " * local.length], length=local.length)
    local.tried(model, input_ids=made_up[:, 0], attention_mask=made_up[:, 1])
    return TextClassifier(with_adapters(model, "SEQ_CLS", rank=settings.adapter_rank))


def tokens_of(settings: EncoderSettings, info: DatasetInfo) -> Tokens:
    """Return the function from texts to rows of tokens, by the encoder's own tokenizer."""
    local = _checked(settings, info.input_shape[-1])
    tokenizer = local.tokenizer()
    return lambda texts: _rows(tokenizer, texts, length=local.length)


def encoder_tokenizer(settings: EncoderSettings, info: DatasetInfo) -> Any:
    """Return the encoder's tokenizer."""
    return _checked(settings, info.input_shape[-1]).tokenizer()


def saved_merged(model: TextClassifier, tokenizer: Any, folder: Path) -> None:
    """Write a trained encoder with its adapters merged, and its tokenizer, as transformers reads them.

    Guarantee: a function of the released weights and of public files; no path of this machine is written.
    """
    transformers, _ = libraries()
    merged = cast(Any, model.encoder).merge_and_unload()
    merged.name_or_path = merged.config.name_or_path = ""
    tokenizer.name_or_path = ""
    with _quietly(transformers):
        merged.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _checked(settings: EncoderSettings, length: int) -> LocalModel:
    folder = Path(settings.folder)
    found = fingerprint(folder)
    if found != settings.sha256:
        raise RecipeError(
            f"{folder} does not hold the encoder that the recipe names: the SHA-256 of its files begins with "
            f"{found[:16]}, and the recipe's with {settings.sha256[:16]}. A run belongs to one encoder. Restore the "
            "folder, or begin a new run."
        )
    return LocalModel(folder=folder, length=length)


def _rows(tokenizer: Any, texts: Sequence[str], *, length: int) -> Tensor:
    """Return token numbers and masks of texts, each cut to the declared length by itself."""
    rows = torch.zeros((len(texts), 2, length), dtype=torch.long)
    rows[:, 0] = padding_of(tokenizer)
    for row, text in zip(rows, texts, strict=True):
        tokens = tokenizer(text, truncation=True, max_length=length)["input_ids"]
        row[0, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
        row[1, : len(tokens)] = 1
    rows[:, 1, 0] = 1  # attention over padding alone has no value; an empty text attends to one token of padding
    return rows
