"""Networks of the published experiments: plain modules, default initialisation, no interaction between examples.

Names are resolved on first use, so the sizes of named networks do not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privet._lazy import lazily

if TYPE_CHECKING:
    from privet.models.adapters import adapter_weights as adapter_weights
    from privet.models.adapters import add_adapters as add_adapters
    from privet.models.adapters import load_adapter_weights as load_adapter_weights
    from privet.models.adapters import merge_adapters as merge_adapters
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
    from privet.models.minilm import MiniLm as MiniLm
    from privet.models.named_models import MODELS as MODELS
    from privet.models.named_models import ModelFactory as ModelFactory
    from privet.models.named_models import ModelSpec as ModelSpec
    from privet.models.named_models import count_parameters as count_parameters
    from privet.models.named_models import find_model as find_model
    from privet.models.token_states import encode_sentences as encode_sentences
    from privet.models.vision_transformer import small_vit as small_vit
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "privet.models.adapters": (
                "adapter_weights",
                "add_adapters",
                "load_adapter_weights",
                "merge_adapters",
            ),
            "privet.models.named_models": (
                "MODELS",
                "ModelFactory",
                "ModelSpec",
                "count_parameters",
                "find_model",
            ),
            "privet.models.convex_losses": (
                "ConvexLoss",
                "OneVsRestLogistic",
                "RadialSquared",
                "SoftmaxCrossEntropy",
            ),
            "privet.models.convex_relu": (
                "BoundedFeatures",
                "ConvexRelu",
                "UnitFeatures",
            ),
            "privet.models.convolutional": (
                "clipping_mnist_cnn",
                "dp_cnn",
                "dp_cnn_small",
                "h_cnn",
                "h_cnn_small",
                "lenet5",
                "tutorial_cnn",
            ),
            "privet.models.dense": (
                "logistic_regression",
                "mlp",
                "mlp_64_64",
                "mlp_1000",
            ),
            "privet.models.minilm": ("MiniLm",),
            "privet.models.token_states": ("encode_sentences",),
            "privet.models.vision_transformer": ("small_vit",),
        },
    )
