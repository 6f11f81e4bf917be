"""Noise pieces: the distribution of the noise on a clipped sum."""

from __future__ import annotations

from privet.mechanism.ablations import NoNoise
from privet.mechanism.adaptive_noise import AdaptiveGaussian, PastGradients, ReleasedSquares
from privet.mechanism.correlated_noise import BandedGaussian, BandedInverseGaussian
from privet.mechanism.laplace import BlockL2, L2Laplace, ProductLaplace
from privet.mechanism.noise import Gaussian
from privet.mechanism.optimal_laplace import optimal_block_l2, optimal_product_laplace
from privet.mechanism.shaped_noise import EllipticalGaussian, GroupwiseGaussian

__all__ = [
    "AdaptiveGaussian",
    "BandedGaussian",
    "BandedInverseGaussian",
    "BlockL2",
    "EllipticalGaussian",
    "Gaussian",
    "GroupwiseGaussian",
    "L2Laplace",
    "NoNoise",
    "PastGradients",
    "ProductLaplace",
    "ReleasedSquares",
    "optimal_block_l2",
    "optimal_product_laplace",
]
