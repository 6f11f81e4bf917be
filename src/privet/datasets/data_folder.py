"""The folder that holds the official files of the known data sets."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from privet.datasets.files import locate
from privet.errors import DataError

ROOT_VARIABLE = "PRIVET_DATA"


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One official file.

    Attributes:
        folder: sub-folder of the data folder.
        name: file name without a compression suffix.
        sha256: checksum of its unpacked content; None if no official file with exactly these bytes exists.
        published_md5: the publisher's checksum of the downloaded file; None if none is published.
    """

    folder: str
    name: str
    sha256: str | None
    published_md5: str | None


@dataclass(frozen=True, kw_only=True)
class DataFolder:
    """The folder of official files, and whether to verify them.

    Attributes:
        root: the folder; None if neither the caller nor the environment names one.
        verify_checksums: False accepts changed files.
    """

    root: Path | None
    verify_checksums: bool

    @classmethod
    def chosen(cls, root: str | os.PathLike[str] | None, *, verify_checksums: bool) -> DataFolder:
        """Use the caller's folder, or else that of the environment variable PRIVET_DATA."""
        chosen = root if root is not None else os.environ.get(ROOT_VARIABLE) or None
        return cls(root=None if chosen is None else Path(chosen).expanduser(), verify_checksums=verify_checksums)

    def sha256(self, file: DataFile) -> str | None:
        """Return the expected checksum of a file; None if it is not verified."""
        return file.sha256 if self.verify_checksums else None

    def find(self, file: DataFile, *, dataset: str, source: str) -> Path:
        """Return the path of an official file, plain or compressed.

        Raises:
            DataError: no folder is named, or the file is not in it; the message contains the folder, the expected file
                and its official source.
        """
        wanted = f"{file.folder}/{file.name}"
        if self.root is None:
            raise DataError(
                f"Data set {dataset!r} is not part of this package and no data folder is named. Put its files in a "
                f"folder, as {wanted}(.gz), and name the folder: export {ROOT_VARIABLE}=FOLDER (in Python also "
                f"root=). Official files: {source}."
            )
        if not self.root.is_dir():
            raise DataError(f"Data set {dataset!r}: the data folder {self.root} does not exist. Check {ROOT_VARIABLE}.")
        path = locate(self.root, wanted)
        if path is None:
            checksum = f" The published file has the MD5 {file.published_md5}." if file.published_md5 else ""
            raise DataError(
                f"Data set {dataset!r} needs {wanted} (plain, .gz or .xz), and it is not in {self.root}. "
                f"Official files: {source}.{checksum}"
            )
        return path
