"""A user's own images: one file decides one record, whatever it holds."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from privet.datasets.own.declared_images import DeclaredImages
from privet.datasets.own.own_images import (
    MAX_FILE_BYTES,
    decode_image,
    folder_classes,
    load_declared_images,
    read_test_images,
)
from privet.errors import ArgumentError, DataError
from privet.vocabulary import Unit

Image = pytest.importorskip("PIL.Image")

GREY = DeclaredImages(classes=("cat", "dog"), height=8, width=8, channels=1)
COLOUR = DeclaredImages(classes=("cat", "dog"), height=6, width=10, channels=3)


def png(level: int, *, size: tuple[int, int] = (8, 8), mode: str = "L") -> bytes:
    stream = io.BytesIO()
    Image.new(mode, size, level if mode == "L" else (level, 0, 255)).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for place, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / f"{number}.png").write_bytes(png(50 * number + 100 * place))
    return tmp_path


def read(folder: Path, declared: DeclaredImages = GREY) -> tuple[np.ndarray, list[int]]:
    info = declared.info("mine", train_size=100, test_size=0)
    split = load_declared_images(declared, info, info.normalisation(), train=folder, test=None)
    assert len(split.test) == 0
    return split.train.features.numpy(), split.train.labels.tolist()


def test_every_image_is_one_record_of_its_folders_class(folder: Path) -> None:
    features, labels = read(folder)
    assert labels == [0, 0, 0, 1, 1, 1]
    assert features.shape == (6, 1, 8, 8)
    assert features[:, 0, 0, 0] == pytest.approx(np.array([0, 50, 100, 100, 150, 200]) / 255)


HOSTILE = {
    "no image": b"this is text",
    "empty": b"",
    "cut off": png(200)[:40],
    "a foreign format": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n",
    "too many bytes": b"\x89PNG\r\n\x1a\n" + bytes(MAX_FILE_BYTES),
    # A header that claims four billion pixels, and nothing behind it.
    "too many pixels": png(1).replace(b"\0\0\0\x08\0\0\0\x08", b"\0\0\xff\xff\0\0\xff\xff", 1),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_training_file_that_is_no_image_becomes_a_black_one_and_changes_no_other(folder: Path, kind: str) -> None:
    before, _ = read(folder)
    (folder / "dog" / "1.png").write_bytes(HOSTILE[kind])
    after, labels = read(folder)
    assert labels == [0, 0, 0, 1, 1, 1]
    assert not after[4].any()
    others = [0, 1, 2, 3, 5]
    assert (after[others] == before[others]).all()


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_test_file_that_is_no_image_is_refused_by_name(folder: Path, kind: str) -> None:
    (folder / "dog" / "1.png").write_bytes(HOSTILE[kind])
    with pytest.raises(DataError, match=r"1\.png is not an image"):
        read_test_images(folder, GREY, GREY.info("mine", train_size=100, test_size=0).normalisation())


def test_links_and_pipes_are_records_that_are_not_followed(folder: Path) -> None:
    (folder / "dog" / "1.png").unlink()
    (folder / "dog" / "1.png").symlink_to(folder / "dog" / "2.png")
    (folder / "dog" / "0.png").unlink()
    os.mkfifo(folder / "dog" / "0.png")
    features, labels = read(folder)
    assert labels == [0, 0, 0, 1, 1, 1]
    assert not features[3:5].any()
    assert features[5].any()


def test_colours_and_sizes_are_brought_to_what_is_declared(tmp_path: Path) -> None:
    path = tmp_path / "one.png"
    path.write_bytes(png(255, size=(33, 7), mode="RGB"))
    found = decode_image(path, COLOUR)
    assert found is not None
    assert found.shape == (3, 6, 10)
    assert found[:, 0, 0].tolist() == [255, 0, 255]


def test_sixteen_bits_of_grey_are_scaled_and_not_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "deep.png"
    Image.fromarray(np.full((8, 8), 32_896, dtype=np.uint16)).save(path)
    found = decode_image(path, GREY)
    assert found is not None
    assert found[0, 0, 0] == 128


def test_classes_are_folders_whatever_they_hold(folder: Path) -> None:
    (folder / "empty").mkdir()
    (folder / ".hidden").mkdir()
    (folder / "notes.txt").write_text("no class")
    assert folder_classes(folder) == ("cat", "dog", "empty")
    with pytest.raises(DataError, match="cannot be read"):
        folder_classes(folder / "absent")


def test_a_declared_class_without_a_folder_is_named(folder: Path) -> None:
    with pytest.raises(DataError, match="'bird'"):
        read(folder, DeclaredImages(classes=("bird", "cat"), height=8, width=8, channels=1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"classes": ("cat",)}, "two classes"),
        ({"classes": ("cat", "cat")}, "named once"),
        ({"classes": ("cat", "../dog")}, "not the name of a sub-folder"),
        ({"height": 0}, "height"),
        ({"width": 5_000}, "at most 1024"),
        ({"channels": 4}, "1 \\(grey\\) or 3"),
    ],
    ids=["one class", "class twice", "way out", "no rows", "too wide", "four channels"],
)
def test_impossible_declarations_are_refused(change: dict[str, object], words: str) -> None:
    given = {"classes": ("cat", "dog"), "height": 8, "width": 8, "channels": 1, **change}
    with pytest.raises(ArgumentError, match=words):
        DeclaredImages(**given)


def test_an_image_is_a_person_only_by_declaration(folder: Path) -> None:
    info = GREY.info("mine", train_size=4, test_size=0)
    for declared, units in (
        (GREY, (Unit.RECORD,)),
        (replace(GREY, one_record_per_person=True), (Unit.RECORD, Unit.PERSON)),
    ):
        split = load_declared_images(declared, info, info.normalisation(), train=folder, test=None)
        assert split.train.one_item.units == split.train.to("cpu").one_item.units == units
        assert split.train.rows(torch.tensor([0])).one_item.units == units
