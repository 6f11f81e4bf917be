"""Features kept on disk, so that what takes minutes to compute is computed once.

Features are made from the examples and are as private as they are: whoever may not read the data may not read a cache
of it. Files are readable by their owner alone, and nothing is kept unless a folder was named.
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
    """A folder of features, one safetensors file for each key. PRIVATE wherever the examples are.

    Attributes:
        folder: Made when it is first needed, for its owner alone.
    """

    folder: Path

    @classmethod
    def from_environment(cls) -> Self | None:
        """Return the cache in the folder that PRIVET_CACHE names; None where it names none."""
        folder = os.environ.get(CACHE_VARIABLE)
        return cls(folder=Path(folder).expanduser()) if folder else None

    def get(self, key: str, shape: tuple[int, ...], compute: Callable[[], Tensor]) -> Tensor:
        """Return the features under a key that names all they follow from, computing and keeping them if need be.

        A file that is damaged or of another shape is replaced. A disk that refuses the file is no reason to fail: the
        features are returned anyway.
        """
        path = self.folder / f"{key}.safetensors"
        found = _read(path, shape)
        if found is not None:
            return found
        features = compute()
        try:
            self._keep(path, features)
        except (OSError, SafetensorError) as error:
            _log.warning("Features could not be kept in %s (%s); they will be computed again.", self.folder, error)
        return features

    def _keep(self, path: Path, features: Tensor) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # a name of its own for every process: several may compute the same features side by side
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
