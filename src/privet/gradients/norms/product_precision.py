"""Half precision, and how torch rounds products of single precision on a device, however that was asked for.

torch has two ways to ask (``allow_tf32`` and ``fp32_precision``, which ``TrainingArguments(tf32=True)`` uses), and the
former cannot be read once the latter was used. The latter tells of both.
"""

from __future__ import annotations

from typing import Any

import torch

HALF = (torch.float16, torch.bfloat16)
"""Types that only devices multiply with sums in single precision."""

_CUDA: Any = torch.backends.cuda  # attributes that type checkers do not know
_CUDNN: Any = torch.backends.cudnn


def products_round() -> bool:
    """Whether matrix products may round their factors to tf32."""
    return bool(_CUDA.matmul.fp32_precision == "tf32")


def convolutions_round() -> bool:
    """Whether convolutions, or recurrent layers, may round their factors to tf32."""
    return "tf32" in (_CUDNN.conv.fp32_precision, _CUDNN.rnn.fp32_precision)
