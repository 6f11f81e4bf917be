"""privet: training neural networks with differential privacy, with a guarantee that is known before any data is read.

This module has the names of a usual run; every other piece is in the module of its family, such as ``privet.noise``.
Names and modules are imported on first use, so ``import privet`` is fast and accounting never imports torch.
"""

from __future__ import annotations

from privet._lazy import lazily, moved, names_of_stub

__version__ = "0.2.0"

# Public names and modules: those of the stub.
_NAMES = names_of_stub(__name__)
_WHERE = {name: module for name, (module, _) in _NAMES.items() if module != __name__}
_MODULES = tuple(name for name, (module, _) in _NAMES.items() if module == __name__)

# Names of 0.1 that moved to another module. They will be removed in 0.3.
_FORMER = {
    "augmentation": "mean_over_views ShiftAndFlip Views",
    "clipping": "AdaptiveQuantile Automatic KeepOrDrop PerSampleAdaptive Scheduled Unclipped",
    "convex": "NoisyCGD StronglyConvexDescent SufficientStatistics",
    "engines": "BookKeeping Functional",
    "geometry": "Diagonal Factored Isotropic PerGroup public_geometry release_geometry",
    "grouping": "ByName OneGroup PerLayer PerParameter",
    "launch": "Compiled CudaGraph Eager",
    "masks": "Blocks ChosenMask Coordinates FrozenMask NoMask RandomMask RankedMask Rows SharedRandomMask",
    "noise": "AdaptiveGaussian BlockL2 EllipticalGaussian GroupwiseGaussian L2Laplace NoNoise optimal_block_l2 "
    "optimal_product_laplace PastGradients ProductLaplace ReleasedSquares",
    "optim": "CosineDecay ExponentialAverage LearningRate LinearDecay sgd StepDecay",
    "sampling": "Cyclic FixedSize FullBatch Shuffle TruncatedPoisson Truncation",
    "schedules": "Constant Cosine GradualCooling Linear",
    "training": "Step",
}
_MOVED = {name: module for module, names in _FORMER.items() for name in names.split()}

__all__ = sorted([*_NAMES, "__version__"])
_look_up, _ = lazily(__name__)
__getattr__ = moved(__name__, {name: f"privet.{module}.{name}" for name, module in _MOVED.items()}, otherwise=_look_up)


def __dir__() -> list[str]:
    return __all__
