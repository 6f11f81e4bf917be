"""Readers of binary formats: IDX (MNIST and similar), the CIFAR-10 binary version, and NPZ.

No reader runs code from a file. Sizes are compared with the declaration before memory is allocated, and a file whose
length differs from its header is refused.
"""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from privet.datasets.files import MAX_CONTENT_BYTES, check_sha256, open_content, read_all, read_up_to
from privet.errors import DataError

_IDX_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

CIFAR10_IMAGE_SHAPE = (3, 32, 32)
_CIFAR10_RECORD_BYTES = 1 + math.prod(CIFAR10_IMAGE_SHAPE)
_CIFAR10_LAST_CLASS = 9

_NPY_MAX_HEADER_BYTES = 10_000


def read_idx(
    path: str | os.PathLike[str],
    *,
    shape: Sequence[int | None] | None = None,
    sha256: str | None = None,
    max_bytes: int = MAX_CONTENT_BYTES,
) -> NDArray[Any]:
    """Read an IDX file, plain, .gz or .xz, into an array of native byte order.

    Args:
        path: the file.
        shape: the declared shape; None in it allows any size of that axis. None for any shape.
        sha256: the known checksum of the unpacked content.
        max_bytes: largest accepted content.

    Raises:
        DataError: wrong magic number, unknown type, other shape, other checksum, or a length that differs from the
            header. The message contains the file and the expected and found numbers of bytes.
    """
    with open_content(path) as stream:
        header, dtype, found_shape = _read_idx_header(path, stream)
        _check_shape(str(path), found_shape, shape)
        expected = math.prod(found_shape) * dtype.itemsize
        if expected > max_bytes:
            raise DataError(f"{path} declares {expected} bytes of values, more than the limit of {max_bytes}.")
        values = read_up_to(stream, expected + 1)
    _check_length(str(path), expected, len(values))
    check_sha256(path, sha256, header, values)
    return np.frombuffer(values, dtype=dtype).reshape(found_shape).astype(dtype.newbyteorder("="), copy=False)


def _read_idx_header(path: str | os.PathLike[str], stream: IO[bytes]) -> tuple[bytes, np.dtype[Any], tuple[int, ...]]:
    magic = bytes(read_up_to(stream, 4))
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _IDX_DTYPES or magic[3] == 0:
        raise DataError(
            f"{path} is not an IDX file: its first four bytes should be 00 00, a known type and a number of axes, "
            f"and are {magic.hex(' ') or 'missing'}."
        )
    num_axes = magic[3]
    sizes = bytes(read_up_to(stream, 4 * num_axes))
    if len(sizes) < 4 * num_axes:
        raise DataError(f"{path} is truncated: its header should be {4 + 4 * num_axes} bytes and is {4 + len(sizes)}.")
    shape = tuple(int.from_bytes(sizes[i : i + 4], "big") for i in range(0, len(sizes), 4))
    return magic + sizes, np.dtype(_IDX_DTYPES[magic[2]]), shape


