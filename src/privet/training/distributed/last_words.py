"""What a rank that stops leaves for the others where it cannot meet them: in the store through which they found it.

Ranks of a sharded model gather parameters between their meetings. A rank that failed there cannot wait for a meeting:
the others wait for its parameters. It leaves its words and goes; its end closes its connections, and the others, whose
messages fail then, find the words.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from torch import distributed


@dataclass(frozen=True, kw_only=True)
class Words:
    """Why a rank stopped.

    Attributes:
        rank: The rank that left the words.
        kind: The class of the error.
        told: What the error says.
        is_lost: Whether the rank only found that another one was gone.
    """

    rank: int
    kind: str
    told: str
    is_lost: bool


class LastWords:
    """The place in the store where the ranks of one run leave words.

    Guarantee: the words of the rank that leaves them first stay, and every rank that looks afterwards finds those.
    Edge cases: where the process that keeps the store is gone, a rank finds its own words alone.
    """

    def __init__(self, rank: int) -> None:
        """Find the place; every rank opens its runs in the same order, and each run has a place of its own."""
        self._store = distributed.distributed_c10d._get_default_store()
        self._name = f"privet/stopped/{self._store.add(f'privet/runs/{rank}', 1)}"

    def leave(self, words: Words) -> Words:
        """Leave words, unless there are some; return those that are there."""
        try:
            found = self._store.compare_set(self._name, "", json.dumps(vars(words)))
        except RuntimeError:  # the store went with its process
            return words
        return Words(**json.loads(found))
