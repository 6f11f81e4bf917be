"""The pieces of a private step: sampling, clipping, masks and noise, as frozen dataclasses. Never imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privet._lazy import lazily

if TYPE_CHECKING:
    from privet.mechanism.clipping import Clipping as Clipping
    from privet.mechanism.events import compose as compose
    from privet.mechanism.grouping import Grouping as Grouping
    from privet.mechanism.layout import Layout as Layout
    from privet.mechanism.masking import Mask as Mask
    from privet.mechanism.noise import Noise as Noise
    from privet.mechanism.sampling import Sampling as Sampling
    from privet.mechanism.sensitivity import Sensitivity as Sensitivity
    from privet.mechanism.sums import ClippedSum as ClippedSum
    from privet.mechanism.sums import PrivateSum as PrivateSum
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "privet.mechanism.clipping": ("Clipping",),
            "privet.mechanism.events": ("compose",),
            "privet.mechanism.grouping": ("Grouping",),
            "privet.mechanism.layout": ("Layout",),
            "privet.mechanism.masking": ("Mask",),
            "privet.mechanism.noise": ("Noise",),
            "privet.mechanism.sampling": ("Sampling",),
            "privet.mechanism.sensitivity": ("Sensitivity",),
            "privet.mechanism.sums": ("ClippedSum", "PrivateSum"),
        },
    )
