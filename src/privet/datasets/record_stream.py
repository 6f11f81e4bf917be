"""Records that pass by one after the other: streams, and files that are larger than memory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from privet import checks
from privet.datasets.item_bytes import from_bytes, to_bytes
from privet.durable import write_durably
from privet.errors import DataError

_FORMAT = 1
_RECORDS, _ENDS, _FACTS = "records.bin", "ends.bin", "stream.json"
_WORD = 8  # bytes of the place at which a record ends
_MAX_FACTS = 4096


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordStream:
    """Records of a stream, kept in a folder in the order of their arrival, and read from there one by one.

    A random batch holds records from all over a stream, and the next epoch needs all of them again. So every record
    is written once as it passes, and the plan's sampler deals the arrival numbers to its steps by a secret key. Neither
    writing nor training holds the records in memory: a run needs a few numbers per record, which the sampler draws.

    Guarantee:
        One item is one record of the stream. The number of records is private; nothing but the folder holds it.

    Attributes:
        folder: Where the records are. Its files hold private data and are readable by their owner only.
    """

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))
        if self._facts is None:
            raise DataError(
                f"{self.folder} holds no whole stream. Write one: RecordStream.stored(records, "
                f"folder={self.folder.name!r})."
            )

    @classmethod
    def stored(cls, records: Iterable[Any], *, folder: str | Path) -> Self:
        """Write the records of a stream into a folder, unless it holds a whole stream already.

        So a script that is run again, to resume, reads the records of its first run. A stream whose writing was broken
        off is written anew.

        Args:
            records: An ``IterableDataset``, a streaming data set of Hugging Face, or any iterable. It is read once.
            folder: Where the records go. Keep it as long as the run may be resumed.

        Raises:
            DataError: the stream is empty, or a record cannot be stored.
        """
        place = Path(folder)
        if _read_facts(place) is None:
            _write(records, place)
        return cls(folder=place)

    @cached_property
    def _facts(self) -> dict[str, Any] | None:
        return _read_facts(self.folder)

    def records_digest(self) -> bytes:
        """Return a digest of all records, as private as they are: it tells whether a guess of all of them is right."""
        assert self._facts is not None, "checked when it was opened"
        return bytes.fromhex(self._facts["digest"])

    def __len__(self) -> int:
        assert self._facts is not None, "checked when it was opened"
        return int(self._facts["records"])

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several records, read in the order in which they lie in the file."""
        size = len(self)
        places = [_place(index, size) for index in indices]
        found: dict[int, bytes] = {}
        with self._files.lock:
            for place in sorted(set(places)):
                found[place] = self._files.record(place)
        return [from_bytes(found[place]) for place in places]

    @cached_property
    def _files(self) -> _Files:
        return _Files(self.folder)

    def __getstate__(self) -> dict[str, Any]:
        """Another process opens the files itself."""
        return {"folder": self.folder}


def _place(index: int, size: int) -> int:
    """Return a place that may be counted from the end."""
    place = int(index)
    if not -size <= place < size:
        raise IndexError("the stream has fewer records")
    return place % size


class _Files:
    """The open files of a stream."""

    def __init__(self, folder: Path) -> None:
        self.lock = threading.Lock()
        # without buffers: a record is read by one call, and memory does not grow with the records read
        self._records: IO[bytes] = open(folder / _RECORDS, "rb", buffering=0)  # noqa: SIM115
        self._ends: IO[bytes] = open(folder / _ENDS, "rb", buffering=0)  # noqa: SIM115

    def record(self, place: int) -> bytes:
        """Return the bytes of one record."""
        first = max(0, place - 1)
        self._ends.seek(first * _WORD)
        ends = np.frombuffer(self._ends.read((place - first + 1) * _WORD), dtype="<u8")
        begin = int(ends[0]) if place else 0
        self._records.seek(begin)
        return self._records.read(int(ends[-1]) - begin)

    def __del__(self) -> None:
        self._records.close()
        self._ends.close()


def _write(records: Iterable[Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest, end, number = hashlib.blake2b(digest_size=32), 0, 0
    with _opened(folder / _RECORDS) as body, _opened(folder / _ENDS) as ends:
        for item in records:
            data = to_bytes(item)
            digest.update(data)
            end, number = end + len(data), number + 1
            body.write(data)
            ends.write(end.to_bytes(_WORD, "little"))
        for file in (body, ends):
            file.flush()
            os.fsync(file.fileno())
    if number == 0:
        raise DataError("The stream has no records. If it was read before, make a new one.")
    facts = {"format": _FORMAT, "records": number, "bytes": end, "digest": digest.hexdigest()}
    write_durably(folder / _FACTS, json.dumps(facts).encode())


def _opened(path: Path) -> IO[bytes]:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _read_facts(folder: Path) -> dict[str, Any] | None:
    """Return the description of a whole stream; None where there is none.

    Raises:
        DataError: the files were cut or changed, or another version wrote them.
    """
    try:
        with open(folder / _FACTS, "rb") as file:
            content = file.read(_MAX_FACTS)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with checks.reading(f"facts of the stream in {folder}"):
        facts = json.loads(content)
        number = checks.count("records", facts["records"])
        found = {
            "format": checks.count("format", facts["format"]),
            "records": number,
            "bytes": checks.count("bytes", facts["bytes"]),
            "digest": bytes.fromhex(facts["digest"]).hex(),
        }
    sizes = {name: (folder / name).stat().st_size if (folder / name).exists() else -1 for name in (_RECORDS, _ENDS)}
    if found["format"] != _FORMAT or sizes != {_RECORDS: found["bytes"], _ENDS: _WORD * number}:
        raise DataError(
            f"The stream in {folder} is damaged, or another version of privet wrote it. Delete the folder and write "
            "the stream again; a run that began with it cannot be resumed then."
        )
    return found
