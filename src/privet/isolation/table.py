"""All rules in one table, by the name of the operation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import torch
from torch._ops import OpOverload

from privet.isolation import rules_axes, rules_elements, rules_index, rules_products, rules_shape
from privet.isolation.call import Rule, name_of

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
        return rules_elements.elements
    return found
