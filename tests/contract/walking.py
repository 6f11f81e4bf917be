"""Which classes of the package implement a protocol, found by looking at every module."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import privet

# These need packages that this environment may lack, or start a program when they are imported.
ELSEWHERE = frozenset(
    {
        "privet.cli.__main__",
        "privet.federated.apps",
        "privet.federated.recipe_apps",
        "privet.gradients.norms._triton_kernels",
        "privet.integrations.hugging_face.trainer",
        "privet.integrations.lightning.module",
        "privet.training._triton_noise",
        "privet.training.weight_watch._triton_sums",
    }
)


def package_modules() -> Sequence[ModuleType]:
    """Import every module of the package."""
    names = (found.name for found in pkgutil.walk_packages(privet.__path__, "privet."))
    return [importlib.import_module(name) for name in names if name not in ELSEWHERE]


def classes_of(modules: Iterable[ModuleType]) -> list[type[Any]]:
    """Return the classes that the modules define; protocols, abstract bases and what they import are left out."""
    found = {
        value
        for module in modules
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__ and not _is_abstract(value)
    }
    return sorted(found, key=full_name)


def _is_abstract(kind: type[Any]) -> bool:
    return getattr(kind, "_is_protocol", False) or inspect.isabstract(kind)


def full_name(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def members_of(protocol: type[Any]) -> dict[str, Any]:
    """Return what a protocol asks for: functions and properties, and None for plain attributes."""
    found: dict[str, Any] = {}
    for base in reversed(protocol.__mro__):
        if not getattr(base, "_is_protocol", False) or base.__module__ == "typing":
            continue
        asked = {**dict.fromkeys(vars(base).get("__annotations__", {})), **vars(base)}
        found |= {name: value for name, value in asked.items() if _is_asked(name, value)}
    return found


def _is_asked(name: str, value: Any) -> bool:
    if name.startswith("__"):
        return inspect.isfunction(value) and name not in {"__init__", "__subclasshook__", "__init_subclass__"}
    return not name.startswith("_")


def implements(kind: type[Any], protocol: type[Any]) -> bool:
    """Whether a class offers all that a protocol asks for, functions by arguments that may be meant as the same."""
    return all(_offers(kind, name, asked) for name, asked in members_of(protocol).items())


def _offers(kind: type[Any], name: str, asked: Any) -> bool:
    given = inspect.getattr_static(kind, name, None)
    if inspect.isfunction(asked):
        return inspect.isfunction(given) and _may_stand_for(given, asked)
    if inspect.isfunction(given):
        return False
    annotated = any(name in vars(base).get("__annotations__", {}) for base in kind.__mro__)
    return given is not None or annotated


def _may_stand_for(given: Any, asked: Any) -> bool:
    """Whether as many arguments come by place, alike in name or type, and the same ones by name alone."""
    places, wanted = _by_place(given), _by_place(asked)
    return (
        len(places) == len(wanted)
        and all(_are_alike(one, other) for one, other in zip(places, wanted, strict=True))
        and _by_name(given) == _by_name(asked)
    )


def _are_alike(one: inspect.Parameter, other: inspect.Parameter) -> bool:
    return one.name == other.name or one.annotation in (other.annotation, "Any", "object", inspect.Parameter.empty)


def _by_place(function: Any) -> list[inspect.Parameter]:
    parameters = inspect.signature(function).parameters.values()
    return [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]


def _by_name(function: Any) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
