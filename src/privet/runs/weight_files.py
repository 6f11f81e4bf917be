"""Files of public weights, read whole so that what is compared is what is loaded. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from privet.errors import RecipeError


def read_weights(path: str) -> bytes:
    """Read a file of weights whole.

    Raises:
        RecipeError: there is no such file.
    """
    if not Path(path).is_file():
        raise RecipeError(f"There is no file of weights {path}. Name a safetensors file: --weights x.safetensors.")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}.") from None
