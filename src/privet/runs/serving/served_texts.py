"""Predict with the exported model beside this file: python predict.py texts.csv > predicted.csv.

Needs Python 3.10, torch and transformers, and nothing else. encoder/ holds the network and its tokenizer, model.json
the column of texts, their length in tokens and the classes. The certificate beside it says what was promised about the
training data; texts that are predicted here are not protected.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

_LARGEST_CELL = 1_000_000
_AT_ONCE = 64


def read_texts(path: str, served: Mapping[str, Any]) -> list[str]:
    """Return the cells of the column of texts."""
    csv.field_size_limit(_LARGEST_CELL)
    try:
        with open(path, encoding="utf-8-sig", newline="") as source:
            reader = csv.reader(source, delimiter=served["delimiter"], skipinitialspace=True)
            header = [unicodedata.normalize("NFC", name.strip()) for name in next(reader, [])]
            if header.count(served["text"]) != 1:
                raise SystemExit(f"The header should name the column {served['text']!r} once.")
            place = header.index(served["text"])
            return [row[place].strip() if place < len(row) else "" for row in reader if row]
    except OSError as error:
        raise SystemExit(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise SystemExit(f"{path} is not UTF-8 text. Save it as UTF-8.") from None
    except csv.Error as error:
        raise SystemExit(f"{path} cannot be read as a table of cells: {error}.") from None


def rows_of(tokenizer: Any, texts: Sequence[str], served: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token numbers and masks of texts, each cut to the length of training by itself."""
    ids = torch.full((len(texts), served["length"]), served["padding"], dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        tokens = tokenizer(text, truncation=True, max_length=served["length"])["input_ids"]
        ids[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
        mask[row, : len(tokens)] = 1
    mask[:, 0] = 1  # an empty text attends to one token of padding, as in training
    return ids, mask


@torch.no_grad()
def outputs_of(folder: Path, texts: Sequence[str], served: Mapping[str, Any]) -> torch.Tensor:
    """Return the outputs of the network."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, local_files_only=True, use_safetensors=True
    ).eval()
    ids, mask = rows_of(tokenizer, texts, served)
    parts = zip(torch.split(ids, _AT_ONCE), torch.split(mask, _AT_ONCE), strict=True)
    return torch.cat([model(input_ids=one, attention_mask=other).logits.double() for one, other in parts])


def main(arguments: Sequence[str]) -> None:
    """Read texts, and write one line for each."""
    if len(arguments) != 1:
        raise SystemExit("Usage: python predict.py texts.csv > predicted.csv")
    folder = Path(__file__).resolve().parent
    served = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    texts, names = read_texts(arguments[0], served), served["targets"][0]["class_names"]
    if not texts:
        raise SystemExit(f"{arguments[0]} has a header and no records.")
    outputs = outputs_of(folder / "encoder", texts, served)
    decided, shares = outputs.argmax(1).tolist(), (outputs / served["temperature"]).softmax(1).tolist()
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["record", "class", *(f"probability of {name}" for name in names)])
    for number, (place, chances) in enumerate(zip(decided, shares, strict=True), start=1):
        writer.writerow([number, names[place], *(f"{each:.6f}" for each in chances)])


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has read enough, as "head" does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
