"""Data files travel in pieces: they come out as they went in, or not at all."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from scripts import data_pieces
from scripts.data_pieces import MANIFEST, PiecesError, main, pack, unpack


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "batches").mkdir(parents=True)
    rng = np.random.default_rng(0)
    batch = np.hstack([rng.integers(0, 10, (4, 1)), rng.integers(0, 256, (4, 3072))]).astype(np.uint8)
    (folder / "batches" / "one.bin").write_bytes(batch.tobytes())
    (folder / "batches" / "words.txt").write_text("word " * 1000)
    (folder / "packed.gz").write_bytes(gzip.compress(rng.bytes(5000)))
    (folder / "noise.bin").write_bytes(rng.bytes(5000))
    (folder / "empty").write_bytes(b"")
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_files_come_out_as_they_went_in_from_pieces_in_any_folders(root: Path, tmp_path: Path) -> None:
    manifest, *pieces = pack([root], root, tmp_path / "pieces", limit=3000)
    assert len(pieces) > 3
    assert all(path.stat().st_size <= 3000 for path in pieces)
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, own in ((first, pieces[:2]), (second, pieces[2:])):
        folder.mkdir()
        for path in (manifest, *own):
            (folder / path.name).write_bytes(path.read_bytes())
    complete, missing = unpack([first], tmp_path / "out")
    assert missing
    assert set(complete) == set(files(tmp_path / "out")) < set(files(root))
    complete, missing = unpack([second, first], tmp_path / "out")
    assert not missing
    assert files(tmp_path / "out") == files(root)


def test_pictures_are_used_where_they_can_be_read_and_otherwise_something_else(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encodings(folder: Path) -> dict[str, str]:
        pack([root], root, folder, limit=10_000)
        return {one["name"]: one["encoding"] for one in json.loads((folder / MANIFEST).read_text())["files"]}

    pytest.importorskip("PIL")
    found = encodings(tmp_path / "with")
    assert found == {
        "batches/one.bin": "cifar10-webp",
        "batches/words.txt": "xz",
        "packed.gz": "stored",
        "noise.bin": "stored",
        "empty": "stored",
    }
    monkeypatch.setattr(data_pieces, "_picture", lambda content: None)
    assert "cifar10-webp" not in encodings(tmp_path / "without").values()


def test_a_damaged_piece_is_refused_and_nothing_of_it_is_written(root: Path, tmp_path: Path) -> None:
    _, piece = pack([root / "noise.bin"], root, tmp_path / "pieces", limit=10_000)
    content = bytearray(piece.read_bytes())
    content[17] ^= 1
    piece.write_bytes(content)
    with pytest.raises(PiecesError, match="damaged"):
        unpack([tmp_path / "pieces"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside", "..\\outside"])
def test_a_name_that_leads_out_of_the_folder_is_refused(root: Path, tmp_path: Path, name: str) -> None:
    manifest, _ = pack([root / "noise.bin"], root, tmp_path / "pieces", limit=10_000)
    values = json.loads(manifest.read_text())
    values["files"][0]["name"] = name
    manifest.write_text(json.dumps(values))
    with pytest.raises(PiecesError, match="leads out"):
        unpack([tmp_path / "pieces"], tmp_path / "out")


def test_sources_outside_the_root_and_manifests_of_two_packings_are_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("x")
    with pytest.raises(PiecesError, match="does not lie below"):
        pack([tmp_path / "other"], root, tmp_path / "pieces", limit=10)
    pack([root / "noise.bin"], root, tmp_path / "one", limit=10_000)
    pack([root / "packed.gz"], root, tmp_path / "two", limit=10_000)
    with pytest.raises(PiecesError, match="2 different"):
        unpack([tmp_path / "one", tmp_path / "two"], tmp_path / "out")


def test_the_command_says_what_is_missing(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pieces, out = str(tmp_path / "pieces"), str(tmp_path / "out")
    assert main(["pack", str(root), "--root", str(root), "-o", pieces, "--limit", "0.004"]) == 0
    (tmp_path / "pieces" / "piece-001.bin").unlink()
    assert main(["unpack", pieces, "-o", out]) == 1
    assert "missing: " in capsys.readouterr().out
    assert main(["unpack", out, "-o", out]) == 2
    assert "manifest" in capsys.readouterr().err
