"""The registry of all pieces, one line per piece, grouped by family.

This is the only list: it gives the names of pieces in files and recipes, and the contract suites test every class of
it. The suites fail for a class of the package that implements a protocol of a family and is not listed here, and for a
listed class without a member in its suite. No import registers a class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from privet.mechanism.ablations import NoNoise, Unclipped
from privet.mechanism.adaptive_noise import AdaptiveGaussian, Learning, PastGradients, ReleasedSquares
from privet.mechanism.balls_in_bins import BallsInBins
from privet.mechanism.changing_clipping import AdaptiveQuantile, Scheduled
from privet.mechanism.clipping import Automatic, Clipping, KeepOrDrop, PerSampleAdaptive, Threshold
from privet.mechanism.correlated_noise import BandedGaussian, BandedInverseGaussian
from privet.mechanism.cyclic_poisson import CyclicPoisson
from privet.mechanism.epoch_sampling import Cyclic, Shuffle
from privet.mechanism.geometry import Diagonal, Factored, Geometry, Isotropic, PerGroup
from privet.mechanism.granularity import Blocks, Coordinates, Granularity, Rows
from privet.mechanism.grouping import ByName, Grouping, OneGroup, PerLayer, PerParameter
from privet.mechanism.laplace import BlockL2, L2Laplace, ProductLaplace
from privet.mechanism.mask_rates import Constant, Cosine, GradualCooling, Linear, RateSchedule
from privet.mechanism.masking import FrozenMask, Mask, NoMask, RandomMask, SharedRandomMask
from privet.mechanism.noise import Gaussian, Noise
from privet.mechanism.persons import BoundedPersons, SampledPersons
from privet.mechanism.release_masks import ChosenMask, RankedMask
from privet.mechanism.sampling import FixedSize, FullBatch, Poisson, Sampling
from privet.mechanism.shaped_noise import EllipticalGaussian, GroupwiseGaussian
from privet.mechanism.truncated import TruncatedPoisson


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """One family of pieces.

    Attributes:
        protocol: The protocol of the family.
        kinds: The classes, by their names in files.
    """

    protocol: type[Any]
    kinds: Mapping[str, type[Any]]


SAMPLERS = Pieces(
    protocol=Sampling,
    kinds={
        "poisson": Poisson,
        "truncated_poisson": TruncatedPoisson,
        "fixed_size": FixedSize,
        "full_batch": FullBatch,
        "shuffle": Shuffle,
        "cyclic": Cyclic,
        "sampled_persons": SampledPersons,
        "bounded_persons": BoundedPersons,
        "cyclic_poisson": CyclicPoisson,
        "balls_in_bins": BallsInBins,
    },
)
CLIPPINGS = Pieces(
    protocol=Clipping,
    kinds={
        "threshold": Threshold,
        "keep_or_drop": KeepOrDrop,
        "automatic": Automatic,
        "per_sample_adaptive": PerSampleAdaptive,
        "adaptive_quantile": AdaptiveQuantile,
        "scheduled": Scheduled,
        "unclipped": Unclipped,
    },
)
NOISES = Pieces(
    protocol=Noise,
    kinds={
        "gaussian": Gaussian,
        "none": NoNoise,
        "elliptical_gaussian": EllipticalGaussian,
        "groupwise_gaussian": GroupwiseGaussian,
        "l2_laplace": L2Laplace,
        "product_laplace": ProductLaplace,
        "block_l2": BlockL2,
        "adaptive_gaussian": AdaptiveGaussian,
        "banded_gaussian": BandedGaussian,
        "banded_inverse_gaussian": BandedInverseGaussian,
    },
)
GEOMETRIES = Pieces(
    protocol=Geometry,
    kinds={"isotropic": Isotropic, "diagonal": Diagonal, "factored": Factored, "per_group": PerGroup},
)
LEARNINGS = Pieces(
    protocol=Learning,
    kinds={"released_squares": ReleasedSquares, "past_gradients": PastGradients},
)
GROUPINGS = Pieces(
    protocol=Grouping,
    kinds={"one_group": OneGroup, "per_layer": PerLayer, "per_parameter": PerParameter, "by_name": ByName},
)
MASKS = Pieces(
    protocol=Mask,
    kinds={
        "none": NoMask,
        "random": RandomMask,
        "shared_random": SharedRandomMask,
        "ranked": RankedMask,
        "frozen": FrozenMask,
        "chosen": ChosenMask,
    },
)
GRANULARITIES = Pieces(
    protocol=Granularity,
    kinds={"coordinates": Coordinates, "rows": Rows, "blocks": Blocks},
)
RATE_SCHEDULES = Pieces(
    protocol=RateSchedule,
    kinds={"constant": Constant, "linear": Linear, "cosine": Cosine, "gradual_cooling": GradualCooling},
)
