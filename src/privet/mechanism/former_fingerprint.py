"""Format 1 of the plan fingerprint, the SHA-256 of a ``repr``, for run folders that were started with it.

This module is frozen and does not follow later changes of the pieces. The table lists the fields of every piece at the
end of format 1. A piece that is not in the table, or that uses a later field, has no fingerprint in format 1.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from enum import Enum
from typing import Any

FIELDS: Mapping[str, str] = {
    "Plan": "sampling clipping noise delta adjacency unit grouping mask release",
    "Poisson": "rate steps expected_batch_size",
    "TruncatedPoisson": "rate steps dataset_size max_batch_size truncation",
    "FixedSize": "dataset_size batch_size steps",
    "FullBatch": "steps expected_batch_size",
    "Shuffle": "batches epochs expected_batch_size",
    "Cyclic": "batches epochs expected_batch_size secret_partition",
    "Threshold": "norm",
    "KeepOrDrop": "norm cutoff",
    "Automatic": "norm stability",
    "PerSampleAdaptive": "norm weakness",
    "AdaptiveQuantile": "norm count_noise_std quantile learning_rate",
    "Scheduled": "parts switches",
    "Unclipped": "noise_unit",
    "Gaussian": "noise_multiplier",
    "NoNoise": "",
    "EllipticalGaussian": "geometry preconditioning noise_multiplier",
    "GroupwiseGaussian": "noise_multiplier",
    "L2Laplace": "num_coordinates noise_multiplier",
    "ProductLaplace": "sizes noise_multiplier",
    "BlockL2": "block_of coefficients noise_multiplier",
    "Isotropic": "",
    "Diagonal": "coordinate_units",
    "Factored": "rows columns",
    "PerGroup": "group_units",
    "AdaptiveGaussian": "learning preconditioning power floor noise_multiplier",
    "ReleasedSquares": "share every memory",
    "PastGradients": "first every decay floor_errors",
    "OneGroup": "",
    "PerLayer": "",
    "PerParameter": "",
    "ByName": "parts",
    "NoMask": "",
    "RandomMask": "schedule granularity refresh_every",
    "SharedRandomMask": "schedule seed granularity refresh_every",
    "RankedMask": "schedule granularity refresh_every",
    "FrozenMask": "rate seed granularity",
    "ChosenMask": "num_coordinates frozen_bits",
    "Coordinates": "",
    "Rows": "",
    "Blocks": "num_rows",
    "Constant": "value",
    "Linear": "first last",
    "Cosine": "first last",
    "GradualCooling": "final",
    "StronglyConvexDescent": "learning_rate ridge gradient_bound smoothness",
}
_APPENDED = {"Plan": ("descent",)}
"""Fields that were appended to the ``repr``, and only if they were given."""


class _Unknown(Exception):
    """Format 1 cannot represent this value."""


def former_fingerprint(plan: Any) -> str | None:
    """Return the fingerprint of a plan in format 1; None if that format cannot represent the plan."""
    try:
        text = _repr(plan)
        if plan.descent is not None:
            text = f"{text} with {_repr(plan.descent)}"
    except _Unknown:
        return None
    return hashlib.sha256(text.encode()).hexdigest()


def _repr(value: Any) -> str:
    if isinstance(value, Enum):
        return f"<{type(value).__name__}.{value.name}: {value.value!r}>"
    if isinstance(value, tuple):
        return f"({', '.join(_repr(item) for item in value)}{',' if len(value) == 1 else ''})"
    if not dataclasses.is_dataclass(value):
        return repr(value)
    name = type(value).__name__
    if name not in FIELDS or not type(value).__module__.startswith("privet."):
        raise _Unknown
    known = FIELDS[name].split()
    for field in dataclasses.fields(value):
        if field.name not in (*known, *_APPENDED.get(name, ())) and not _is_default(field, getattr(value, field.name)):
            raise _Unknown
    return f"{name}({', '.join(f'{field}={_repr(getattr(value, field))}' for field in known)})"


def _is_default(field: dataclasses.Field[Any], value: object) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(field.default_factory() == value)
    return field.default is not dataclasses.MISSING and bool(field.default == value)
