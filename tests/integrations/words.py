"""A tokenizer of a few words, and folders of tiny models, made on the spot."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = re.findall("[a-z]+", "the a cat dog sat ran on mat red blue big small it was is good bad very not")


def tokenizer() -> Any:
    numbers = {word: place for place, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", *WORDS])}
    words = Tokenizer(models.WordLevel(numbers, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def sentences(size: int, *, seed: int) -> list[str]:
    draw = torch.Generator().manual_seed(seed)
    return [
        " ".join(WORDS[int(place)] for place in torch.randint(len(WORDS), (3 + number % 4,), generator=draw))
        for number in range(size)
    ]


def saved(model: Any, folder: Path) -> Path:
    """Save a model and the tokenizer as transformers does."""
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
