"""Walking torch's autograd graph."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any

Node = Any  # torch's nodes have no common type that can be named


def nodes_behind(starts: Iterable[Node], stop: AbstractSet[Node] = frozenset()) -> set[Node]:
    """Return these nodes and all that lie behind them, without those in ``stop`` and nodes that only they lead to."""
    seen: set[Node] = set()
    queue = list(starts)
    while queue:
        node = queue.pop()
        if node is not None and node not in seen and node not in stop:
            seen.add(node)
            queue.extend(child for child, _ in node.next_functions)
    return seen
