"""MAT files: arrays come back as another program wrote them, and what is not wanted or not sound is not read."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from privet.datasets.mat import read_mat
from privet.errors import DataError

HEAD = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"


def element(kind: int, data: bytes) -> bytes:
    return struct.pack("<II", kind, len(data)) + data + b"\0" * (-len(data) % 8)


def matrix(name: bytes, shape: tuple[int, ...], kind: int, data: bytes) -> bytes:
    sizes = struct.pack(f"<{len(shape)}i", *shape)
    parts = element(6, struct.pack("<II", 9, 0)) + element(5, sizes) + element(1, name) + element(kind, data)
    return element(14, parts)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "i4", "u4", "i8", "u8", "f4", "f8"])
def test_arrays_of_every_type_come_back_as_they_were_written(tmp_path: Path, dtype: str, packed: bool) -> None:
    values = np.arange(24).reshape(2, 3, 4).astype(dtype)
    savemat(tmp_path / "a.mat", {"values": values}, do_compression=packed)
    found = read_mat(tmp_path / "a.mat", shapes={"values": (2, 3, 4)})["values"]
    assert found.dtype == values.dtype
    assert np.array_equal(found, values)


def test_other_variables_are_passed_over_whatever_they_hold(tmp_path: Path) -> None:
    others = {"text": "house", "cell": np.array([1, "a"], dtype=object), "large": np.zeros((300, 300)), "few": {"a": 1}}
    for packed in (True, False):
        savemat(tmp_path / "a.mat", {**others, "y": np.eye(2)}, do_compression=packed)
        assert np.array_equal(read_mat(tmp_path / "a.mat", shapes={"y": (2, 2)})["y"], np.eye(2))


def test_numbers_that_were_stored_in_fewer_bytes_than_their_class_has_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.mat").write_bytes(HEAD + matrix(b"y", (3, 1), 2, bytes([1, 2, 10])))
    assert read_mat(tmp_path / "a.mat", shapes={"y": (3, 1)})["y"][:, 0].tolist() == [1, 2, 10]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\x0e\0\0", "within a tag"),
        (struct.pack("<II", 14, 80), "within an element"),
        (struct.pack("<II", 0x00090001, 0), "too long"),
        (element(15, b"no zlib"), "cannot be unpacked"),
        (element(15, zlib.compress(b"")), "is empty"),
        (element(15, zlib.compress(struct.pack("<II", 14, 9) + b"\0" * 80)), "another length"),
        (element(14, b""), "no head"),
        (element(14, element(6, b"\0" * 8) * 3), "not one"),
        (matrix(b"y", (3, 1), 2, b"\1\2"), "not what its shape needs"),
        (matrix(b"y", (3, 1), 16, b"\1\2\3"), "no numbers"),
        (matrix(b"y", (1 << 30, 1 << 30), 2, b"\1"), "should hold an array 'y' of the shape 3 x 1"),
        (matrix(b"y", (-1, -3), 2, b"\1\2\3"), "has -1 x -3"),
        (matrix(b"z", (3, 1), 2, b"\1\2\3"), "and has none"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_as_the_file_says_is_refused(tmp_path: Path, body: bytes, reason: str) -> None:
    (tmp_path / "a.mat").write_bytes(HEAD + body)
    with pytest.raises(DataError, match=reason):
        read_mat(tmp_path / "a.mat", shapes={"y": (3, 1)})


def test_a_file_that_unpacks_to_much_more_than_is_wanted_takes_no_memory_for_it(tmp_path: Path) -> None:
    bomb = struct.pack("<II", 14, 1 << 27) + b"\0" * (1 << 27)
    (tmp_path / "a.mat").write_bytes(HEAD + element(15, zlib.compress(bomb, 1)))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="not one"):
            read_mat(tmp_path / "a.mat", shapes={"y": (3, 1)})
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


def test_files_of_the_other_byte_order_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mat").write_bytes(HEAD[:-4] + b"\x01\x00MI")
    with pytest.raises(DataError, match="version 5"):
        read_mat(tmp_path / "a.mat", shapes={"y": (3, 1)})
