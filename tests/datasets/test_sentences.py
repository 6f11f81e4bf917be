from __future__ import annotations

from pathlib import Path

import pytest

from privet.datasets.sentences import DEV_SIZE, TRAIN_SIZE, load_sst2
from privet.errors import DataError


def written(root: Path, content: bytes) -> Path:
    folder = root / "SST-2"
    folder.mkdir()
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_bytes(content)
    return root


@pytest.mark.data
def test_the_published_files_hold_as_many_sentences_as_declared() -> None:
    train, dev = load_sst2()
    assert (len(train), len(dev)) == (TRAIN_SIZE, DEV_SIZE)
    assert sum(dev.labels) == 444
    assert dev.sentences[0] == "it 's a charming and often affecting journey . "


def test_sentences_and_labels_are_read_in_order(tmp_path: Path) -> None:
    root = written(tmp_path, "sentence\tlabel\nna\u00efve \t0\nfine \t1\n".encode())
    train, dev = load_sst2(root=root, verify_checksums=False)
    assert (train.sentences, train.labels) == (("na\u00efve ", "fine "), (0, 1))
    assert train == dev


def test_changed_files_are_refused_unless_that_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        load_sst2(root=written(tmp_path, b"sentence\tlabel\nfine \t1\n"))


@pytest.mark.parametrize(
    "content",
    [b"", b"label\tsentence\n1\tsecret\n", b"sentence\tlabel\nsecret\n", b"sentence\tlabel\nsecret\t2\n",
     b"sentence\tlabel\nsecret\t1\t1\n", b"sentence\tlabel\nsecret\xff\t1\n"],
    ids=["empty", "header", "no-label", "third-class", "surplus-cell", "no-text"],
)  # fmt: skip
def test_what_is_not_sst2_is_refused_without_quoting_it(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match="is not SST-2") as caught:
        load_sst2(root=written(tmp_path, content), verify_checksums=False)
    assert "secret" not in str(caught.value)
