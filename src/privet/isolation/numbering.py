"""What is known of whole numbers in tensors: that they count places, or number the places along an axis."""

from __future__ import annotations

from privet.isolation.call import Call
from privet.isolation.place import Spec


def count(call: Call) -> None:
    """Remember of a fresh vector that it counts its own places."""
    start = call.arg("start") if call.has("start") else 0
    step = call.arg("step") if call.has("step") else 1
    if start == 0 and isinstance(step, int):
        call.out_specs[0].iota = (0, step)


# Which result numbers places along an axis.
_NUMBERING = {"topk": 1, "sort": 1, "argmax": 0, "argmin": 0, "max": 1, "min": 1, "median": 1, "kthvalue": 1, "mode": 1}
_KEEPING = frozenset(
    [
        "view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "transpose", "t", "permute", "slice", "select",
        "expand", "clone", "detach", "alias", "_to_copy", "unbind", "split", "index", "index_select",
    ]
)  # fmt: skip


def limit(call: Call) -> None:
    """Remember of results that their numbers are whole, not negative and below a bound: they number places."""
    first = call.args[0] if call.args else None
    if call.name in ("cat", "stack"):
        _limit_joined(call)
    if not isinstance(first, Spec):
        return
    number = _NUMBERING.get(call.name)
    if number is not None and first.ndim and len(call.out_specs) > number:
        axis = call.arg("dim")
        if isinstance(axis, int):
            call.out_specs[number].below = first.shape[axis]
    elif call.name in _KEEPING and first.below is not None and not first.was_written:
        for out in call.out_specs:
            out.below = first.below


def _limit_joined(call: Call) -> None:
    bounds = [None if spec.was_written else spec.below for spec in call.specs]
    known = [bound for bound in bounds if bound is not None]
    if known and len(known) == len(bounds):
        call.out_specs[0].below = max(known)


def keep_counting(call: Call, name: str) -> None:
    """A vector that counts its places still does after it was reshaped, copied or moved."""
    specs = call.specs
    if len(specs) != 1 or specs[0].iota is None or len(call.out_specs) != 1:
        return
    (spec,), (out,) = specs, call.out_specs
    assert spec.iota is not None
    axis, step = spec.iota
    if name in ("_to_copy", "clone", "detach", "alias", "lift_fresh"):
        out.iota = (axis, step)
    elif name in ("view", "unsqueeze", "_unsafe_view", "reshape", "squeeze", "expand"):
        long = [number for number, size in enumerate(out.shape) if size == spec.shape[axis]]
        others = [size for number, size in enumerate(out.shape) if number not in long[:1]]
        if long and all(size == 1 for size in others):
            out.iota = (long[0], step)
