"""What travels: values of the kept coordinates, and one number from which both sides know their places."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from privet.mechanism.executed import ExecutedRound

Values = NDArray[np.float32]


class Outcome(Enum):
    """How a party answered.

    CONTRIBUTED: the values are its contribution.
    NEEDS_MODEL: it does not hold the model the broadcast builds on; nothing was charged.
    SPENT: its ledger has no rounds left; nothing was charged.
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
        since: The round whose model the values build on: they are the weights of the coordinates that were kept in any
            round from then on. None if they are all weights.
        values: The weights.
    """

    round: int
    agreement: str
    mask_seed: int
    since: int | None
    values: Values


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """A party's message at the end of a round. Seen by the coordinator.

    Attributes:
        round: Number of the round it answers.
        agreement: Fingerprint of the agreement.
        mask_seed: The seed of the masks.
        outcome: How it answers.
        values: One number for each coordinate kept in the round, in order; empty unless it contributes.
        done: What each step of the party's own session did, in order; empty where the coordinator adds the noise.
    """

    round: int
    agreement: str
    mask_seed: int
    outcome: Outcome
    values: Values
    done: tuple[ExecutedRound, ...] = ()
