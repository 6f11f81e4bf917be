"""Fingerprints of the weights of a run folder, read without torch and without trusting the files."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from privet.errors import CheckpointError

_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """The identity of a file of weights.

    Attributes:
        name: File name, without its folder.
        sha256: SHA-256 of its bytes.
        num_coordinates: Numbers in it, trained or not.
    """

    name: str
    sha256: str
    num_coordinates: int

    def to_dict(self) -> dict[str, Any]:
        return {"file": self.name, "sha256": self.sha256, "num_coordinates": self.num_coordinates}


def fingerprint_of(path: Path) -> ModelFile | None:
    """Return the fingerprint of a file of weights; None if there is none.

    Raises:
        CheckpointError: it is a link, not a regular file, or not safetensors.
    """
    if not path.exists() and not path.is_symlink():
        return None
    _check_regular(path)
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(_CHUNK):
                digest.update(piece)
        with safe_open(str(path), "numpy") as tensors:
            sizes = [math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys()]  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is not a file of weights that privet wrote: {error}.") from None
    return ModelFile(name=path.name, sha256=digest.hexdigest(), num_coordinates=max(1, sum(sizes)))


def _check_regular(path: Path) -> None:
    if path.is_symlink() or not path.is_file():
        raise CheckpointError(f"{path} is a link or not a regular file. A run folder holds what privet train wrote.")
