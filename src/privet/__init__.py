"""privet: training neural networks with differential privacy, with a guarantee that is known before any data is read.

This module has the names of a usual run; every other piece is in the module of its family, such as ``privet.noise``.
Names and modules are imported on first use, so ``import privet`` is fast and accounting never imports torch.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_WHERE = {
    "Adjacency": "privet.vocabulary",
    "Check": "privet.isolation.watch",
    "ConvexReluClassifier": "privet.convex.estimator",
    "DPAdam": "privet.training.optimizers",
    "DPAdamW": "privet.training.optimizers",
    "Gaussian": "privet.mechanism.noise",
    "Guarantee": "privet.accounting.guarantee",
    "Ledger": "privet.accounting.ledger",
    "OneItemPerPerson": "privet.training.units",
    "Performance": "privet.training.performance",
    "Plan": "privet.plan",
    "Poisson": "privet.mechanism.sampling",
    "preflight": "privet.training.preflight.preflight",
    "PrivateClassifier": "privet.training.classifier",
    "PrivateNormalisation": "privet.training.private_statistics.normalisation",
    "PrivateRegressor": "privet.training.classifier",
    "privatize": "privet.training.start",
    "PrivetError": "privet.errors",
    "Release": "privet.vocabulary",
    "replace_batchnorm": "privet.gradients.engines.support",
    "Session": "privet.training.session",
    "suggest_physical_batch": "privet.training.physical_batch",
    "Threshold": "privet.mechanism.clipping",
    "Unit": "privet.vocabulary",
    "Unprotected": "privet.training.telemetry",
    "Waiver": "privet.isolation.watch",
}

# Public modules: attributes of the package, imported on first use.
_MODULES = (
    "accounting",
    "attacks",
    "audit",
    "augmentation",
    "clipping",
    "convex",
    "datasets",
    "effects",
    "engines",
    "errors",
    "federated",
    "geometry",
    "grouping",
    "isolation",
    "launch",
    "masks",
    "mechanism",
    "models",
    "noise",
    "optim",
    "reports",
    "runs",
    "sampling",
    "schedules",
    "training",
)

# Names of 0.1 that moved to another module. They will be removed in 0.3.
_MOVED = {
    "mean_over_views": "augmentation",
    "ShiftAndFlip": "augmentation",
    "Views": "augmentation",
    "AdaptiveQuantile": "clipping",
    "Automatic": "clipping",
    "KeepOrDrop": "clipping",
    "PerSampleAdaptive": "clipping",
    "Scheduled": "clipping",
    "Unclipped": "clipping",
    "NoisyCGD": "convex",
    "SufficientStatistics": "convex",
    "BookKeeping": "engines",
    "Functional": "engines",
    "Diagonal": "geometry",
    "Factored": "geometry",
    "Isotropic": "geometry",
    "PerGroup": "geometry",
    "public_geometry": "geometry",
    "release_geometry": "geometry",
    "ByName": "grouping",
    "OneGroup": "grouping",
    "PerLayer": "grouping",
    "PerParameter": "grouping",
    "Compiled": "launch",
    "CudaGraph": "launch",
    "Eager": "launch",
    "Blocks": "masks",
    "ChosenMask": "masks",
    "Coordinates": "masks",
    "FrozenMask": "masks",
    "NoMask": "masks",
    "RandomMask": "masks",
    "RankedMask": "masks",
    "Rows": "masks",
    "SharedRandomMask": "masks",
    "StronglyConvexDescent": "convex",
    "AdaptiveGaussian": "noise",
    "BlockL2": "noise",
    "EllipticalGaussian": "noise",
    "GroupwiseGaussian": "noise",
    "L2Laplace": "noise",
    "NoNoise": "noise",
    "optimal_block_l2": "noise",
    "optimal_product_laplace": "noise",
    "PastGradients": "noise",
    "ProductLaplace": "noise",
    "ReleasedSquares": "noise",
    "CosineDecay": "optim",
    "ExponentialAverage": "optim",
    "LearningRate": "optim",
    "LinearDecay": "optim",
    "sgd": "optim",
    "StepDecay": "optim",
    "Cyclic": "sampling",
    "FixedSize": "sampling",
    "FullBatch": "sampling",
    "Shuffle": "sampling",
    "TruncatedPoisson": "sampling",
    "Truncation": "sampling",
    "Constant": "schedules",
    "Cosine": "schedules",
    "GradualCooling": "schedules",
    "Linear": "schedules",
    "Step": "training",
}

__all__ = sorted([*_WHERE, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"privet.{name}")
    if name in _MOVED:
        instead = f"privet.{_MOVED[name]}"
        warnings.warn(
            f"privet.{name} is now {instead}.{name}; the old name works in 0.2 and will be removed in 0.3.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(instead), name)
    raise AttributeError(f"module 'privet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from privet import accounting as accounting
    from privet import attacks as attacks
    from privet import audit as audit
    from privet import augmentation as augmentation
    from privet import clipping as clipping
    from privet import convex as convex
    from privet import datasets as datasets
    from privet import effects as effects
    from privet import engines as engines
    from privet import errors as errors
    from privet import federated as federated
    from privet import geometry as geometry
    from privet import grouping as grouping
    from privet import isolation as isolation
    from privet import launch as launch
    from privet import masks as masks
    from privet import mechanism as mechanism
    from privet import models as models
    from privet import noise as noise
    from privet import optim as optim
    from privet import reports as reports
    from privet import runs as runs
    from privet import sampling as sampling
    from privet import schedules as schedules
    from privet import training as training
    from privet.accounting.guarantee import Guarantee as Guarantee
    from privet.accounting.ledger import Ledger as Ledger
    from privet.convex.estimator import ConvexReluClassifier as ConvexReluClassifier
    from privet.errors import PrivetError as PrivetError
    from privet.gradients.engines.support import replace_batchnorm as replace_batchnorm
    from privet.isolation.watch import Check as Check
    from privet.isolation.watch import Waiver as Waiver
    from privet.mechanism.clipping import Threshold as Threshold
    from privet.mechanism.noise import Gaussian as Gaussian
    from privet.mechanism.sampling import Poisson as Poisson
    from privet.plan import Plan as Plan
    from privet.training.classifier import PrivateClassifier as PrivateClassifier
    from privet.training.classifier import PrivateRegressor as PrivateRegressor
    from privet.training.optimizers import DPAdam as DPAdam
    from privet.training.optimizers import DPAdamW as DPAdamW
    from privet.training.performance import Performance as Performance
    from privet.training.physical_batch import suggest_physical_batch as suggest_physical_batch
    from privet.training.preflight.preflight import preflight as preflight
    from privet.training.private_statistics.normalisation import PrivateNormalisation as PrivateNormalisation
    from privet.training.session import Session as Session
    from privet.training.start import privatize as privatize
    from privet.training.telemetry import Unprotected as Unprotected
    from privet.training.units import OneItemPerPerson as OneItemPerPerson
    from privet.vocabulary import Adjacency as Adjacency
    from privet.vocabulary import Release as Release
    from privet.vocabulary import Unit as Unit
