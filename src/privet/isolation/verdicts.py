"""Where the examples lie in the results of one operation, by its rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from privet.isolation.call import Call
from privet.isolation.lines import user_line
from privet.isolation.numbering import count, keep_counting
from privet.isolation.place import Cause, Fault, Mixes, NoRule, Place, Rows, Verdict
from privet.isolation.rules_elements import elements
from privet.isolation.rules_index import TRAVELLING
from privet.isolation.rules_rows import travelling
from privet.isolation.table import rule_of

_VIEWING = frozenset(["view", "unsqueeze", "squeeze", "t", "transpose", "permute", "slice", "detach", "alias"])
_MASKS = (torch.bool, torch.uint8)
# Operations that find the lengths of their results in numbers.
_SIZED = frozenset(["bincount", "_sparse_coo_tensor_with_dims_and_tensors", "sparse_compressed_tensor"])
# Operations whose results have a shape or a type in common with a tensor, and none of its numbers.
FORGETTING = frozenset(
    [
        "empty_like",
        "zeros_like",
        "ones_like",
        "full_like",
        "rand_like",
        "randn_like",
        "randint_like",
        "new_zeros",
        "new_empty",
        "new_ones",
        "new_full",
        "new_empty_strided",
    ]
)


def has_own_length(call: Call) -> bool:
    """Whether lengths of the results depend on numbers of the examples, because rows were chosen by them."""
    specs = call.specs
    if any(spec.has_own_length for spec in specs):  # results of the same lengths
        rule = rule_of(call.operation)
        return rule is elements or call.name in _VIEWING
    if call.name in TRAVELLING or call.name in _SIZED:
        return any(spec.verdict is not None for spec in specs)
    is_masking = call.name in ("index", "_unsafe_index")
    return is_masking and any(spec.dtype in _MASKS and spec.verdict is not None for spec in specs[1:])


def verdicts_of(call: Call) -> Sequence[Verdict]:
    """Return where the examples lie in each result of an operation."""
    known: list[Place | Rows] = []
    fault: Cause | None = None
    for spec in call.specs:
        verdict = spec.verdict
        if isinstance(verdict, Cause):
            if fault is None or (fault.fault is Fault.NO_RULE and verdict.fault is Fault.MIXES):
                fault = verdict
        elif verdict is not None:
            known.append(verdict)
    name = call.name
    if fault is not None:
        return call.everywhere(None if name in FORGETTING else fault)
    if any(isinstance(verdict, Rows) for verdict in known):
        return (
            call.everywhere(None)
            if name in FORGETTING
            else _asked(call, partial(travelling, rule=rule_of(call.operation)))
        )
    if name == "arange":
        count(call)
    if not known:
        keep_counting(call, name)
        return call.everywhere(None)
    first = known[0]
    is_one = isinstance(first, Place) and first.is_single and all(place == first for place in known)
    if is_one and name not in TRAVELLING:
        return call.everywhere(first)  # it cannot mix a single example
    rule = rule_of(call.operation)
    if rule is None:
        return call.everywhere(cause_at(Fault.NO_RULE, call, "it has no rule"))
    return _asked(call, rule)


def _asked(call: Call, rule: Callable[[Call], Sequence[Verdict]]) -> Sequence[Verdict]:
    try:
        return rule(call)
    except Mixes as error:
        return call.everywhere(cause_at(Fault.MIXES, call, str(error)))
    except NoRule as error:
        return call.everywhere(cause_at(Fault.NO_RULE, call, str(error)))


def cause_at(fault: Fault, call: Call, reason: str) -> Cause:
    """Return a fault of an operation, with the line of the user's that asked for it."""
    return Cause(fault, call.name, reason, user_line())
