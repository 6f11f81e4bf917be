"""House numbers from MAT files: what was stored comes back, and anything else is refused."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.io import savemat

from privet.datasets import describe, load
from privet.datasets.data_folder import DataFolder
from privet.datasets.svhn import SVHN_FILES, load_svhn, read_svhn_mat
from privet.errors import DataError

SIZES = (12, 5)


def arrays(number: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (32, 32, 3, number), dtype=np.uint8)
    return images, (np.arange(number, dtype=np.uint8) % 10 + 1)[:, None]


def write(path: Path, number: int, *, compressed: bool = True, **changes: object) -> Path:
    images, classes = arrays(number)
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"X": images, "y": classes} | changes, do_compression=compressed)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for file, number in zip(SVHN_FILES, SIZES, strict=True):
        write(tmp_path / file.folder / file.name, number)
    return tmp_path


@pytest.mark.parametrize("compressed", [True, False], ids=["compressed", "plain"])
def test_images_come_back_with_records_first_and_the_class_ten_is_the_digit_zero(
    tmp_path: Path, compressed: bool
) -> None:
    images, classes = arrays(12)
    pixels, digits = read_svhn_mat(write(tmp_path / "a.mat", 12, compressed=compressed), num_records=12)
    assert pixels.shape == (12, 3, 32, 32)
    assert np.array_equal(pixels[7, 2, 5, 9], images[5, 9, 2, 7])
    assert digits.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    assert [int(each) % 10 for each in classes[:, 0]] == digits.tolist()


def test_a_packed_file_with_the_right_checksum_is_read_and_with_another_refused(tmp_path: Path) -> None:
    content = write(tmp_path / "a.mat", 3).read_bytes()
    packed = tmp_path / "b.mat.gz"
    packed.write_bytes(gzip.compress(content))
    read_svhn_mat(packed, num_records=3, sha256=hashlib.sha256(content).hexdigest())
    with pytest.raises(DataError, match="not the expected file"):
        read_svhn_mat(packed, num_records=3, sha256="0" * 64)


def test_both_parts_are_loaded_as_features_and_digits(root: Path) -> None:
    info = replace(describe("svhn"), train_size=SIZES[0], test_size=SIZES[1])
    split = load_svhn(info, info.normalisation("standardized"), DataFolder(root=root, verify_checksums=False))
    assert split.train.features.shape == (12, 3, 32, 32)
    assert split.test.features.shape == (5, 3, 32, 32)
    assert split.train.labels.dtype == torch.int64
    pixel = float(arrays(12)[0][0, 0, 1, 4]) / 255
    assert float(split.train.features[4, 1, 0, 0]) == pytest.approx((pixel - 0.4438) / 0.2010, abs=1e-5)


def test_files_that_are_not_the_published_ones_are_refused_unless_the_check_is_off(root: Path) -> None:
    with pytest.raises(DataError, match="not the expected file"):
        load("svhn", root=root)
    with pytest.raises(DataError, match="73257, and has 32 x 32 x 3 x 12"):
        load("svhn", root=root, verify_checksums=False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"X": np.zeros((32, 32, 3, 4), np.uint8)}, "'X' of the shape 32 x 32 x 3 x 3"),
        ({"X": np.zeros((3, 3), np.uint8)}, "has 3 x 3"),
        ({"y": np.ones((3, 2), np.uint8)}, "'y' of the shape 3 x 1"),
        ({"X": np.zeros((32, 32, 3, 3))}, "float64"),
        ({"y": np.ones((3, 1))}, "float64"),
        ({"y": np.zeros((3, 1), np.uint8)}, "outside 1 to 10"),
        ({"y": np.full((3, 1), 11, np.uint8)}, "outside 1 to 10"),
    ],
    ids=["too many", "no images", "two columns", "image floats", "class floats", "class zero", "class eleven"],
)
def test_arrays_that_are_not_as_declared_are_refused(tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_svhn_mat(write(tmp_path / "a.mat", 3, **changes), num_records=3)  # type: ignore[arg-type]


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    savemat(tmp_path / "a.mat", {"X": arrays(3)[0]})
    with pytest.raises(DataError, match=r"'y' .* has none"):
        read_svhn_mat(tmp_path / "a.mat", num_records=3)


@pytest.mark.parametrize("cut", [0, 60, 130, 400, -20], ids=str)
def test_a_truncated_file_is_refused_in_words(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path / "a.mat", 3)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"a\.mat"):
        read_svhn_mat(path, num_records=3)


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mat").write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + b"\0" * 400)
    with pytest.raises(DataError, match="version 5"):
        read_svhn_mat(tmp_path / "a.mat", num_records=3)
    (tmp_path / "b.mat").write_bytes(b"house numbers" * 40)
    with pytest.raises(DataError, match=r"b\.mat"):
        read_svhn_mat(tmp_path / "b.mat", num_records=3)


@settings(
    deadline=None, max_examples=300, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(place=st.integers(0, 1), offset=st.integers(0, 400), value=st.integers(0, 255))
def test_a_damaged_byte_is_refused_in_words_or_changes_values_only(
    tmp_path: Path, place: int, offset: int, value: int
) -> None:
    content = bytearray(write(tmp_path / "a.mat", 3, compressed=bool(place)).read_bytes())
    content[offset] = value
    (tmp_path / "a.mat").write_bytes(content)
    try:
        pixels, digits = read_svhn_mat(tmp_path / "a.mat", num_records=3)
    except DataError:
        return
    assert pixels.shape == (3, 3, 32, 32)
    assert set(digits.tolist()) <= set(range(10))
