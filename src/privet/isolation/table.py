"""All rules in one table, by the name of the operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch._ops import OpOverload

from privet.isolation import rules_axes, rules_elements, rules_index, rules_products, rules_shape
from privet.isolation.call import Call, Rule, name_of, private
from privet.isolation.place import Mixes, NoRule, Place, Verdict

RULES: Mapping[str, Rule] = {
    **rules_elements.RULES,
    **rules_axes.RULES,
    **rules_shape.RULES,
    **rules_products.RULES,
    **rules_index.RULES,
}


@lru_cache(maxsize=4096)
def rule_of(operation: OpOverload) -> Rule | None:
    """Return the rule of an operation: by its name, or because torch says that it works on elements."""
    found = RULES.get(name_of(operation))
    if found is None and torch.Tag.pointwise in operation.tags:
        found = rules_elements.elements
    return None if found is None else _fitting(found)


def _fitting(rule: Rule) -> Rule:
    """Return a rule that is asked about calls on the same examples alone, and whose places lie within the results."""

    def checked(call: Call) -> Sequence[Verdict]:
        if rule not in _JOINING and len({(place.first, place.num) for _, place in private(call.specs)}) > 1:
            raise Mixes("an example meets other examples")
        verdicts = rule(call)
        for spec, verdict in zip(call.out_specs, verdicts, strict=True):
            if isinstance(verdict, Place) and not verdict.fits(spec.shape):
                raise NoRule("its result has not as many rows as the examples")
        return verdicts

    return checked


# They take tensors of different examples, and put them side by side.
_JOINING = frozenset([rules_shape.joined, rules_shape.stacked])
