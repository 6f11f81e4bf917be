"""privet: training neural networks with differential privacy, with a guarantee that is known before any data is read.

Names are looked up on first use, so ``import privet`` is quick and the accounting half never loads torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "Adjacency": "privet.mechanism.terms",
    "Unit": "privet.mechanism.terms",
    "Release": "privet.mechanism.terms",
    "Poisson": "privet.mechanism.sampling",
    "FullBatch": "privet.mechanism.sampling",
    "Shuffle": "privet.mechanism.sampling",
    "Cyclic": "privet.mechanism.cyclic",
    "FixedSize": "privet.mechanism.fixed_size",
    "TruncatedPoisson": "privet.mechanism.truncated",
    "Truncation": "privet.mechanism.truncated",
    "OneGroup": "privet.mechanism.grouping",
    "PerLayer": "privet.mechanism.grouping",
    "PerParameter": "privet.mechanism.grouping",
    "ByName": "privet.mechanism.grouping",
    "Threshold": "privet.mechanism.clipping",
    "KeepOrDrop": "privet.mechanism.clipping_rules",
    "Automatic": "privet.mechanism.clipping_rules",
    "PerSampleAdaptive": "privet.mechanism.clipping_rules",
    "AdaptiveGaussian": "privet.mechanism.adaptive_noise",
    "AdaptiveQuantile": "privet.mechanism.adaptive_clipping",
    "Scheduled": "privet.mechanism.scheduled_clipping",
    "Gaussian": "privet.mechanism.noise",
    "EllipticalGaussian": "privet.mechanism.shaped_noise",
    "GroupwiseGaussian": "privet.mechanism.shaped_noise",
    "L2Laplace": "privet.mechanism.laplace",
    "ProductLaplace": "privet.mechanism.laplace",
    "BlockL2": "privet.mechanism.laplace",
    "optimal_block_l2": "privet.mechanism.optimal_laplace",
    "optimal_product_laplace": "privet.mechanism.optimal_laplace",
    "Isotropic": "privet.mechanism.geometry",
    "PastGradients": "privet.mechanism.adaptive_noise",
    "PerGroup": "privet.mechanism.geometry",
    "ReleasedSquares": "privet.mechanism.adaptive_noise",
    "Factored": "privet.mechanism.geometry",
    "Diagonal": "privet.mechanism.geometry",
    "public_geometry": "privet.training.geometry",
    "release_geometry": "privet.training.geometry",
    "PrivateNormalisation": "privet.training.normalisation",
    "NoMask": "privet.mechanism.masking",
    "RandomMask": "privet.mechanism.masking",
    "RankedMask": "privet.mechanism.masking",
    "FrozenMask": "privet.mechanism.masking",
    "ChosenMask": "privet.mechanism.chosen_mask",
    "SharedRandomMask": "privet.mechanism.shared_mask",
    "Coordinates": "privet.mechanism.granularity",
    "Rows": "privet.mechanism.granularity",
    "Blocks": "privet.mechanism.granularity",
    "Constant": "privet.mechanism.schedules",
    "Linear": "privet.mechanism.schedules",
    "Cosine": "privet.mechanism.schedules",
    "GradualCooling": "privet.mechanism.schedules",
    "Unclipped": "privet.mechanism.ablations",
    "NoNoise": "privet.mechanism.ablations",
    "Guarantee": "privet.accounting.guarantee",
    "Ledger": "privet.accounting.ledger",
    "StronglyConvexDescent": "privet.mechanism.descent",
    "Plan": "privet.plan",
    "NoisyCGD": "privet.convex.descent",
    "ConvexReluClassifier": "privet.convex.estimator",
    "SufficientStatistics": "privet.convex.statistics",
    "BookKeeping": "privet.gradients.engines.bookkeeping",
    "Functional": "privet.gradients.engines.functional",
    "replace_batchnorm": "privet.gradients.engines.support",
    "privatize": "privet.training.session",
    "Session": "privet.training.session",
    "Eager": "privet.training.replay",
    "CudaGraph": "privet.training.replay",
    "Compiled": "privet.training.replay",
    "Step": "privet.training.step",
    "preflight": "privet.training.preflight",
    "Check": "privet.isolation.watch",
    "Waiver": "privet.isolation.watch",
    "suggest_physical_batch": "privet.training.physical_batch",
    "Unprotected": "privet.training.telemetry",
    "ExponentialAverage": "privet.training.averaging",
    "OneItemPerPerson": "privet.training.units",
    "Views": "privet.training.augmentation",
    "ShiftAndFlip": "privet.training.augmentation",
    "mean_over_views": "privet.training.augmentation",
    "DPAdam": "privet.training.optimizers",
    "DPAdamW": "privet.training.optimizers",
    "LearningRate": "privet.training.schedules",
    "CosineDecay": "privet.training.schedules",
    "LinearDecay": "privet.training.schedules",
    "StepDecay": "privet.training.schedules",
    "PrivateClassifier": "privet.training.estimator",
    "PrivateRegressor": "privet.training.estimator",
    "sgd": "privet.training.estimator",
    "PrivetError": "privet.errors",
}

__all__ = sorted([*_WHERE, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'privet' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from privet.accounting.guarantee import Guarantee as Guarantee
    from privet.accounting.ledger import Ledger as Ledger
    from privet.convex.descent import NoisyCGD as NoisyCGD
    from privet.convex.estimator import ConvexReluClassifier as ConvexReluClassifier
    from privet.convex.statistics import SufficientStatistics as SufficientStatistics
    from privet.errors import PrivetError as PrivetError
    from privet.gradients.engines.bookkeeping import BookKeeping as BookKeeping
    from privet.gradients.engines.functional import Functional as Functional
    from privet.gradients.engines.support import replace_batchnorm as replace_batchnorm
    from privet.isolation.watch import Check as Check
    from privet.isolation.watch import Waiver as Waiver
    from privet.mechanism.ablations import NoNoise as NoNoise
    from privet.mechanism.ablations import Unclipped as Unclipped
    from privet.mechanism.adaptive_clipping import AdaptiveQuantile as AdaptiveQuantile
    from privet.mechanism.adaptive_noise import AdaptiveGaussian as AdaptiveGaussian
    from privet.mechanism.adaptive_noise import PastGradients as PastGradients
    from privet.mechanism.adaptive_noise import ReleasedSquares as ReleasedSquares
    from privet.mechanism.chosen_mask import ChosenMask as ChosenMask
    from privet.mechanism.clipping import Threshold as Threshold
    from privet.mechanism.clipping_rules import Automatic as Automatic
    from privet.mechanism.clipping_rules import KeepOrDrop as KeepOrDrop
    from privet.mechanism.clipping_rules import PerSampleAdaptive as PerSampleAdaptive
    from privet.mechanism.cyclic import Cyclic as Cyclic
    from privet.mechanism.descent import StronglyConvexDescent as StronglyConvexDescent
    from privet.mechanism.fixed_size import FixedSize as FixedSize
    from privet.mechanism.geometry import Diagonal as Diagonal
    from privet.mechanism.geometry import Factored as Factored
    from privet.mechanism.geometry import Isotropic as Isotropic
    from privet.mechanism.geometry import PerGroup as PerGroup
    from privet.mechanism.granularity import Blocks as Blocks
    from privet.mechanism.granularity import Coordinates as Coordinates
    from privet.mechanism.granularity import Rows as Rows
    from privet.mechanism.grouping import ByName as ByName
    from privet.mechanism.grouping import OneGroup as OneGroup
    from privet.mechanism.grouping import PerLayer as PerLayer
    from privet.mechanism.grouping import PerParameter as PerParameter
    from privet.mechanism.laplace import BlockL2 as BlockL2
    from privet.mechanism.laplace import L2Laplace as L2Laplace
    from privet.mechanism.laplace import ProductLaplace as ProductLaplace
    from privet.mechanism.masking import FrozenMask as FrozenMask
    from privet.mechanism.masking import NoMask as NoMask
    from privet.mechanism.masking import RandomMask as RandomMask
    from privet.mechanism.masking import RankedMask as RankedMask
    from privet.mechanism.noise import Gaussian as Gaussian
    from privet.mechanism.optimal_laplace import optimal_block_l2 as optimal_block_l2
    from privet.mechanism.optimal_laplace import optimal_product_laplace as optimal_product_laplace
    from privet.mechanism.sampling import FullBatch as FullBatch
    from privet.mechanism.sampling import Poisson as Poisson
    from privet.mechanism.sampling import Shuffle as Shuffle
    from privet.mechanism.scheduled_clipping import Scheduled as Scheduled
    from privet.mechanism.schedules import Constant as Constant
    from privet.mechanism.schedules import Cosine as Cosine
    from privet.mechanism.schedules import GradualCooling as GradualCooling
    from privet.mechanism.schedules import Linear as Linear
    from privet.mechanism.shaped_noise import EllipticalGaussian as EllipticalGaussian
    from privet.mechanism.shaped_noise import GroupwiseGaussian as GroupwiseGaussian
    from privet.mechanism.shared_mask import SharedRandomMask as SharedRandomMask
    from privet.mechanism.terms import Adjacency as Adjacency
    from privet.mechanism.terms import Release as Release
    from privet.mechanism.terms import Unit as Unit
    from privet.mechanism.truncated import TruncatedPoisson as TruncatedPoisson
    from privet.mechanism.truncated import Truncation as Truncation
    from privet.plan import Plan as Plan
    from privet.training.augmentation import ShiftAndFlip as ShiftAndFlip
    from privet.training.augmentation import Views as Views
    from privet.training.augmentation import mean_over_views as mean_over_views
    from privet.training.averaging import ExponentialAverage as ExponentialAverage
    from privet.training.estimator import PrivateClassifier as PrivateClassifier
    from privet.training.estimator import PrivateRegressor as PrivateRegressor
    from privet.training.estimator import sgd as sgd
    from privet.training.geometry import public_geometry as public_geometry
    from privet.training.geometry import release_geometry as release_geometry
    from privet.training.normalisation import PrivateNormalisation as PrivateNormalisation
    from privet.training.optimizers import DPAdam as DPAdam
    from privet.training.optimizers import DPAdamW as DPAdamW
    from privet.training.physical_batch import suggest_physical_batch as suggest_physical_batch
    from privet.training.preflight import preflight as preflight
    from privet.training.replay import Compiled as Compiled
    from privet.training.replay import CudaGraph as CudaGraph
    from privet.training.replay import Eager as Eager
    from privet.training.schedules import CosineDecay as CosineDecay
    from privet.training.schedules import LearningRate as LearningRate
    from privet.training.schedules import LinearDecay as LinearDecay
    from privet.training.schedules import StepDecay as StepDecay
    from privet.training.session import Session as Session
    from privet.training.session import privatize as privatize
    from privet.training.step import Step as Step
    from privet.training.telemetry import Unprotected as Unprotected
    from privet.training.units import OneItemPerPerson as OneItemPerPerson
