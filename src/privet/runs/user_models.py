"""A user's own network, named on the command line by module or file and the function that builds it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import nn

from privet.errors import RecipeError
from privet.runs.beside import AsRead, only_beside
from privet.runs.consent import Code


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
    return _network(_made(reference, "function or class", "builds the network"), reference)


def build_from(code: Code, reference: str) -> nn.Module:
    """Run a file as it was read, call its function without arguments, and return the network.

    Raises:
        RecipeError: the code fails, or does not return a network.
    """
    return _network(_made_from(code, reference, "function or class", "builds the network"), reference)


def batch_referenced(reference: str) -> Any:
    """Import a module or a file, call the function named in it without arguments, and return the batch it gives.

    Raises:
        RecipeError: there is no such code, or it fails.
    """
    return _made(reference, "function", "returns a batch of examples")


def _network(model: object, reference: str) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise RecipeError(f"{reference} returned {type(model).__name__}, not a torch.nn.Module.")
    return model


def _made(reference: str, kind: str, purpose: str) -> Any:
    place = reference.rpartition(":")[0]
    if place.endswith(".py"):
        return _made_from(Code.read(reference), reference, kind, purpose)
    return _made_by(_from_package(place), reference, kind, purpose)


def _made_from(code: Code, reference: str, kind: str, purpose: str) -> Any:
    with only_beside(code.path.parent, code.beside):
        return _made_by(_run(code), reference, kind, purpose)


def _made_by(module: ModuleType, reference: str, kind: str, purpose: str) -> Any:
    place, _, name = reference.rpartition(":")
    make: Callable[[], Any] | None = getattr(module, name, None)
    if not callable(make):
        raise RecipeError(f"{place} has no {kind} '{name}'. Name one that {purpose}.")
    try:
        return make()
    except RecipeError:
        raise
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


def _run(code: Code) -> ModuleType:
    path = code.path
    name = f"privet_own_network_{path.stem}"  # no other module is called so
    spec = importlib.util.spec_from_loader(name, AsRead(path, code.text), origin=str(path))
    assert spec is not None, "a loader was given"
    assert spec.loader is not None, "a loader was given"
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    sys.modules[name] = module  # where dataclasses look for the names of their annotations
    try:
        spec.loader.exec_module(module)
    except RecipeError:
        raise
    except Exception as error:  # an error of the user's code is reported as it is
        raise RecipeError(f"Running {path} failed: {type(error).__name__}: {error}.") from error
    return module
