"""The fingerprint that format 1 gave a plan: the SHA-256 of its ``repr``, for folders that were begun under it.

Frozen: nothing here follows the pieces of today. The table is what pieces were made of when format 1 ended; a piece
that is not in it, or that uses a field which came later, had no fingerprint in that format.
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
_APART = {"Plan": ("descent",)}
"""Fields that were told behind the rest, and only where they were given."""


class _Unknown(Exception):
    """Format 1 had no word for this."""


def former_fingerprint(plan: Any) -> str | None:
    """Return the fingerprint of a plan in format 1; None if that format could not hold it."""
    try:
        told = _told(plan)
        if plan.descent is not None:
            told = f"{told} with {_told(plan.descent)}"
    except _Unknown:
        return None
    return hashlib.sha256(told.encode()).hexdigest()


def _told(value: Any) -> str:
    if isinstance(value, Enum):
        return f"<{type(value).__name__}.{value.name}: {value.value!r}>"
    if isinstance(value, tuple):
        return f"({', '.join(_told(item) for item in value)}{',' if len(value) == 1 else ''})"
    if not dataclasses.is_dataclass(value):
        return repr(value)
    name = type(value).__name__
    if name not in FIELDS or not type(value).__module__.startswith("privet."):
        raise _Unknown
    known = FIELDS[name].split()
    for field in dataclasses.fields(value):
        if field.name not in (*known, *_APART.get(name, ())) and not _is_default(field, getattr(value, field.name)):
            raise _Unknown
    return f"{name}({', '.join(f'{field}={_told(getattr(value, field))}' for field in known)})"


def _is_default(field: dataclasses.Field[Any], value: object) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(field.default_factory() == value)
    return field.default is not dataclasses.MISSING and bool(field.default == value)
