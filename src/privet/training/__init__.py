"""The private training loop, its guards, its checkpoints and its estimators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privet._lazy import lazily

if TYPE_CHECKING:
    from privet.training.session import Session as Session
    from privet.training.session import Step as Step
    from privet.training.start import privatize as privatize
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "privet.training.start": ("privatize",),
            "privet.training.session": ("Session", "Step"),
        },
    )
