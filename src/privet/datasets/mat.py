"""Reader of numeric arrays in MAT files (version 5), the format of some published data sets.

It reads numeric arrays only, compressed or not, in little-endian byte order. It compares every length with the content
and every shape with the declared one before it allocates memory. ``scipy.io.loadmat`` does not: files with a few random
bytes changed can crash it with a segmentation fault.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privet.datasets.files import MAX_CONTENT_BYTES, check_sha256, read_all
from privet.errors import DataError

_HEADER_BYTES, _TAG_BYTES = 128, 8
# Version 1.0 of the format, little-endian.
_VERSION = b"\x00\x01IM"
_INT8, _INT32, _UINT32, _MATRIX, _PACKED = 1, 5, 6, 14, 15
_DTYPES = {1: "<i1", 2: "<u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
_NAME_BYTES = 64
# Upper limit for the head of an array: tags, flags, shape, name.
_MATRIX_HEAD_BYTES = 512


@dataclass(frozen=True, kw_only=True)
class _Element:
    """One data element: its type and its bytes."""

    kind: int
    data: memoryview


def read_mat(
    path: str | os.PathLike[str],
    *,
    shapes: Mapping[str, tuple[int, ...]],
    sha256: str | None = None,
    max_bytes: int = MAX_CONTENT_BYTES,
) -> dict[str, NDArray[np.generic]]:
    """Read named arrays of declared shapes from a MAT file, plain, .gz or .xz. Other variables are skipped.

    Args:
        path: The file.
        shapes: The declared shape of every array to read.
        sha256: The known checksum of the content.
        max_bytes: Largest accepted content.

    Raises:
        DataError: no MAT file of version 5, another checksum, an array that is missing or has another shape than
            declared, or an inconsistent length.
    """
    content = read_all(path, max_bytes=max_bytes)
    check_sha256(path, sha256, content)
    if len(content) < _HEADER_BYTES or bytes(content[_HEADER_BYTES - 4 : _HEADER_BYTES]) != _VERSION:
        raise DataError(f"{path} is no MAT file of version 5. Fetch the published file again.")
    largest = max((math.prod(shape) for shape in shapes.values()), default=0) * 8 + _MATRIX_HEAD_BYTES
    found: dict[str, NDArray[np.generic]] = {}
    for element in _elements(path, memoryview(content)[_HEADER_BYTES:], is_padded=False):
        matrix = _unpacked(path, element, largest)
        if matrix is not None:
            found |= _array(path, matrix, shapes)
    for name, shape in shapes.items():
        if name not in found:
            raise DataError(f"{path} should hold an array '{name}' of the shape {_dims(shape)}, and has none.")
    return found


def _dims(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "no axes"


def _damaged(path: str | os.PathLike[str], what: str) -> DataError:
    return DataError(f"{path} is damaged: {what}. Fetch the file again.")


def _elements(path: str | os.PathLike[str], data: memoryview, *, is_padded: bool) -> Iterator[_Element]:
    """Yield the elements in ``data``; inside an array each is padded to a multiple of eight bytes."""
    place = 0
    while place < len(data):
        if place + _TAG_BYTES > len(data):
            raise _damaged(path, "it ends within a tag")
        first, length = (int(each) for each in np.frombuffer(data[place : place + _TAG_BYTES], "<u4"))
        start, step = place + _TAG_BYTES, length
        if first >> 16:  # small element: up to four bytes of data inside the tag
            first, length, start, step = first & 0xFFFF, first >> 16, place + 4, 0
            if length > _TAG_BYTES - 4:
                raise _damaged(path, "a short element is too long")
        if start + length > len(data):
            raise _damaged(path, "it ends within an element")
        yield _Element(kind=first, data=data[start : start + length])
        place += _TAG_BYTES + (step + -step % 8 if is_padded else step)


def _unpacked(path: str | os.PathLike[str], element: _Element, largest: int) -> memoryview | None:
    """Return the content of an array, at most ``largest`` bytes if compressed; None for other elements."""
    if element.kind == _MATRIX:
        return element.data
    if element.kind != _PACKED:
        return None
    try:
        packed = zlib.decompressobj()
        data = packed.decompress(element.data, largest + _TAG_BYTES)
    except zlib.error as error:
        raise _damaged(path, f"a packed part cannot be unpacked ({error})") from None
    if len(data) < _TAG_BYTES:
        raise _damaged(path, "a packed part is empty")
    kind, length = (int(each) for each in np.frombuffer(data[:_TAG_BYTES], "<u4"))
    if kind != _MATRIX:
        return None
    if packed.eof and len(data) != _TAG_BYTES + length:
        raise _damaged(path, "a packed part has another length than it says")
    return memoryview(data)[_TAG_BYTES:]


def _array(
    path: str | os.PathLike[str], matrix: memoryview, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, NDArray[np.generic]]:
    """Return an array by name; empty if it is not requested."""
    elements = _elements(path, matrix, is_padded=True)
    try:
        flags, sizes, name = next(elements), next(elements), next(elements)
    except StopIteration:
        raise _damaged(path, "an array has no head") from None
    if (flags.kind, sizes.kind, name.kind) != (_UINT32, _INT32, _INT8) or len(name.data) > _NAME_BYTES:
        raise _damaged(path, "an array's head is not one")
    known = {each.encode(): each for each in shapes}.get(bytes(name.data))
    if known is None:
        return {}
    if len(sizes.data) % 4:
        raise _damaged(path, f"the shape of '{known}' is not one")
    shape = tuple(int(each) for each in np.frombuffer(sizes.data, "<i4"))
    if shape != shapes[known]:
        raise DataError(
            f"{path} should hold an array '{known}' of the shape {_dims(shapes[known])}, and has {_dims(shape)}. Fetch "
            "the published file."
        )
    values = next(elements, None)
    dtype = None if values is None else _DTYPES.get(values.kind)
    if values is None or dtype is None:
        raise _damaged(path, f"'{known}' holds no numbers")
    if len(values.data) != math.prod(shape) * np.dtype(dtype).itemsize:
        raise _damaged(path, f"'{known}' holds {len(values.data)} bytes, which is not what its shape needs")
    return {known: np.frombuffer(values.data, dtype).reshape(shape, order="F")}
