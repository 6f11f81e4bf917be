"""A network run over private records outside of training: a row per record, of that record alone, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privet.errors import UnsupportedModel
from privet.runs.one_by_one import made_up_like, one_by_one, works_one_by_one

SIZE = 8


class Network(nn.Module):
    """A network that changes its ways when a switch is set, as one may that counts its calls."""

    def __init__(self, late: Callable[[Any, Tensor], Tensor], *, is_late: bool = True) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.register_buffer("kept", torch.zeros(3))
        self.change, self.switch = late, {"is_late": is_late}

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(self.change(self, x) if self.switch["is_late"] else x)
        return found


def centred(model: Network, x: Tensor) -> Tensor:
    return x - x.mean(0)


def first_for_all(model: Network, x: Tensor) -> Tensor:
    return x.unbind(0)[0].expand(len(x), 3)


def by_place(model: Network, x: Tensor) -> Tensor:
    return x * torch.arange(len(x))[:, None]


def noisy(model: Network, x: Tensor) -> Tensor:
    return x + torch.randn_like(x)


def in_a_buffer(model: Network, x: Tensor) -> Tensor:
    model.kept.copy_(x.mean(0))
    return x


def in_a_weight(model: Network, x: Tensor) -> Tensor:
    with torch.no_grad():
        model.inner.bias.add_(x.mean())
    return x


def as_another_weight(model: Network, x: Tensor) -> Tensor:
    model.inner.bias.data = model.inner.bias.data + x.detach().mean()
    return x


def from_call_to_call(model: Network, x: Tensor) -> Tensor:
    before = model.switch.get("last", torch.zeros(3))
    model.switch["last"] = x.mean(0).detach()
    return x + before


def as_a_number(model: Network, x: Tensor) -> Tensor:
    return x * float(x.mean())


WAYS = [centred, first_for_all, in_a_buffer, in_a_weight, as_another_weight, from_call_to_call, as_a_number]


def rows_of(model: nn.Module, records: Tensor) -> Tensor:
    with torch.no_grad():
        return one_by_one(model.eval(), model, records, size=SIZE)


def records(count: int = 20) -> Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("way", [*WAYS, by_place, noisy])
def test_a_network_that_mixes_or_keeps_records_is_found_with_made_up_ones(way: Callable[..., Tensor]) -> None:
    model = Network(way).eval()
    assert not works_one_by_one(model, model, records(), size=SIZE)


@pytest.mark.parametrize("way", WAYS)
def test_a_network_that_mixes_or_keeps_private_records_is_refused(way: Callable[..., Tensor]) -> None:
    model = Network(way, is_late=False).eval()
    assert works_one_by_one(model, model, records(), size=SIZE)
    model.switch["is_late"] = True
    with pytest.raises(UnsupportedModel):
        rows_of(model, records())


def test_a_row_is_the_same_however_many_records_there_are() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    whole = rows_of(model, records())
    assert torch.equal(whole, model(records()))
    for count in (0, 1, 8, 13, 20):
        assert torch.equal(rows_of(model, records()[:count]), whole[:count])
    spoiled = records()
    spoiled[3] = torch.nan
    found = rows_of(model, spoiled)
    assert found[3].isnan().all()
    assert torch.equal(found[4:], whole[4:])


def test_a_transformer_with_padded_words_works_one_by_one() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.table, self.layers = nn.Embedding(9, 8), nn.TransformerEncoder(layer, 1, enable_nested_tensor=True)

        def forward(self, ids: Tensor) -> Tensor:
            found: Tensor = self.layers(self.table(ids), src_key_padding_mask=ids == 5)
            return found[:, 0]

    model, ids = Words().requires_grad_(False).eval(), torch.randint(0, 9, (20, 4))
    ids[:, 0] = 1
    assert works_one_by_one(model, model, ids, size=SIZE)
    assert rows_of(model, ids).shape == (20, 8)


def test_an_error_of_the_network_on_private_records_shows_no_value() -> None:
    def checked(model: Network, x: Tensor) -> Tensor:
        raise ValueError("the record 12.5 is too large")

    model = Network(checked, is_late=False)
    model.switch["is_late"] = True
    with pytest.raises(UnsupportedModel, match="ValueError") as caught:
        rows_of(model, records())
    assert "12.5" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_made_up_records_hold_no_number_of_real_ones() -> None:
    real = records()
    assert torch.equal(made_up_like(real, 4), made_up_like(torch.full_like(real, 7.0), 4))
    assert made_up_like(torch.ones(2, 5, dtype=torch.int64), 3).tolist() == [[0] * 5] * 3
