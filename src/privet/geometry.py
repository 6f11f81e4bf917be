"""Geometries of shaped noise, from public data or from a private release."""

from __future__ import annotations

from privet.mechanism.geometry import Diagonal, Factored, Isotropic, PerGroup
from privet.training.private_statistics.private_geometry import public_geometry, release_geometry

__all__ = [
    "Diagonal",
    "Factored",
    "Isotropic",
    "PerGroup",
    "public_geometry",
    "release_geometry",
]
