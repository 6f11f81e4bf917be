"""Number of trainable parameters of each named network on each known shape of data, without torch.

The memory estimate of a plan needs them before torch is imported. A test builds every network and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Length of the gradient of a table's statistics in ``models.standardised``; a bound of a recipe's clipping.
STATISTICS_NORM = 0.4

Task = tuple[tuple[int, ...], int]

_GREY_IMAGES: Task = ((1, 28, 28), 10)
_COLOUR_IMAGES: Task = ((3, 32, 32), 10)
_GREY_SCATTERING: Task = ((81, 7, 7), 10)
_COLOUR_SCATTERING: Task = ((243, 8, 8), 10)
_HOUSING: Task = ((8,), 1)
_WINE: Task = ((11,), 1)
_CENSUS: Task = ((108,), 2)
_SENTENCES: Task = ((64,), 2)

MODEL_SIZES: Mapping[str, Mapping[Task, int]] = MappingProxyType(
    {
        "dp_cnn": {_GREY_IMAGES: 435_306, _COLOUR_IMAGES: 550_570},
        "dp_cnn_small": {_GREY_IMAGES: 26_010, _COLOUR_IMAGES: 37_274},
        "h_cnn": {_GREY_SCATTERING: 89_418, _COLOUR_SCATTERING: 187_210},
        "h_cnn_small": {_GREY_SCATTERING: 33_066, _COLOUR_SCATTERING: 56_394},
        "clipping_mnist_cnn": {_GREY_IMAGES: 26_010, _COLOUR_IMAGES: 37_274},
        "tutorial_cnn": {_GREY_IMAGES: 44_426, _COLOUR_IMAGES: 62_006},
        "lenet5": {_GREY_IMAGES: 61_706, _COLOUR_IMAGES: 83_126},
        "mlp_1000": {
            _GREY_IMAGES: 795_010,
            _COLOUR_IMAGES: 3_083_010,
            _HOUSING: 10_001,
            _WINE: 13_001,
            _CENSUS: 111_002,
        },
        "mlp_64_64": {
            _GREY_IMAGES: 55_050,
            _COLOUR_IMAGES: 201_482,
            _HOUSING: 4_801,
            _WINE: 4_993,
            _CENSUS: 11_266,
        },
        "oriented_edges": {_GREY_IMAGES: 4_420, _COLOUR_IMAGES: 17_290},
        "small_vit": {_GREY_IMAGES: 138_890, _COLOUR_IMAGES: 141_898},
        "wrn_16_4": {_GREY_IMAGES: 2_753_114, _COLOUR_IMAGES: 2_753_402},
        "wrn_40_4": {_GREY_IMAGES: 8_960_602, _COLOUR_IMAGES: 8_960_890},
        "minilm_lora": {_SENTENCES: 664_322},
        "convex_relu": {_GREY_IMAGES: 784_000, _COLOUR_IMAGES: 3_072_000, _CENSUS: 21_600},
        "logistic_regression": {_GREY_IMAGES: 7_850, _COLOUR_IMAGES: 30_730, _HOUSING: 9, _WINE: 12, _CENSUS: 218},
        "table_linear": {_HOUSING: 26, _WINE: 35, _CENSUS: 435},
        "table_classes": {_GREY_IMAGES: 9_419, _CENSUS: 435},
        "table_curved": {_HOUSING: 226, _WINE: 235, _CENSUS: 835},
    }
)


def num_parameters(model: str, input_shape: tuple[int, ...], num_outputs: int) -> int | None:
    """Return the number of parameters; None for a network or a shape that is not in the table."""
    return MODEL_SIZES.get(model, {}).get((input_shape, num_outputs))
