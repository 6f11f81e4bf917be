"""The binary readers return exactly what was stored, or refuse."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from privet.datasets.readers import ArrayDeclaration, read_cifar10_bin, read_idx, read_npz
from privet.errors import DataError

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}
IN_ONE_FOLDER = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


def idx_bytes(values: NDArray[Any]) -> bytes:
    code = CODES[values.dtype.str[1:]]
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, code, values.ndim]) + sizes + values.astype(values.dtype.newbyteorder(">")).tobytes()


@IN_ONE_FOLDER
@given(
    values=st.sampled_from(sorted(CODES)).flatmap(
        lambda code: hnp.arrays(code, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4))
    ),
    pack=st.sampled_from(["", ".gz", ".xz"]),
)
def test_an_idx_file_reads_back_as_it_was_written(tmp_path: Path, values: NDArray[Any], pack: str) -> None:
    content = idx_bytes(values)
    packed = {"": content, ".gz": gzip.compress(content), ".xz": lzma.compress(content)}[pack]
    path = tmp_path / f"x{pack}"
    path.write_bytes(packed)
    found = read_idx(path, shape=values.shape, sha256=hashlib.sha256(content).hexdigest())
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, values)


def test_every_truncation_of_an_idx_file_is_refused_by_name(tmp_path: Path) -> None:
    content = idx_bytes(np.arange(24, dtype="u1").reshape(2, 3, 4))
    path = tmp_path / "images"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match="images"):
            read_idx(path)


def test_a_truncated_idx_file_names_expected_and_found_bytes(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    path.write_bytes(idx_bytes(np.zeros(100, dtype="u1"))[:-7])
    with pytest.raises(DataError, match="labels is truncated: expected 100 bytes of values, found 93"):
        read_idx(path)


def test_a_truncated_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.arange(200, dtype="u1")))[:-30])
    with pytest.raises(DataError, match="damaged or truncated"):
        read_idx(path)


def test_surplus_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(idx_bytes(np.zeros(10, dtype="u1")) + b"\0")
    with pytest.raises(DataError, match="too long: expected 10 bytes"):
        read_idx(path)


@pytest.mark.parametrize("magic", ["", "00", "00000801", "01000801", "00000701", "00000800", "504b0304"])
def test_a_wrong_magic_number_is_refused(tmp_path: Path, magic: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes.fromhex(magic) + (b"\0\0\0" if magic == "00000801" else b"\0\0\0\0\0"))
    with pytest.raises(DataError, match=r"not an IDX file|truncated|too long"):
        read_idx(path)


def test_a_header_that_claims_terabytes_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes([0, 0, 0x0E, 3]) + b"\xff" * 12)
    with pytest.raises(DataError, match="more than the limit"):
        read_idx(path)


@pytest.mark.parametrize("shape", [(3,), (2, 3, 1), (2, 4), (None,)])
def test_another_shape_than_declared_is_refused(tmp_path: Path, shape: tuple[int | None, ...]) -> None:
    path = tmp_path / "x"
    path.write_bytes(idx_bytes(np.zeros((2, 3), dtype="u1")))
    with pytest.raises(DataError, match="should have the shape"):
        read_idx(path, shape=shape)
    assert read_idx(path, shape=(None, 3)).shape == (2, 3)


def test_a_wrong_idx_checksum_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(idx_bytes(np.zeros(3, dtype="u1")))
    with pytest.raises(DataError, match="not the expected file"):
        read_idx(path, sha256="0" * 64)


@IN_ONE_FOLDER
@given(content=st.binary(max_size=64))
def test_arbitrary_bytes_give_an_array_or_a_data_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    try:
        values = read_idx(path)
    except DataError:
        return
    assert 4 + 4 * values.ndim + values.nbytes == len(content)


def test_cifar10_records_are_split_into_labels_and_planes(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), dtype=np.uint8)
    labels = np.array([3, 0, 9, 1, 4], dtype=np.uint8)
    path = tmp_path / "batch.bin"
    path.write_bytes(np.hstack([labels[:, None], images.reshape(5, -1)]).tobytes())
    found_images, found_labels = read_cifar10_bin(path, num_records=5)
    np.testing.assert_array_equal(found_images, images)
    np.testing.assert_array_equal(found_labels, labels)


def test_a_cifar10_label_out_of_range_becomes_the_last_class(tmp_path: Path) -> None:
    path = tmp_path / "batch.bin"
    path.write_bytes(bytes([200]) + bytes(3072))
    assert read_cifar10_bin(path)[1].tolist() == [9]


@pytest.mark.parametrize("length", [1, 3072, 3074, 6145])
def test_a_cifar10_file_of_broken_records_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "batch.bin"
    path.write_bytes(bytes(length))
    with pytest.raises(DataError, match=f"{length} bytes are not a whole number of records"):
        read_cifar10_bin(path)


def test_a_cifar10_file_with_another_number_of_records_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "batch.bin"
    path.write_bytes(bytes(2 * 3073))
    with pytest.raises(DataError, match="expected 9219 bytes of values, found 6146"):
        read_cifar10_bin(path, num_records=3)
    with pytest.raises(DataError, match="not the expected file"):
        read_cifar10_bin(path, sha256="0" * 64)


IMAGES = ArrayDeclaration(dtype="uint8", shape=(None, 4))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["uint8", ">i4", "float32"])
def test_declared_npz_arrays_read_back(tmp_path: Path, order: Any, dtype: str) -> None:
    values = np.asarray(np.arange(12).reshape(3, 4), dtype=dtype, order=order)
    np.savez_compressed(tmp_path / "x.npz", images=values, other=np.zeros(3))
    found = read_npz(tmp_path / "x.npz", {"images": ArrayDeclaration(dtype=dtype, shape=(None, 4))})
    assert list(found) == ["images"]
    np.testing.assert_array_equal(found["images"], values)


def test_a_missing_npz_array_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", other=np.zeros(3))
    with pytest.raises(DataError, match=r"'images'.*stored 0 times"):
        read_npz(tmp_path / "x.npz", {"images": IMAGES})


def test_an_array_stored_twice_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((2, 4), dtype=np.uint8))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("images.npy", buffer.getvalue())
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("images.npy", buffer.getvalue())
    with pytest.raises(DataError, match="stored 2 times"):
        read_npz(tmp_path / "x.npz", {"images": IMAGES})


def test_another_npz_type_or_shape_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", images=np.zeros((2, 5), dtype=np.uint8), labels=np.zeros((2, 4)))
    with pytest.raises(DataError, match="should have the shape any x 4 and has 2 x 5"):
        read_npz(tmp_path / "x.npz", {"images": IMAGES})
    with pytest.raises(DataError, match="should have the type uint8 and has float64"):
        read_npz(tmp_path / "x.npz", {"labels": IMAGES})


class _Trap:
    """Writes a file if anything ever unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("declared", ["uint8", "object"])
