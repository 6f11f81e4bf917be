"""Files are opened only inside their folder, only when regular, and never beyond their bound."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
from pathlib import Path

import pytest

from privet.datasets.files import check_sha256, locate, open_content, read_all
from privet.errors import DataError


def test_a_file_is_found_plain_or_compressed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_bytes(b"1")
    (tmp_path / "a" / "y.gz").write_bytes(b"2")
    (tmp_path / "a" / "z.xz").write_bytes(b"3")
    assert [locate(tmp_path, f"a/{name}") for name in "xyz"] == [
        (tmp_path / "a" / name).resolve() for name in ("x", "y.gz", "z.xz")
    ]


def test_a_missing_file_is_none(tmp_path: Path) -> None:
    assert locate(tmp_path, "a/x") is None


@pytest.mark.parametrize(
    "relative", ["../secret", "a/../../secret", "/etc/passwd", "", ".", "a\0b", "..\\secret", "C:\\secret", "a/.."]
)
def test_a_path_that_could_leave_the_folder_is_refused(tmp_path: Path, relative: str) -> None:
    with pytest.raises(DataError, match="not a path below"):
        locate(tmp_path, relative)


def test_a_symbolic_link_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "x").symlink_to(tmp_path / "secret")
    with pytest.raises(DataError, match="leads outside"):
        locate(root, "x")


def test_a_linked_folder_that_leaves_the_root_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x").write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="leads outside"):
        locate(root, "a/x")


def test_the_root_itself_may_be_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x").write_bytes(b"1")
    (tmp_path / "root").symlink_to(tmp_path / "real")
    assert locate(tmp_path / "root", "x") == (tmp_path / "real" / "x").resolve()


def test_a_dangling_or_circular_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to(tmp_path / "nowhere")
    (tmp_path / "y").symlink_to(tmp_path / "y")
    for name in "xy":
        with pytest.raises(DataError, match="cannot be followed"):
            locate(tmp_path, name)


def test_a_pipe_is_refused_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        read_all(tmp_path / "pipe")


@pytest.mark.parametrize("path", ["/dev/zero", "/"])
def test_devices_and_folders_are_refused(path: str) -> None:
    with pytest.raises(DataError, match="not a regular file"):
        read_all(path)


@pytest.mark.parametrize("name", ["missing", "nul\0byte"])
def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_all(tmp_path / name)


def test_content_is_the_same_plain_or_compressed(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5_000
    (tmp_path / "x").write_bytes(content)
    (tmp_path / "x.gz").write_bytes(gzip.compress(content))
    (tmp_path / "x.xz").write_bytes(lzma.compress(content))
    assert all(read_all(tmp_path / name) == content for name in ("x", "x.gz", "x.xz"))


def test_content_beyond_the_bound_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(5_000_000)))
    with pytest.raises(DataError, match="more than 1000 bytes"):
        read_all(tmp_path / "bomb.gz", max_bytes=1_000)
    assert len(read_all(tmp_path / "bomb.gz", max_bytes=5_000_000)) == 5_000_000


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_truncated_and_damaged_archives_are_refused(tmp_path: Path, suffix: str) -> None:
    content = os.urandom(1_000)
    packed = gzip.compress(content) if suffix == ".gz" else lzma.compress(content)
    damaged = bytearray(packed)
    damaged[len(damaged) // 2] ^= 0xFF
    for name, data in (("short", packed[:-20]), ("damaged", bytes(damaged)), ("other", b"no archive")):
        (tmp_path / f"{name}{suffix}").write_bytes(data)
        with pytest.raises(DataError, match=f"{name}{suffix} (is damaged|cannot be read)"):
            read_all(tmp_path / f"{name}{suffix}")


def test_an_error_of_the_reader_itself_is_not_disguised(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1")
    with pytest.raises(KeyError), open_content(tmp_path / "x"):
        raise KeyError("mine")


def test_a_wrong_checksum_is_refused_and_does_not_show_the_found_one() -> None:
    right = hashlib.sha256(b"ab").hexdigest()
    check_sha256("x", right, b"a", b"b")
    check_sha256("x", right.upper(), b"ab")
    check_sha256("x", None, b"anything")
    with pytest.raises(DataError, match=f"x is not the expected file.*{right}") as caught:
        check_sha256("x", right, b"ac")
    assert hashlib.sha256(b"ac").hexdigest() not in str(caught.value)
