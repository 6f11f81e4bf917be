"""The Stanford Sentiment Treebank in its two-class form (SST-2, as distributed with GLUE): sentences and labels.

Socher et al. (2013), "Recursive deep models for semantic compositionality over a sentiment treebank"; Wang et al.
(2018), "GLUE". The training part contains phrases of the sentences too; a line is a record.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from privet.datasets.data_folder import DataFile, DataFolder
from privet.datasets.files import check_sha256, read_all
from privet.errors import DataError

TRAIN_SIZE, DEV_SIZE = 67_349, 872
_SOURCE = "R. Socher et al. (2013); https://gluebenchmark.com/tasks (SST-2)"
SST2_FILES = (
    DataFile(
        folder="SST-2",
        name="train.tsv",
        sha256="48eac26399f8456935f81dd9e3a745c1430adb6c62e233ccfe22db4a0d15d1d1",
        published_md5=None,
    ),
    DataFile(
        folder="SST-2",
        name="dev.tsv",
        sha256="54a9c12c77e402fc14d6a66a506f24d999f596b0176eb777c972cccc2f9cc4b0",
        published_md5=None,
    ),
)


@dataclass(frozen=True, kw_only=True)
class LabelledSentences:
    """Sentences and their classes: 0 is negative, 1 is positive."""

    sentences: tuple[str, ...]
    labels: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.labels)


def load_sst2(
    *, root: str | os.PathLike[str] | None = None, verify_checksums: bool = True
) -> tuple[LabelledSentences, LabelledSentences]:
    """Read the training and the development part; the labels of the official test part are not public.

    Args:
        root: folder with ``SST-2/train.tsv`` and ``SST-2/dev.tsv``; None for that of the environment variable
            PRIVET_DATA.
        verify_checksums: refuse files that differ from the published ones.

    Raises:
        DataError: no data folder, a missing file, or a damaged or different file.
    """
    folder = DataFolder.chosen(root, verify_checksums=verify_checksums)
    train, dev = (_read(folder, file) for file in SST2_FILES)
    return train, dev


def _read(folder: DataFolder, file: DataFile) -> LabelledSentences:
    path = folder.find(file, dataset="sst2", source=_SOURCE)
    content = read_all(path)
    check_sha256(path, folder.sha256(file), content)
    try:
        header, *lines = content.decode("utf-8").split("\n")
        cells = [line.split("\t") for line in lines if line]
        if header.split("\t") != ["sentence", "label"] or not all(
            row[1] in ("0", "1") and len(row) == 2 for row in cells
        ):
            raise ValueError
    except (ValueError, IndexError):
        # The message does not contain the line, which may be private text.
        raise DataError(
            f"{path} is not SST-2: it must be UTF-8, begin with the line 'sentence<tab>label', and hold one sentence "
            "and 0 or 1 per line."
        ) from None
    return LabelledSentences(sentences=tuple(row[0] for row in cells), labels=tuple(int(row[1]) for row in cells))
