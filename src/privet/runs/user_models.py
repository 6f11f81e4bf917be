"""A user's own network, named on the command line by module or file and the function that builds it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from privet.errors import RecipeError


def is_reference(text: str) -> bool:
    """Whether a text has the form ``module:function`` or ``file.py:function``."""
    place, _, name = text.rpartition(":")
    return bool(place) and name.isidentifier()


def build_referenced(reference: str) -> nn.Module:
    """Import a module or a file, call the function or class named in it without arguments, and return the network.

    Importing runs the code, with all the rights of the user.

    Args:
        reference: ``package.module:function`` or ``path/to/file.py:function``.

    Raises:
        RecipeError: there is no such code, it fails, or it does not return a network.
    """
    model = _made_by(reference, "function or class", "builds the network")
    if not isinstance(model, nn.Module):
        raise RecipeError(f"{reference} returned {type(model).__name__}, not a torch.nn.Module.")
    return model


def batch_referenced(reference: str) -> Any:
    """Import a module or a file, call the function named in it without arguments, and return the batch it gives.

    Raises:
        RecipeError: there is no such code, or it fails.
    """
    return _made_by(reference, "function", "returns a batch of examples")


def _made_by(reference: str, kind: str, purpose: str) -> Any:
    place, _, name = reference.rpartition(":")
    module = _from_file(Path(place)) if place.endswith(".py") else _from_package(place)
    make: Callable[[], Any] | None = getattr(module, name, None)
    if not callable(make):
        raise RecipeError(f"{place} has no {kind} '{name}'. Name one that {purpose}.")
    try:
        return make()
    except Exception as error:  # an error of the user's code is reported as it is
        raise RecipeError(
            f"{reference} failed: {type(error).__name__}: {error}. It must be callable without arguments."
        ) from error


def _from_package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise RecipeError(
            f"There is no module '{error.name}'. Run from the folder it lies in, or name a file: path/to/file.py:name."
        ) from error
    except Exception as error:  # an error of the user's code is reported as it is
        raise RecipeError(f"Importing {name} failed: {type(error).__name__}: {error}.") from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise RecipeError(f"There is no file {path}. Name a Python file and a function: path/to/file.py:name.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "a file that ends in .py has a loader"
    assert spec.loader is not None, "a file that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)  # as Python does for a script: the file may import its neighbours
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # an error of the user's code is reported as it is
        raise RecipeError(f"Running {path} failed: {type(error).__name__}: {error}.") from error
    finally:
        sys.path.remove(folder)
    return module
