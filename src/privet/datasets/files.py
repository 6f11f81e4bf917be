"""Safe reading of data files: inside their folder, regular files only, of limited size, with a verified checksum."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, cast

from privet.errors import DataError

# Far above the size of every known data set; a larger compressed file is hostile or a mistake.
MAX_CONTENT_BYTES = 4 * 2**30

# A file may be compressed or unpacked; the checksum is that of the content.
COMPRESSED_SUFFIXES = (".gz", ".xz")

_CHUNK_BYTES = 2**20


def locate(root: Path, relative: str) -> Path | None:
    """Return the file ``relative`` under ``root``, plain or compressed; None if it does not exist.

    Args:
        root: the data folder; it may itself be a symbolic link.
        relative: the file's path below the root, with forward slashes and without a compression suffix.

    Raises:
        DataError: the path is absolute, contains ``..``, or leads outside the root through a symbolic link.
    """
    parts = PurePosixPath(relative).parts
    if "\0" in relative or "\\" in relative or relative.startswith("/") or ".." in parts or not parts:
        raise DataError(f"{relative!r} is not a path below a data folder. Use a relative path without '..'.")
    for suffix in ("", *COMPRESSED_SUFFIXES):
        candidate = root / f"{relative}{suffix}"
        if os.path.lexists(candidate):
            return _inside(root, candidate)
    return None


def _inside(root: Path, candidate: Path) -> Path:
    try:
        base, path = root.resolve(strict=True), candidate.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"{candidate} cannot be followed to a file ({type(error).__name__}). Remove or repair the link."
        ) from None
    if not path.is_relative_to(base):
        raise DataError(f"{candidate} leads outside {root} through a symbolic link. Copy the file into the folder.")
    return path


@contextmanager
def open_content(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open the content of a file; .gz and .xz are decompressed.

    Raises:
        DataError: the file is missing, is no regular file (a pipe or a device could block), or is damaged.
    """
    name = Path(path)
    try:
        mode = name.stat().st_mode
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {_reason(error)}. Check the path.") from None
    if not stat.S_ISREG(mode):
        raise DataError(f"{path} is not a regular file. Give the path of a data file.")
    try:
        with _opener(name) as stream:
            yield stream
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} is damaged or truncated: {error}. Fetch the file again.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {_reason(error)}.") from None


def _opener(name: Path) -> IO[bytes]:
    if name.suffix == ".gz":
        return cast("IO[bytes]", gzip.open(name, "rb"))
    if name.suffix == ".xz":
        return cast("IO[bytes]", lzma.open(name, "rb"))
    return name.open("rb")


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


def read_up_to(stream: IO[bytes], num_bytes: int) -> bytearray:
    """Read at most ``num_bytes`` in chunks, so that memory depends on the real content and not on a header."""
    content = bytearray()
    while len(content) < num_bytes:
        piece = stream.read(min(_CHUNK_BYTES, num_bytes - len(content)))
        if not piece:
            break
        content += piece
    return content


def read_all(path: str | os.PathLike[str], *, max_bytes: int = MAX_CONTENT_BYTES) -> bytearray:
    """Read the whole content of a file of at most ``max_bytes``, plain, .gz or .xz.

    Raises:
        DataError: the file cannot be read, or its content is larger.
    """
    with open_content(path) as stream:
        content = read_up_to(stream, max_bytes + 1)
    if len(content) > max_bytes:
        raise DataError(f"{path} holds more than {max_bytes} bytes. If that is expected, raise max_bytes.")
    return content


def check_sha256(path: str | os.PathLike[str], sha256: str | None, *pieces: bytes | bytearray | memoryview) -> None:
    """Compare the content of a file with its known checksum; None for no check.

    The checksum is that of the unpacked content, so it does not depend on the compression.

    Raises:
        DataError: the content differs.
    """
    if sha256 is None:
        return
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    if digest.hexdigest() != sha256.lower():
        # The message does not contain the found digest: for private data it is an identifier.
        raise DataError(
            f"{path} is not the expected file: the SHA-256 of its unpacked content is not {sha256}. "
            f"Fetch the file again, or switch the check off if you changed it on purpose."
        )
