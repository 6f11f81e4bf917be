"""Exchanging batch norms keeps what can be kept: shape, scale, shift and every other layer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from privet.errors import UnsupportedModel
from privet.gradients.engines.support import check_model, replace_batchnorm


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Sequential(nn.Conv2d(6, 35, 3), nn.BatchNorm2d(35))
    )


def test_a_network_without_batch_norm_passes_the_check_and_keeps_its_shape() -> None:
    model, inputs = network(), torch.randn(5, 1, 9, 9)
    shape = model(inputs).shape
    found = replace_batchnorm(model)
    assert found is model
    check_model(model)
    assert model(inputs).shape == shape


def test_scale_and_shift_are_carried_over_and_other_layers_untouched() -> None:
    model = network()
    nn.init.normal_(model[1].weight)
    nn.init.normal_(model[1].bias)
    weight, bias, convolution, width = model[1].weight, model[1].bias, model[0].weight, model[1].eps
    replace_batchnorm(model)
    assert isinstance(model[1], nn.GroupNorm)
    assert model[1].weight is weight
    assert model[1].bias is bias
    assert model[0].weight is convolution
    assert model[1].eps == width


@pytest.mark.parametrize(
    ("channels", "max_groups", "groups"),
    [(6, 32, 1), (8, 32, 2), (35, 32, 7), (64, 32, 16), (512, 32, 32), (37, 32, 1), (64, 2, 2), (3, 32, 1)],
)
def test_the_number_of_groups_is_the_largest_divisor_that_leaves_four_channels_to_a_group(
    channels: int, max_groups: int, groups: int
) -> None:
    norm = replace_batchnorm(nn.BatchNorm2d(channels), max_groups=max_groups)
    assert isinstance(norm, nn.GroupNorm)
    assert (norm.num_groups, norm.num_channels) == (groups, channels)


def test_a_batch_norm_without_parameters_becomes_a_group_norm_without_parameters() -> None:
    norm = replace_batchnorm(nn.BatchNorm1d(8, affine=False))
    assert isinstance(norm, nn.GroupNorm)
    assert list(norm.parameters()) == []


@pytest.mark.parametrize("width", [2, 16, 32, 37])
def test_an_exchanged_layer_behind_a_linear_one_still_tells_examples_apart(width: int) -> None:
    norm = replace_batchnorm(nn.BatchNorm1d(width))
    assert float(norm(torch.randn(50, width)).detach().std(0).min()) > 0.1


def test_a_lone_number_has_no_norm_of_its_own() -> None:
    with pytest.raises(UnsupportedModel, match="Remove the layer"):
        replace_batchnorm(nn.BatchNorm1d(1))


def test_an_exchanged_layer_treats_examples_alone() -> None:
    model = replace_batchnorm(network())
    inputs = torch.randn(5, 1, 9, 9)
    assert torch.allclose(model(inputs)[:1], model(inputs[:1]), atol=1e-6)


def test_an_exchanged_layer_keeps_its_precision() -> None:
    model = replace_batchnorm(nn.Sequential(nn.BatchNorm1d(4).double()))
    assert model[0].weight.dtype == torch.float64
    assert model(torch.randn(3, 4, dtype=torch.float64)).dtype == torch.float64


class NormAct(nn.BatchNorm2d):
    """A batch norm with dropout and activation inside, as image models have them."""

    def __init__(self, num_features: int, act: type[nn.Module] = nn.SiLU) -> None:
        super().__init__(num_features)
        self.drop, self.act = nn.Identity(), act()

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.act(self.drop(super().forward(inputs)))
        return found


class Renamed(nn.BatchNorm2d):
    """Another name, and nothing else."""


def with_hook() -> nn.Module:
    norm = nn.BatchNorm2d(8)
    norm.register_forward_hook(lambda module, given, found: found.relu())
    return norm


def patched() -> nn.Module:
    norm = nn.BatchNorm2d(8)
    norm.forward = lambda inputs: inputs.relu()  # type: ignore[method-assign]
    return norm


def parametrised() -> nn.Module:
    norm = nn.BatchNorm2d(8)
    register_parametrization(norm, "weight", nn.Softplus())
    return norm


@pytest.mark.parametrize("build", [lambda: NormAct(8), with_hook, patched, parametrised])
def test_a_batch_norm_that_does_more_is_refused_by_name_and_the_model_left_alone(
    build: Callable[[], nn.Module],
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Sequential(build()))
    before = list(model.modules())
    with pytest.raises(UnsupportedModel, match=r"'2\.0' \(\w*(NormAct|BatchNorm2d)\).*do more than normalise"):
        replace_batchnorm(model)
    assert list(model.modules()) == before


def test_what_a_batch_norm_does_beside_normalising_is_kept_where_it_is_said_how() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), NormAct(8), nn.Conv2d(8, 8, 3), NormAct(8, nn.ReLU))
    replace_batchnorm(model, remake={NormAct: lambda old, norm: nn.Sequential(norm, old.drop, old.act)})
    check_model(model)
    assert sum(isinstance(module, nn.SiLU | nn.ReLU) for module in model.modules()) == 2
    assert bool((model(torch.randn(2, 3, 9, 9)) >= 0).all())


def test_a_subclass_that_does_the_same_is_exchanged() -> None:
    assert type(replace_batchnorm(Renamed(8))) is nn.GroupNorm


def test_a_batch_norm_in_two_places_becomes_one_group_norm_in_both() -> None:
    shared = nn.BatchNorm2d(8)
    model = nn.Sequential(shared, nn.Sequential(shared))
    replace_batchnorm(model)
    check_model(model)
    assert model[0] is model[1][0]


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_a_table_with_sparse_gradients_is_refused_with_its_fix(kind: type[nn.Module]) -> None:
    with pytest.raises(UnsupportedModel, match=r"'table'.*Set sparse=False"):
        check_model(nn.ModuleDict({"table": kind(5, 3, sparse=True)}))  # type: ignore[call-arg]


def test_a_model_that_is_no_module_is_named() -> None:
    with pytest.raises(UnsupportedModel, match=r"torch\.nn\.Module, got function"):
        check_model(lambda inputs: inputs)  # type: ignore[arg-type]


def test_layers_without_a_shape_are_refused_with_the_remedy() -> None:
    with pytest.raises(UnsupportedModel, match=r"lazy.*made-up batch"):
        check_model(nn.Sequential(nn.LazyLinear(3)))


def test_parameters_of_two_precisions_are_refused_unless_one_is_half() -> None:
    with pytest.raises(UnsupportedModel, match=r"torch\.float32, torch\.float64"):
        check_model(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))
    check_model(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16()))
    check_model(nn.Sequential(nn.Linear(2, 2).double()))
