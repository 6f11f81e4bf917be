"""A convolution unfolded on a processor: norms and sums are right however patches are copied."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from privet.gradients.forms.per_example import ConvGeometry, Convolution, Explicit
from privet.gradients.norms.conv_strategies import Unfolded, _is_copied_by_pixel
from privet.gradients.norms.strategies import Gram, Store, Strategy

LAYERS = {
    "one dimension, stride": (nn.Conv1d(3, 4, 5, stride=3, padding=2), (17,)),
    "narrow image": (nn.Conv2d(6, 4, 3, padding=1), (5, 7)),
    "stride": (nn.Conv2d(2, 4, (3, 2), stride=2, padding=(1, 0)), (19, 23)),
    "dilation": (nn.Conv2d(3, 5, 3, stride=(1, 2), padding=2, dilation=2), (11, 25)),
    "wide image": (nn.Conv2d(5, 4, 3, padding=1), (4, 18)),
    "wide image, few channels": (nn.Conv2d(3, 8, 3, padding=1), (4, 18)),
    "few channels, taps of a whole register": (nn.Conv2d(1, 8, (4, 2), padding=1), (4, 18)),
    "three dimensions": (nn.Conv3d(2, 3, 2, stride=(1, 2, 1), padding=1), (4, 5, 6)),
}
BY_LINE = "wide image"


def convolution(name: str) -> Convolution:
    generator = torch.Generator().manual_seed(0)
    layer, size = LAYERS[name]
    inputs = torch.randn(3, layer.in_channels, *size, generator=generator, dtype=torch.float64)
    out = layer.double()(inputs)
    pieces = (layer.stride, layer.padding, layer.dilation)
    stride, padding, dilation = (tuple(int(item) for item in each) for each in pieces)
    shape = tuple(layer.weight.shape)
    geometry = ConvGeometry(weight_shape=shape, stride=stride, padding=padding, dilation=dilation, groups=1)
    out_grads = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    return Convolution(inputs=inputs, out_grads=out_grads, geometry=geometry)


@pytest.mark.parametrize("by", [Store(), Gram()], ids=["store", "gram"])
@pytest.mark.parametrize("name", LAYERS)
def test_unfolded_norms_and_sums_are_those_of_the_gradients_written_out(name: str, by: Strategy) -> None:
    part = convolution(name)
    assert _is_copied_by_pixel(part) == (name != BY_LINE)
    truth, weights = part.in_full(), torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)
    squares, kept = Unfolded(by=by, keeps_convolution=isinstance(by, Gram)).measure(part)
    into = torch.ones_like(truth[0])
    kept.add_weighted_sum(weights, into)
    assert torch.allclose(squares.sums, truth.flatten(1).square().sum(1), rtol=1e-10)
    assert torch.allclose(into, 1 + torch.tensordot(weights, truth, 1), rtol=1e-10)
    if isinstance(by, Store):
        assert isinstance(kept, Explicit)
        assert torch.allclose(kept.gradients, truth, rtol=1e-10, atol=1e-12)


def test_stored_gradients_of_patches_copied_by_pixel_can_lose_an_example() -> None:
    part = convolution("stride")
    _, kept = Unfolded(by=Store(), keeps_convolution=False).measure(part)
    rest = kept.without(torch.tensor([False, True, False]))
    into, expected = (torch.zeros(part.geometry.weight_shape, dtype=torch.float64) for _ in range(2))
    rest.add_weighted_sum(torch.ones(3, dtype=torch.float64), into)
    expected += part.in_full()[[0, 2]].sum(0)
    assert torch.allclose(into, expected, rtol=1e-10, atol=1e-12)
