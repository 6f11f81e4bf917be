"""A user's own network, named on the command line by module or file and the function that builds it."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any

from torch import nn

from privet.errors import RecipeError
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
    return _network(_made_by(_named(reference), reference, "function or class", "builds the network"), reference)


def build_from(code: Code, reference: str) -> nn.Module:
    """Run a file as it was read, call its function without arguments, and return the network.

    Raises:
        RecipeError: the code fails, or does not return a network.
    """
    return _network(_made_by(_run(code), reference, "function or class", "builds the network"), reference)


def batch_referenced(reference: str) -> Any:
    """Import a module or a file, call the function named in it without arguments, and return the batch it gives.

    Raises:
        RecipeError: there is no such code, or it fails.
    """
    return _made_by(_named(reference), reference, "function", "returns a batch of examples")


def _network(model: object, reference: str) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise RecipeError(f"{reference} returned {type(model).__name__}, not a torch.nn.Module.")
    return model


def _named(reference: str) -> ModuleType:
    place = reference.rpartition(":")[0]
    return _run(Code.read(reference)) if place.endswith(".py") else _from_package(place)


def _made_by(module: ModuleType, reference: str, kind: str, purpose: str) -> Any:
    place, _, name = reference.rpartition(":")
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


class _AsRead(importlib.abc.InspectLoader):
    """Runs the text of a file that was read before: neither a newer content of the file nor a compiled copy of it."""

    def __init__(self, code: Code) -> None:
        self._code = code

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self._code.text)

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._code.text, str(self._code.path))


def _run(code: Code) -> ModuleType:
    path = code.path
    name = f"privet_own_network_{path.stem}"  # no other module is called so
    spec = importlib.util.spec_from_loader(name, _AsRead(code), origin=str(path))
    assert spec is not None, "a loader was given"
    assert spec.loader is not None, "a loader was given"
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    sys.modules[name] = module  # where dataclasses look for the names of their annotations
    folder = str(path.parent)
    sys.path.insert(0, folder)  # as Python does for a script: the file may import its neighbours
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # an error of the user's code is reported as it is
        raise RecipeError(f"Running {path} failed: {type(error).__name__}: {error}.") from error
    finally:
        sys.path.remove(folder)
    return module