def test_object_arrays_never_run_code_even_when_declared(tmp_path: Path, declared: str) -> None:
    values = np.empty((1, 4), dtype=object)
    values[:] = _Trap(tmp_path / "sprung")
    np.savez(tmp_path / "x.npz", images=values)
    with pytest.raises(DataError, match="has object"):
        read_npz(tmp_path / "x.npz", {"images": ArrayDeclaration(dtype=declared, shape=(None, 4))})
    assert not (tmp_path / "sprung").exists()


def _npz_with_member(path: Path, member: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", member)
    return path


def _npy(values: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def test_truncated_overlong_and_headerless_members_are_refused(tmp_path: Path) -> None:
    member = _npy(np.zeros((3, 4), dtype=np.uint8))
    for name, content in (("short", member[:-2]), ("long", member + b"\0"), ("head", member[:40]), ("none", b"")):
        path = _npz_with_member(tmp_path / f"{name}.npz", content)
        with pytest.raises(DataError, match=name):
            read_npz(path, {"images": IMAGES})


def test_an_npy_header_that_claims_terabytes_is_refused(tmp_path: Path) -> None:
    member = _npy(np.zeros((3, 4), dtype=np.uint8)).replace(b"(3, 4), }" + b" " * 10, b"(%d, 4), }" % 99_999_999_999)
    path = _npz_with_member(tmp_path / "x.npz", member)
    with pytest.raises(DataError, match="399999999996 bytes, more than the limit"):
        read_npz(path, {"images": IMAGES})


def test_an_npy_header_of_another_version_or_of_code_is_refused(tmp_path: Path) -> None:
    member = bytearray(_npy(np.zeros((3, 4), dtype=np.uint8)))
    member[6] = 9
    with pytest.raises(DataError, match=r"version|header"):
        read_npz(_npz_with_member(tmp_path / "version.npz", bytes(member)), {"images": IMAGES})
    header = b"__import__('os').abort()".ljust(117) + b"\n"
    code = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with pytest.raises(DataError, match="damaged header"):
        read_npz(_npz_with_member(tmp_path / "code.npz", code), {"images": IMAGES})


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"no archive at all" * 10])
def test_what_is_no_npz_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(DataError, match="not a readable NPZ"):
        read_npz(tmp_path / "x.npz", {"images": IMAGES})


def test_every_bit_flip_of_an_npz_is_refused_or_harmless(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.uint8).reshape(3, 4)
    np.savez_compressed(tmp_path / "x.npz", images=values)
    content = (tmp_path / "x.npz").read_bytes()
    num_refused = 0
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 0x10
        (tmp_path / "y.npz").write_bytes(changed)
        try:
            found = read_npz(tmp_path / "y.npz", {"images": IMAGES})["images"]
        except DataError:
            num_refused += 1
            continue
        np.testing.assert_array_equal(found, values)
    assert num_refused > len(content) // 3
