"""Accounting: guarantees from events, calibration, and the ledger of charges. Never imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privet._lazy import lazily

if TYPE_CHECKING:
    from privet.accounting.calibration import calibrate_noise as calibrate_noise
    from privet.accounting.guarantee import Guarantee as Guarantee
    from privet.accounting.guarantee import guarantee as guarantee_of
    from privet.accounting.ledger import Ledger as Ledger

    __all__ = ["guarantee_of"]  # public, although the import alias differs from the name
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "privet.accounting.calibration": ("calibrate_noise",),
            "privet.accounting.guarantee": ("Guarantee", "guarantee as guarantee_of"),
            "privet.accounting.ledger": ("Ledger",),
        },
    )
