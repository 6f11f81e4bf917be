"""An encoder of texts as files that transformers reads, and the program that serves it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from torch import nn

from privet.runs.recipes.recipe import Recipe
from privet.runs.recipes.text_settings import EncoderSettings, TextSettings
from privet.runs.run_files import write_json, write_whole
from privet.runs.serving import served_texts
from privet.runs.serving.written import FORMAT, Written
from privet.runs.text_models import TextClassifier, encoder_tokenizer, padding_of, saved_merged


@dataclass(frozen=True, kw_only=True)
class ServedTexts:
    """The encoder of a run on texts.

    Attributes:
        texts: The declaration of the texts.
        encoder: The encoder with its tokenizer.
        recipe: The recipe of the run.
    """

    texts: TextSettings
    encoder: EncoderSettings
    recipe: Recipe

    def write(self, target: Path, model: nn.Module, *, temperature: float) -> Written:
        """Write the encoder with its adapters merged, its tokenizer, and the program that reads texts for it."""
        tokenizer = encoder_tokenizer(self.encoder, self.recipe.info)
        target.mkdir(parents=True, exist_ok=True)
        saved_merged(cast(TextClassifier, model), tokenizer, target / "encoder")
        write_json(
            target / "model.json",
            {
                "format": FORMAT,
                "title": self.recipe.title,
                "model": self.recipe.model_title,
                "text": self.texts.text,
                "delimiter": self.texts.delimiter,
                "length": self.texts.length,
                "padding": padding_of(tokenizer),
                "targets": self.recipe.info.task.served(),
                "temperature": temperature,
            },
        )
        write_whole(target / "predict.py", inspect.getsource(served_texts))
        return Written(needs=("torch", "transformers"))
