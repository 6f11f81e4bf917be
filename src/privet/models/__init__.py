"""Networks of the published experiments: plain modules, default initialisation, no layer that mixes examples."""

from privet.models.adapters import adapter_weights, add_adapters, merge_adapters
from privet.models.catalogue import MODELS, ModelFactory, ModelSpec, count_parameters, find_model
from privet.models.convex_losses import ConvexLoss, OneVsRestLogistic, RadialSquared, SoftmaxCrossEntropy
from privet.models.convex_relu import BoundedFeatures, ConvexRelu, UnitFeatures, convex_relu
from privet.models.dp_cnn import dp_cnn
from privet.models.h_cnn import h_cnn, h_cnn_small
from privet.models.lenet import lenet5, tutorial_cnn
from privet.models.minilm import MiniLm
from privet.models.mlp import logistic_regression, mlp, mlp_64_64, mlp_1000
from privet.models.small_cnn import clipping_mnist_cnn, dp_cnn_small
from privet.models.small_vit import small_vit
from privet.models.token_states import encode as encode_sentences

__all__ = [
    "MODELS",
    "BoundedFeatures",
    "ConvexLoss",
    "ConvexRelu",
    "MiniLm",
    "ModelFactory",
    "ModelSpec",
    "OneVsRestLogistic",
    "RadialSquared",
    "SoftmaxCrossEntropy",
    "UnitFeatures",
    "adapter_weights",
    "add_adapters",
    "clipping_mnist_cnn",
    "convex_relu",
    "count_parameters",
    "dp_cnn",
    "dp_cnn_small",
    "encode_sentences",
    "find_model",
    "h_cnn",
    "h_cnn_small",
    "lenet5",
    "logistic_regression",
    "merge_adapters",
    "mlp",
    "mlp_64_64",
    "mlp_1000",
    "small_vit",
    "tutorial_cnn",
]
