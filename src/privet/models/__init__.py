"""Networks of the published experiments: plain modules, default initialisation, no layer that mixes examples.

Names are resolved when they are first used, so that the sizes of named networks cost no import of torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privet.models.convex_losses import ConvexLoss as ConvexLoss
    from privet.models.convex_losses import OneVsRestLogistic as OneVsRestLogistic
    from privet.models.convex_losses import RadialSquared as RadialSquared
    from privet.models.convex_losses import SoftmaxCrossEntropy as SoftmaxCrossEntropy
    from privet.models.convex_relu import BoundedFeatures as BoundedFeatures
    from privet.models.convex_relu import ConvexRelu as ConvexRelu
    from privet.models.convex_relu import UnitFeatures as UnitFeatures
    from privet.models.convolutional import clipping_mnist_cnn as clipping_mnist_cnn
    from privet.models.convolutional import dp_cnn as dp_cnn
    from privet.models.convolutional import dp_cnn_small as dp_cnn_small
    from privet.models.convolutional import h_cnn as h_cnn
    from privet.models.convolutional import h_cnn_small as h_cnn_small
    from privet.models.convolutional import lenet5 as lenet5
    from privet.models.convolutional import tutorial_cnn as tutorial_cnn
    from privet.models.dense import logistic_regression as logistic_regression
    from privet.models.dense import mlp as mlp
    from privet.models.dense import mlp_64_64 as mlp_64_64
    from privet.models.dense import mlp_1000 as mlp_1000
    from privet.models.named_models import MODELS as MODELS
    from privet.models.named_models import ModelFactory as ModelFactory
    from privet.models.named_models import ModelSpec as ModelSpec
    from privet.models.named_models import count_parameters as count_parameters
    from privet.models.named_models import find_model as find_model
    from privet.models.vision_transformer import small_vit as small_vit

_HOMES = {
    "BoundedFeatures": "convex_relu",
    "ConvexLoss": "convex_losses",
    "ConvexRelu": "convex_relu",
    "MODELS": "named_models",
    "ModelFactory": "named_models",
    "ModelSpec": "named_models",
    "OneVsRestLogistic": "convex_losses",
    "RadialSquared": "convex_losses",
    "SoftmaxCrossEntropy": "convex_losses",
    "UnitFeatures": "convex_relu",
    "clipping_mnist_cnn": "convolutional",
    "count_parameters": "named_models",
    "dp_cnn": "convolutional",
    "dp_cnn_small": "convolutional",
    "find_model": "named_models",
    "h_cnn": "convolutional",
    "h_cnn_small": "convolutional",
    "lenet5": "convolutional",
    "logistic_regression": "dense",
    "mlp": "dense",
    "mlp_1000": "dense",
    "mlp_64_64": "dense",
    "small_vit": "vision_transformer",
    "tutorial_cnn": "convolutional",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
