"""A user's own texts with classes, in two columns of a table, as rows of tokens of one declared length.

Nothing is learned from the records: the tokenizer is that of a public encoder, length and classes are declared, and the
shape of a batch does not depend on its contents. No training record can raise an error. Test records are read strictly,
because a silently replaced label would make the measures wrong.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from privet.datasets.arrays import ArrayDataset, Split
from privet.datasets.csv_records import CsvFormat
from privet.datasets.info import DatasetInfo
from privet.datasets.own.declared_texts import DeclaredTexts
from privet.datasets.tables import words_of
from privet.datasets.typed_tables import TableText, table_text
from privet.errors import DataError

# Token numbers and padding masks of texts: [text, 2, length].
Tokens = Callable[[Sequence[str]], Tensor]


def load_declared_texts(
    declared: DeclaredTexts,
    info: DatasetInfo,
    tokens: Tokens,
    *,
    train: str | os.PathLike[str],
    test: str | os.PathLike[str] | None,
) -> Split:
    """Read both parts of a declared table of texts; without a test file the second part is empty.

    Guarantee: one record of the training file determines one training record and nothing else: a missing text is an
    empty one, and a label that is no class counts as the first class, without a word. Test records are not protected,
    and one without a declared class is refused.

    Raises:
        DataError: a file cannot be read or lacks a declared column, or a test record has no declared class.
    """
    measured = None if test is None else read_test_texts(test, declared, tokens)
    table = table_text(train, delimiter=declared.delimiter)
    labels = [declared.label.value(word) for word in _words(table, declared, declared.target)]
    persons = declared.ownership.names(table, CsvFormat(delimiter=declared.delimiter))
    learned = ArrayDataset(
        features=tokens(_words(table, declared, declared.text)),
        labels=torch.tensor(labels, dtype=torch.int64),
        one_item=declared.ownership.one_record(persons),
        persons=persons,
    )
    nothing = ArrayDataset(features=learned.features[:0], labels=learned.labels[:0])
    return Split(train=learned, test=nothing if measured is None else measured, info=info)


def read_test_texts(path: str | os.PathLike[str], declared: DeclaredTexts, tokens: Tokens) -> ArrayDataset:
    """Read a table of texts as test data.

    Raises:
        DataError: there are no records, or one has no declared class; the message names its number, never its words.
    """
    table = table_text(path, delimiter=declared.delimiter)
    codes = [declared.label.code(word) for word in _words(table, declared, declared.target)]
    if not codes:
        raise DataError(f"{table.name} has a header and no records. Add records.")
    if None in codes:
        raise DataError(
            f"{codes.count(None)} label(s) in {table.name}, the first in record {codes.index(None) + 1}, are none of "
            f"the declared classes: {', '.join(map(repr, declared.classes))}. Correct them, or remove these records."
        )
    labels = torch.from_numpy(np.array(codes, dtype=np.int64))
    return ArrayDataset(features=tokens(_words(table, declared, declared.text)), labels=labels)


def read_new_texts(path: str | os.PathLike[str], declared: DeclaredTexts, tokens: Tokens) -> Tensor:
    """Read the texts of a table for predictions; a column of classes is optional.

    Raises:
        DataError: the file cannot be read, lacks the column of texts, or has no records.
    """
    table = table_text(path, delimiter=declared.delimiter)
    words = _words(table, declared, declared.text)
    if not words:
        raise DataError(f"{table.name} has a header and no records. Add records.")
    return tokens(words)


def _words(table: TableText, declared: DeclaredTexts, name: str) -> list[str]:
    return words_of(table, CsvFormat(delimiter=declared.delimiter), name)
