"""Items of a data set as bytes: tensors, arrays, numbers, texts, and lists, tuples and mappings of them. No pickle."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privet.errors import DataError

_HEADER = struct.Struct("<I")
_TENSORS = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    )
}
_PLAIN = (str, int, float, bool, type(None))
_ARRAY_KINDS = "biufc"


def to_bytes(item: Any) -> bytes:
    """Return an item as bytes that :func:`from_bytes` reads.

    Raises:
        DataError: a part of it is of another kind; its type is named, and nothing of its value.
    """
    parts: list[bytes] = []
    header = json.dumps(_described(item, parts), separators=(",", ":")).encode()
    return b"".join((_HEADER.pack(len(header)), header, *parts))


def _described(value: Any, parts: list[bytes]) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        name = str(flat.dtype).removeprefix("torch.")
        if name not in _TENSORS:
            raise _unknown(f"a tensor of type {name}")
        parts.append(flat.view(torch.uint8).numpy().tobytes() if len(flat) else b"")
        return {"tensor": [name, list(value.shape)]}
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.kind not in _ARRAY_KINDS:
            raise _unknown(f"an array of type {array.dtype}")
        parts.append(array.tobytes())
        kind = "array" if isinstance(value, np.ndarray) else "number"
        return {kind: [array.dtype.str, list(array.shape)]}
    if type(value) is bytes:
        parts.append(value)
        return {"bytes": len(value)}
    if type(value) is list:
        return [_described(part, parts) for part in value]
    if type(value) is tuple:
        return {"tuple": [_described(part, parts) for part in value]}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"mapping": {key: _described(part, parts) for key, part in value.items()}}
    raise _unknown(f"a part of type {type(value).__name__}")


def from_bytes(data: bytes) -> Any:
    """Return the item; its tensors and arrays have memory of their own."""
    (length,) = _HEADER.unpack_from(data)
    begin = _HEADER.size + length
    return _Parts(data, begin).made(json.loads(data[_HEADER.size : begin]))


class _Parts:
    """Takes the parts of an item from its bytes, one after the other."""

    def __init__(self, data: bytes, place: int) -> None:
        """Begin after the header."""
        self._data, self._place = data, place

    def made(self, described: Any) -> Any:
        """Return the described items."""
        if isinstance(described, list):
            return [self.made(part) for part in described]
        if not isinstance(described, dict):
            return described
        ((kind, content),) = described.items()
        match kind:
            case "tensor":
                name, shape = content
                return self._tensor(_TENSORS[name], shape)
            case "array" | "number":
                name, shape = content
                array = self._array(np.dtype(name), shape)
                return array if kind == "array" else array[()]
            case "bytes":
                return self._next(content)
            case "tuple":
                return tuple(self.made(part) for part in content)
            case "mapping":
                return {key: self.made(part) for key, part in content.items()}
        raise DataError(f"A stored record has a part of the unknown kind {kind!r}: another version wrote it.")

    def _tensor(self, kind: torch.dtype, shape: list[int]) -> Tensor:
        found = torch.empty(shape, dtype=kind)
        flat = found.view(-1).view(torch.uint8) if found.numel() else torch.empty(0, dtype=torch.uint8)
        if len(flat):
            flat.copy_(torch.frombuffer(bytearray(self._next(len(flat))), dtype=torch.uint8))
        return found

    def _array(self, kind: np.dtype[Any], shape: list[int]) -> np.ndarray[Any, Any]:
        if kind.kind not in _ARRAY_KINDS:
            raise DataError("A stored record has an array that holds no numbers: the file was not written by privet.")
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(self._next(count * kind.itemsize), dtype=kind).reshape(shape).copy()

    def _next(self, length: int) -> bytes:
        start, self._place = self._place, self._place + length
        return self._data[start : self._place]


def _unknown(found: str) -> DataError:
    return DataError(
        f"A record of the stream has {found}, which cannot be stored. Records are tensors, arrays of numbers, numbers, "
        "texts, bytes, and lists, tuples and mappings of them: turn others into these as they pass, such as "
        "(encode(item) for item in stream)."
    )
