"""How many parameters the named networks have on the named data sets, known without building them and without torch.

A plan is printed before anything heavy is loaded, and its memory estimate needs these counts. They follow from the
networks' definitions; a test builds every network and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_GREY = {"mnist": 0, "fashion_mnist": 0, "fashion_mnist_small": 0}


def _grey(count: int) -> dict[str, int]:
    return dict.fromkeys(_GREY, count)


MODEL_SIZES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "dp_cnn": _grey(0),
    }
)
