"""Messages between coordinator and parties: values of the kept coordinates, and the seed of the masks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from privet.mechanism.executed import ExecutedRound

Values = NDArray[np.float32]


class Outcome(Enum):
    """Kind of a party's answer.

    CONTRIBUTED: the values are the contribution.
    NEEDS_MODEL: the party lacks the model that the broadcast refers to; nothing was charged.
    SPENT: the party's ledger has no rounds left; nothing was charged.
    """

    CONTRIBUTED = "contributed"
    NEEDS_MODEL = "needs_model"
    SPENT = "spent"


@dataclass(frozen=True, kw_only=True, eq=False)
class Broadcast:
    """The coordinator's message at the start of a round. Public.

    Attributes:
        round: Number of the round, from 0.
        agreement: Fingerprint of the agreement.
        mask_seed: The seed of the masks.
        since: The round whose model the broadcast refers to: the values are the weights of all coordinates that any
            round since then kept. None if the values are all weights.
        values: The weights.
    """

    round: int
    agreement: str
    mask_seed: int
    since: int | None
    values: Values


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """A party's message at the end of a round. Visible to the coordinator.

    Attributes:
        round: Number of the answered round.
        agreement: Fingerprint of the agreement.
        mask_seed: The seed of the masks.
        outcome: Kind of the answer.
        values: One number per kept coordinate of the round, in order; empty unless ``CONTRIBUTED``.
        done: Report of each step of the party's own session, in order; empty if the coordinator adds the noise.
    """

    round: int
    agreement: str
    mask_seed: int
    outcome: Outcome
    values: Values
    done: tuple[ExecutedRound, ...] = ()
