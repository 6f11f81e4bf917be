"""A cache on disk for features that take minutes to compute.

Features are functions of the examples and as private as the examples: protect the cache like the data. Only the owner
can read the files, and nothing is stored unless a folder is named.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

CACHE_VARIABLE = "PRIVET_CACHE"
_NAME = "features"
_log = logging.getLogger("privet")


@dataclass(frozen=True, kw_only=True)
class FeatureCache:
    """A folder of features, one safetensors file per key. PRIVATE if the examples are.

    Attributes:
        folder: Created on first use, readable by its owner only.
    """

    folder: Path

    @classmethod
    def from_environment(cls) -> Self | None:
        """Return the cache in the folder of PRIVET_CACHE; None if the variable is not set."""
        folder = os.environ.get(CACHE_VARIABLE)
        return cls(folder=Path(folder).expanduser()) if folder else None

    def get(self, key: str, shape: tuple[int, ...], compute: Callable[[], Tensor]) -> Tensor:
        """Return the features of a key, which must identify all inputs of ``compute``; compute them if missing.

        A damaged file, or one with another shape, is replaced. If the file cannot be written, the features are returned
        all the same.
        """
        path = self.folder / f"{key}.safetensors"
        found = _read(path, shape)
        if found is not None:
            return found
        features = compute()
        try:
            self._store(path, features)
        except (OSError, SafetensorError) as error:
            _log.warning(
                "Features could not be stored in %s (%s); the next run computes them again.", self.folder, error
            )
        return features

    def _store(self, path: Path, features: Tensor) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # a different name in every process: several may compute the same features at once
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            save_file({_NAME: features.cpu().contiguous()}, fresh)
            fresh.chmod(0o600)
            os.replace(fresh, path)
        finally:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)


def _read(path: Path, shape: tuple[int, ...]) -> Tensor | None:
    if not path.is_file():
        return None
    try:
        found = load_file(path).get(_NAME)
    except (OSError, SafetensorError) as error:
        _log.warning("%s cannot be read (%s); its features are computed again.", path, error)
        return None
    return found if found is not None and tuple(found.shape) == shape else None
