"""Values that the guarantee does not cover, kept apart by type.

The mean loss, the share of clipped examples and the true batch size are exact functions of private data. They are
collected only when somebody asks for them, go nowhere but to the receiver that was handed in, and never into the
ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Unprotected:
    """Diagnostics of one logical step. Not private: publish them only for public data.

    The clipped share counts the examples that the rule held back in any group: shortened by a threshold, dropped above
    a cutoff, normalised. An empty batch has no mean loss and no clipped share.
    """

    step: int
    mean_loss: float | None
    clipped_share: float | None
    batch_size: int


Receiver = Callable[[Unprotected], None]
