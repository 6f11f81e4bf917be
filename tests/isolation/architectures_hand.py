"""Programs written by hand: ways in which parameters, examples and constants meet that layers do not show."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.isolation.architecture import CLASSES, Architecture, Batch, Build, Built, class_loss


def _vectors(num: int) -> Batch:
    return {"x": torch.randn(num, 6), "y": torch.randint(0, CLASSES, (num,))}


def _series(num: int) -> Batch:
    return {"x": torch.randn(num, 7, 6), "y": torch.randint(0, CLASSES, (num,))}


def _by_hand(modules: Callable[[], nn.Module], score: Callable[[Any, Tensor], Tensor], make: Any = _vectors) -> Build:
    def build() -> Built:
        model = modules().train()
        return model, make, lambda batch: class_loss(score(model, batch["x"]), batch["y"])

    return build


def _started(m: Any, x: Tensor) -> Tensor:
    start = torch.zeros(1, len(x), 5, dtype=x.dtype)
    return m["head"](m["cell"](x, start)[0][:, -1])


def _started_cell(m: Any, x: Tensor) -> Tensor:
    state = torch.zeros(len(x), 5, dtype=x.dtype)
    for time in range(x.shape[1]):
        state = m["cell"](x[:, time], state)
    return m["head"](state)


def _by_weights(m: Any, x: Tensor) -> Tensor:
    state = torch.zeros(len(x), 6, dtype=x.dtype)
    for time in range(x.shape[1]):
        state = torch.tanh(state @ m["back"].weight + m["into"](x[:, time]))
    return m["head"](state)


def _fixed_point(m: Any, x: Tensor) -> Tensor:
    z = torch.zeros(len(x), 6, dtype=x.dtype)
    for _ in range(5):
        z = torch.tanh(m["inner"](z) + x)
    return m["head"](z)


def _euler(m: Any, x: Tensor) -> Tensor:
    for _ in range(4):
        x = x + 0.25 * torch.tanh(m["inner"](x))
    return m["head"](x)


def _hyper(m: Any, x: Tensor) -> Tensor:
    weights = m["make"](x).view(len(x), 6, 6)
    return m["head"](torch.bmm(weights, x.unsqueeze(2)).squeeze(2))


def _dynamic_convolution(m: Any, x: Tensor) -> Tensor:
    """Each example's own kernel: examples are folded into the channels, a group for each."""
    kernels = m["make"](x.mean(1)).view(len(x) * 2, 1, 3)
    found = functional.conv1d(x[:, :, :2].transpose(1, 2).reshape(1, -1, 7), kernels, padding=1, groups=len(x) * 2)
    return m["head"](found.view(len(x), 2, 7).mean(2))


def _written(m: Any, x: Tensor) -> Tensor:
    matrix = torch.zeros(6, 6, dtype=x.dtype)
    rows, columns = torch.triu_indices(6, 6, 1)
    matrix[rows, columns] = m["skew"].weight[0]
    return m["head"](x @ torch.linalg.matrix_exp(matrix - matrix.T))


def _written_into_examples(m: Any, x: Tensor) -> Tensor:
    x = x.clone()
    x[:, 0] = m["token"].weight[0]
    return m["head"](torch.tanh(m["inner"](x)).mean(1))


def _packed(m: Any, x: Tensor) -> Tensor:
    lengths = torch.full((len(x),), 5)
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=True)
    return m["head"](pad_packed_sequence(m["cell"](packed)[0], batch_first=True)[0].mean(1))


def _one_by_one(m: Any, x: Tensor) -> Tensor:
    return torch.cat([m["head"](torch.tanh(m["inner"](row.unsqueeze(0)))) for row in x])


def _capsules(m: Any, x: Tensor) -> Tensor:
    votes = m["votes"](x).view(len(x), 7, CLASSES, 4)
    logits = torch.zeros(len(x), 7, CLASSES, dtype=x.dtype)
    for _ in range(3):
        out = (logits.softmax(2).unsqueeze(3) * votes).sum(1)
        logits = logits + (votes * out.unsqueeze(1)).sum(3)
    return out.norm(dim=2)


def _memory(m: Any, x: Tensor) -> Tensor:
    attention = torch.softmax(x @ m["known"].weight.T, 1)
    return m["head"](attention @ m["said"].weight)


def _spectral(m: Any, x: Tensor) -> Tensor:
    mixed = torch.fft.irfft(
        torch.fft.rfft(x, dim=1) * torch.view_as_complex(m["filter"].weight.view(4, 6, 2)), n=7, dim=1
    )
    return m["head"](mixed.mean(1))


def _windows(m: Any, x: Tensor) -> Tensor:
    """Windows of a series, folded into the batch with a shift for each of them."""
    parts = x[:, :6].reshape(len(x) * 3, 2, 6) + m["shift"].weight.repeat(len(x), 1).unsqueeze(1)
    return m["head"](torch.tanh(m["inner"](parts)).reshape(len(x), -1, 6).mean(1))


def _heads(m: Any, x: Tensor) -> Tensor:
    """Heads folded into the batch, with a bias for each of them."""
    q = m["inner"](x).view(len(x), 7, 2, 3).transpose(1, 2).reshape(len(x) * 2, 7, 3)
    scores = torch.bmm(q, q.transpose(1, 2)) + m["bias"].weight.view(1, 2, 7, 7).expand(len(x), -1, -1, -1).reshape(
        -1, 7, 7
    )
    found = torch.bmm(scores.softmax(2), q).view(len(x), 2, 7, 3).transpose(1, 2).reshape(len(x), 7, 6)
    return m["head"](found.mean(1))