def read_cifar10_bin(
    path: str | os.PathLike[str],
    *,
    num_records: int | None = None,
    sha256: str | None = None,
    max_bytes: int = MAX_CONTENT_BYTES,
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read one batch of the CIFAR-10 binary version: a label byte, then 3,072 bytes of red, green and blue planes.

    A label above 9 becomes 9, so that no record can raise an error.

    Args:
        path: the file, plain, .gz or .xz.
        num_records: expected number of records; None for any number.
        sha256: the known checksum of the unpacked content.
        max_bytes: largest accepted content.

    Returns:
        Images of shape (records, 3, 32, 32) and labels of shape (records,).

    Raises:
        DataError: the file has an incomplete record, another number of records, or another checksum.
    """
    content = read_all(path, max_bytes=max_bytes)
    if num_records is not None:
        _check_length(str(path), num_records * _CIFAR10_RECORD_BYTES, len(content))
    if len(content) % _CIFAR10_RECORD_BYTES:
        raise DataError(
            f"{path} is truncated: {len(content)} bytes are not a whole number of records of "
            f"{_CIFAR10_RECORD_BYTES} bytes; expected {len(content) // _CIFAR10_RECORD_BYTES * _CIFAR10_RECORD_BYTES} "
            f"or {-(-len(content) // _CIFAR10_RECORD_BYTES) * _CIFAR10_RECORD_BYTES}. Fetch the file again."
        )
    check_sha256(path, sha256, content)
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, _CIFAR10_RECORD_BYTES)
    labels = np.minimum(records[:, 0], np.uint8(_CIFAR10_LAST_CLASS))
    return records[:, 1:].reshape(-1, *CIFAR10_IMAGE_SHAPE), labels


@dataclass(frozen=True, kw_only=True)
class ArrayDeclaration:
    """The declared type and shape of one array of an NPZ file; None in the shape is an axis of any size."""

    dtype: str
    shape: tuple[int | None, ...]


def read_npz(
    path: str | os.PathLike[str],
    arrays: Mapping[str, ArrayDeclaration],
    *,
    max_bytes: int = MAX_CONTENT_BYTES,
) -> dict[str, NDArray[Any]]:
    """Read the declared arrays of an NPZ file; other arrays are not read.

    Object arrays are refused, declared or not: reading one would run code from the file.

    Raises:
        DataError: an array is missing, stored twice, of another type or shape, truncated, too long or too large.
    """
    with open_content(path) as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                names = archive.namelist()
                return {key: _read_npy(path, archive, names, key, arrays[key], max_bytes) for key in arrays}
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
            raise DataError(
                f"{path} is not a readable NPZ file: {error}. Write it with numpy.savez_compressed."
            ) from None


def _read_npy(
    path: str | os.PathLike[str],
    archive: zipfile.ZipFile,
    names: list[str],
    key: str,
    declared: ArrayDeclaration,
    max_bytes: int,
) -> NDArray[Any]:
    where = f"Array {key!r} of {path}"
    if names.count(f"{key}.npy") != 1:
        raise DataError(f"{where} should be stored once and is stored {names.count(f'{key}.npy')} times.")
    with archive.open(f"{key}.npy") as member:
        try:
            version = npy_format.read_magic(member)
            read_header = {
                (1, 0): npy_format.read_array_header_1_0,
                (2, 0): npy_format.read_array_header_2_0,
            }.get(version)
            if read_header is None:
                raise DataError(f"{where} is stored in version {version} of the NPY format; versions 1 and 2 are read.")
            found_shape, fortran_order, dtype = read_header(member, max_header_size=_NPY_MAX_HEADER_BYTES)
        except DataError:
            raise
        except (ValueError, TypeError, SyntaxError, EOFError) as error:
            raise DataError(f"{where} has a damaged header ({type(error).__name__}).") from None
        if dtype.hasobject or dtype != np.dtype(declared.dtype):
            raise DataError(f"{where} should have the type {declared.dtype} and has {dtype.name}.")
        _check_shape(where, found_shape, declared.shape)
        expected = math.prod(found_shape) * dtype.itemsize
        if expected > max_bytes:
            raise DataError(f"{where} declares {expected} bytes, more than the limit of {max_bytes}.")
        values = read_up_to(member, expected + 1)
    _check_length(where, expected, len(values))
    flat = np.frombuffer(values, dtype=dtype).astype(dtype.newbyteorder("="), copy=False)
    return flat.reshape(found_shape, order="F" if fortran_order else "C")


def _check_shape(where: str, found: Sequence[int], declared: Sequence[int | None] | None) -> None:
    if declared is None:
        return
    fits = len(found) == len(declared) and all(
        size is None or size == actual for size, actual in zip(declared, found, strict=True)
    )
    if not fits:
        wanted = " x ".join("any" if size is None else str(size) for size in declared)
        raise DataError(f"{where} should have the shape {wanted} and has {' x '.join(map(str, found)) or 'no axes'}.")


def _check_length(where: str, expected: int, found: int) -> None:
    if found < expected:
        raise DataError(f"{where} is truncated: expected {expected} bytes of values, found {found}. Fetch it again.")
    if found > expected:
        raise DataError(f"{where} is too long: expected {expected} bytes of values, found {found} or more.")
