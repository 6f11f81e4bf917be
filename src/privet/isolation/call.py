"""One operation as the rules see it: its arguments by name, with tensors replaced by their places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from torch._ops import OpOverload

from privet.isolation.place import NoRule, Place, Shape, Spec, Verdict, aligned, met

_MISSING = object()


@lru_cache(maxsize=4096)
def argument_names(operation: OpOverload) -> dict[str, tuple[int, Any]]:
    """Return place and default of every argument of an operation."""
    arguments = operation._schema.arguments
    return {
        argument.name: (number, argument.default_value if argument.has_default_value() else _MISSING)
        for number, argument in enumerate(arguments)
    }


@lru_cache(maxsize=4096)
def name_of(operation: OpOverload) -> str:
    """Return the short name of an operation."""
    space, _, name = str(operation.overloadpacket).partition(".")
    return name if space == "aten" else f"{space}.{name}"


@dataclass(slots=True)
class Call:
    """An operation that was carried out.

    Attributes:
        operation: The operator.
        args: Its arguments; tensors are specs.
        kwargs: Its named arguments.
        out_specs: The results themselves, without verdicts yet.
        name: The short name of the operation.
        specs: All tensors among the arguments; rules and comparisons ask for them many times.
    """

    operation: OpOverload
    args: Sequence[Any]
    kwargs: dict[str, Any]
    out_specs: Sequence[Spec]
    name: str = field(init=False)
    specs: Sequence[Spec] = field(init=False)

    def __post_init__(self) -> None:
        self.name = name_of(self.operation)
        self.specs = specs_in((*self.args, *self.kwargs.values()) if self.kwargs else self.args)
        if len(self.specs) > 1 and len(set(map(id, self.specs))) < len(self.specs):
            self._tell_apart()

    def _tell_apart(self) -> None:
        """Give every argument a spec of its own: rules ask which argument a spec is, and a tensor may be several."""
        met_before: set[int] = set()

        def own(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return [own(item) for item in value]
            if not isinstance(value, Spec):
                return value
            found = copy(value) if id(value) in met_before else value
            met_before.add(id(value))
            return found

        self.args = [own(value) for value in self.args]
        self.kwargs = {name: own(value) for name, value in self.kwargs.items()}
        self.specs = specs_in((*self.args, *self.kwargs.values()))

    def arg(self, name: str) -> Any:
        """Return an argument by its name; its default if it was not given."""
        number, default = argument_names(self.operation)[name]
        if number < len(self.args):
            return self.args[number]
        found = self.kwargs.get(name, default)
        assert found is not _MISSING, f"{self.operation} was called without {name}"
        return found

    def has(self, name: str) -> bool:
        """Whether the operation has an argument of this name."""
        return name in argument_names(self.operation)

    @property
    def shape(self) -> Shape:
        """The shape of the first result."""
        return self.out_specs[0].shape

    def first(self) -> tuple[Spec, Place]:
        """Return the first argument and its place, for rules that are asked only if it holds examples."""
        spec: Spec = self.args[0]
        assert spec.place is not None
        return spec, spec.place

    def everywhere(self, verdict: Verdict) -> list[Verdict]:
        """Return the same verdict for every result."""
        return [verdict] * len(self.out_specs)


Rule = Callable[[Call], Sequence[Verdict]]
"""Says of every result where its examples lie; raises Mixes or NoRule otherwise."""


def specs_in(values: Sequence[Any]) -> list[Spec]:
    """Return the tensors among arguments, looking into lists."""
    found: list[Spec] = []
    for value in values:
        kind = type(value)
        if kind is Spec:
            found.append(value)
        elif kind is list or kind is tuple:
            found += [item for item in value if isinstance(item, Spec)]
    return found


def beside_public(public: str, kept: str, otherwise: str) -> Rule:
    """Return the rule of results that lie as one argument does, if another is public: a table, or slopes of channels.

    Args:
        public: The argument that must be public.
        kept: The argument that says where the examples lie.
        otherwise: Why there is no rule if the first depends on the examples.
    """

    def rule(call: Call) -> Sequence[Verdict]:
        if call.arg(public).verdict is not None:
            raise NoRule(otherwise)
        return call.everywhere(call.arg(kept).verdict)

    return rule


def private(specs: Sequence[Spec]) -> list[tuple[Spec, Place]]:
    """Return those that hold examples, with their places."""
    return [(spec, spec.verdict) for spec in specs if isinstance(spec.verdict, Place)]


def broadcast(specs: Sequence[Spec], shape: Shape) -> Place | None:
    """Return the place after an operation on elements that are broadcast to one shape."""
    places = [aligned(place, spec.ndim, len(shape)) for spec, place in private(specs)]
    return met(places) if places else None