def _selected(m: Any, x: Tensor) -> Tensor:
    best = m["score"](x).squeeze(2).topk(3, 1).indices
    return m["head"](torch.tanh(m["inner"](x.gather(1, best.unsqueeze(2).expand(-1, -1, 6)))).mean(1))


def _sorted_tokens(m: Any, x: Tensor) -> Tensor:
    order = m["score"](x).squeeze(2).argsort(1)
    return m["head"](m["inner"](torch.take_along_dim(x, order.unsqueeze(2), 1).flatten(1)))


def _positions(m: Any, x: Tensor) -> Tensor:
    places = torch.arange(7).repeat(len(x), 1)
    return m["head"](torch.tanh(m["inner"](x + m["places"](places))).mean(1))


def _repeated_token(m: Any, x: Tensor) -> Tensor:
    token = m["token"].weight.unsqueeze(0).repeat(len(x), 1, 1)
    return m["head"](torch.tanh(m["inner"](torch.cat([token, x], 1)))[:, 0])


def _vmapped(m: Any, x: Tensor) -> Tensor:
    found: Tensor = torch.func.vmap(lambda row: m["head"](torch.tanh(m["inner"](row))))(x)
    return found


def _parts(**parts: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.ModuleDict({name: part() for name, part in parts.items()})


def _linear(inputs: int = 6, outputs: int = 6) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(inputs, outputs)


def _table(rows: int, width: int) -> Callable[[], nn.Module]:
    return lambda: nn.Embedding(rows, width)


def _scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scripting is deprecated
        found: nn.Module = torch.jit.script(nn.Sequential(nn.Linear(6, 6), nn.Tanh()))
    return found


def _hooked() -> nn.Module:
    layer = nn.Linear(6, 6)
    layer.register_forward_hook(lambda module, args, output: torch.tanh(output))
    layer.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    return layer


def _normed() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))


def _orthogonal() -> nn.Module:
    return nn.utils.parametrizations.orthogonal(nn.Linear(6, 6))


_HEAD = {"head": _linear(6, CLASSES)}
_INNER = {"inner": _linear(), **_HEAD}
_HAND: dict[str, Build] = {
    "GRU from zeros": _by_hand(
        _parts(cell=lambda: nn.GRU(6, 5, batch_first=True), head=_linear(5, CLASSES)), _started, _series
    ),
    "GRU cell from zeros": _by_hand(
        _parts(cell=lambda: nn.GRUCell(6, 5), head=_linear(5, CLASSES)), _started_cell, _series
    ),
    "recurrence by weights from zeros": _by_hand(_parts(back=_linear(), into=_linear(), **_HEAD), _by_weights, _series),
    "LSTM with a projection": _by_hand(
        _parts(cell=lambda: nn.LSTM(6, 5, proj_size=3, batch_first=True), head=_linear(3, CLASSES)),
        lambda m, x: m["head"](m["cell"](x)[0][:, -1]),
        _series,
    ),
    "fixed point": _by_hand(_parts(**_INNER), _fixed_point),
    "neural differential equation": _by_hand(_parts(**_INNER), _euler),
    "hypernetwork": _by_hand(_parts(make=_linear(6, 36), **_HEAD), _hyper),
    "dynamic convolution": _by_hand(
        _parts(make=_linear(6, 6), head=_linear(2, CLASSES)), _dynamic_convolution, _series
    ),
    "parameters written by index": _by_hand(_parts(skew=_table(1, 15), **_HEAD), _written),
    "a parameter written into examples": _by_hand(
        _parts(token=_table(1, 6), **_INNER), _written_into_examples, _series
    ),
    "packed sequences": _by_hand(_parts(cell=lambda: nn.LSTM(6, 6, batch_first=True), **_HEAD), _packed, _series),
    "a loop over examples": _by_hand(_parts(**_INNER), _one_by_one),
    "capsules": _by_hand(_parts(votes=_linear(6, 4 * CLASSES)), _capsules, _series),
    "memory": _by_hand(_parts(known=_table(9, 6), said=_table(9, 6), **_HEAD), _memory),
    "spectral filter": _by_hand(_parts(filter=_table(1, 48), **_HEAD), _spectral, _series),
    "windows with a shift for each": _by_hand(_parts(shift=_table(3, 6), **_INNER), _windows, _series),
    "heads with a bias for each": _by_hand(_parts(bias=_table(1, 98), **_INNER), _heads, _series),
    "the best tokens": _by_hand(_parts(score=_linear(6, 1), **_INNER), _selected, _series),
    "tokens in order": _by_hand(_parts(score=_linear(6, 1), inner=_linear(42, 6), **_HEAD), _sorted_tokens, _series),
    "positions for each example": _by_hand(_parts(places=_table(7, 6), **_INNER), _positions, _series),
    "a repeated token": _by_hand(_parts(token=_table(1, 6), **_INNER), _repeated_token, _series),
    "torch.func.vmap": _by_hand(_parts(**_INNER), _vmapped),
    "a scripted module": _by_hand(_parts(inner=_scripted, **_HEAD), lambda m, x: m["head"](m["inner"](x))),
    "hooks on a module": _by_hand(_parts(inner=_hooked, **_HEAD), lambda m, x: m["head"](m["inner"](x))),
    "weight norm": _by_hand(_parts(inner=_normed, **_HEAD), lambda m, x: m["head"](m["inner"](x))),
    "orthogonal weights": _by_hand(_parts(inner=_orthogonal, **_HEAD), lambda m, x: m["head"](m["inner"](x))),
}

HAND = tuple(Architecture(name=f"by hand: {name}", build=build) for name, build in _HAND.items())
