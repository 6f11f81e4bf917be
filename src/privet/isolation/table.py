"""All rules in one table, by the name of the operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch._ops import OpOverload

from privet.isolation import rules_axes, rules_elements, rules_index, rules_layers, rules_products, rules_shape
from privet.isolation.call import Call, Rule, name_of, private
from privet.isolation.place import Mixes, NoRule, Place, Verdict

RULES: Mapping[str, Rule] = {
    **rules_elements.RULES,
    **rules_axes.RULES,
    **rules_layers.RULES,
    **rules_shape.RULES,
    **rules_products.RULES,
    **rules_index.RULES,
}


@lru_cache(maxsize=4096)
def rule_of(operation: OpOverload) -> Rule | None:
    """Return the rule of an operation: by its name, or because torch says that it works on elements."""
    name = name_of(operation)
    found = RULES.get(name)
    if found is None and torch.Tag.pointwise in operation.tags:
        found = rules_elements.elements
    if found is None and name.startswith(_FUSED) and _is_of_elements(name.removeprefix(_FUSED).rstrip("_")):
        found = rules_elements.each
    return None if found is None else _fitting(found)


# Operations on whole lists of tensors.
_FUSED = "_foreach_"


def _is_of_elements(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return False
    return all(torch.Tag.pointwise in getattr(packet, kind).tags for kind in packet.overloads() if "out" not in kind)


def _fitting(rule: Rule) -> Rule:
    """Return a rule that is asked about calls on the same examples alone, and whose places lie within the results."""

    def checked(call: Call) -> Sequence[Verdict]:
        if rule not in _APART and len({(place.first, place.num) for _, place in private(call.specs)}) > 1:
            raise Mixes("an example meets other examples")
        verdicts = rule(call)
        for spec, verdict in zip(call.out_specs, verdicts, strict=True):
            if isinstance(verdict, Place) and not verdict.fits(spec.shape):
                raise NoRule("its result has not as many rows as the examples")
        return verdicts

    return checked


# They take tensors of different examples, and put them side by side or leave them so.
_APART = frozenset([rules_shape.joined, rules_shape.stacked, rules_elements.each])
