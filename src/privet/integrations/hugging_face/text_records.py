"""Private texts as rows of tokens: one record is one line, and every row has the declared length.

Nothing is learned from the records: the tokenizer is the model's, lengths are declared, and the shape of a
batch does not depend on its contents. A record that cannot be read counts as an empty one, whose loss is zero, without
a word about which it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privet.errors import DataError
from privet.integrations.hugging_face.losses import IGNORED
from privet.runs.text_models import padding_of


@dataclass(frozen=True, kw_only=True)
class TextPair:
    """One record: a text, or an answer to a prompt. Only the text and the answer have part in the loss."""

    text: str
    prompt: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenRows:
    """Records as rows of tokens, all of one length.

    Attributes:
        columns: Token numbers, padding mask and labels, one row per record.
    """

    columns: dict[str, Tensor]

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.columns["input_ids"])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return one record."""
        return {name: column[index] for name, column in self.columns.items()}

    def held_tensors(self) -> Iterator[Tensor]:
        """Yield all that it holds."""
        yield from self.columns.values()


_OTHER_FORMATS = (".csv", ".tsv", ".txt", ".parquet", ".arrow", ".xlsx", ".gz", ".zip")


def read_pairs(path: Path) -> list[TextPair]:
    """Read a file of JSON lines with ``text``, or with ``prompt`` and ``answer``; every line is one record.

    Raises:
        DataError: the file's name is that of another format, or it cannot be read as text. Lines that are not such
            objects count as empty records.
    """
    if path.suffix.lower() in _OTHER_FORMATS:  # its lines would all count as empty ones
        raise DataError(
            f"{path} is named as a file of another format than JSON lines. Write one object per line, "
            '{"text": "..."} or {"prompt": "...", "answer": "..."}, into a file named *.jsonl.'
        )
    lines = _text_of(path).splitlines()
    return [_pair(line) for line in lines]


def _pair(line: str) -> TextPair:
    try:
        found = json.loads(line)
        if "text" in found:
            return TextPair(text=str(found["text"]))
        return TextPair(prompt=str(found["prompt"]), text=str(found["answer"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return TextPair(text="")


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise DataError(f"{path} cannot be read: {reason}.") from None


def causal_rows(tokenizer: Any, pairs: Sequence[TextPair], *, length: int) -> TokenRows:
    """Return texts for a model that foretells the next token: cut to the declared length, prompts without labels."""
    ids = torch.full((len(pairs), length), padding_of(tokenizer), dtype=torch.long)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, IGNORED)
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    for row, pair in enumerate(pairs):
        prompt = tokenizer(pair.prompt, add_special_tokens=True)["input_ids"] if pair.prompt else []
        answer = tokenizer(pair.text, add_special_tokens=not pair.prompt)["input_ids"] + end if pair.text else []
        tokens = (prompt + answer)[:length]
        ids[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
        mask[row, : len(tokens)] = 1
        labels[row, len(prompt) : len(tokens)] = ids[row, len(prompt) : len(tokens)]
    # attention over padding alone has no value; an empty text attends to one token of padding
    mask[:, 0] = 1
    return TokenRows(columns={"input_ids": ids, "attention_mask": mask, "labels": labels})
