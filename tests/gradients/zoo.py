"""Small models that between them use every supported way of touching a parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from tests.gradients.zoo_changing import CHANGING, WeightByFunction
from tests.gradients.zoo_layers import LAYERS
from tests.gradients.zoo_recurrent import RECURRENT


def squared(model: nn.Module, inputs: Tensor) -> Tensor:
    """A loss with a different gradient for every example and output; of several outputs, all take part."""
    found = model(inputs)
    if isinstance(found, Mapping):
        return torch.stack([_squared((1 + place) * part) for place, part in enumerate(found.values())]).sum(0)
    return _squared(found)


def _squared(found: Tensor) -> Tensor:
    output = found.flatten(1)
    weights = torch.linspace(0.5, 1.5, output.shape[1], dtype=output.dtype)
    return (output * weights).sin().square().sum(1)


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    functional: bool = True  # the reference engine can run it too


def floats(*shape: int) -> Callable[[int], Tensor]:
    return lambda batch: torch.randn(batch, *shape)


def tokens(length: int, vocabulary: int) -> Callable[[int], Tensor]:
    return lambda batch: torch.randint(0, vocabulary, (batch, length))


class BareParameters(nn.Module):
    """A scale, a shift and a class token, none of them inside a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.position = nn.Parameter(torch.randn(1, 5, 6))
        self.scale = nn.Parameter(torch.randn(6))
        self.head = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        joined = torch.cat([self.token.expand(len(inputs), -1, -1), inputs], 1) + self.position
        return self.head((joined * self.scale).tanh())


class RepeatedToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(2, 6))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([self.token.repeat(len(inputs), 2, 1), inputs], 1).sin()


class TiedLinear(nn.Module):
    """One weight as an embedding table and as the output layer, functionally tied."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.middle = nn.Linear(6, 6)

    def forward(self, ids: Tensor) -> Tensor:
        return functional.linear(self.middle(self.table(ids)).tanh(), self.table.weight)


class TransposedTie(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids).sum(1).tanh() @ self.table.weight.t()


class SharedModule(nn.Module):
    """One layer called three times, one of them on half of the width of time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, inputs: Tensor) -> Tensor:
        once = self.layer(inputs).tanh()
        return self.layer(self.layer(once[:, :2]).tanh() + inputs[:, :2])


class Residual(nn.Module):
    """In-place activations and in-place addition after group norm, as in many residual networks."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.second = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(2, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        start = nn.functional.relu(self.norm(self.first(inputs)), inplace=True)
        out = self.norm2(self.second(start))
        out += start
        return nn.functional.relu(out, inplace=True)


class SelfConditioned(nn.Module):
    """Reads its own first guess beside the inputs, without a way back for gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 3), nn.Linear(9, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        guess = self.first(inputs)
        found: Tensor = self.second(torch.cat([inputs, guess.detach()], -1)) + guess
        return found


class HardGate(nn.Module):
    """Lets inputs through, or not, by the sign of what a layer says."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.inner = nn.Linear(6, 1), nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        said = self.gate(inputs)
        found: Tensor = self.inner(inputs * (said > 0)) + said
        return found


class KindsOfTokens(nn.Module):
    """A table looked up at constants with an example axis, as BERT does for kinds of tokens that nobody gave it."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(11, 6), nn.Embedding(2, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        kinds = torch.zeros(ids.shape, dtype=torch.long)
        found: Tensor = self.head(self.words(ids) + self.kinds(kinds))
        return found


class Positions(nn.Module):
    """Position embeddings looked up without an example axis, as in most language models."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 6), nn.Embedding(7, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head((self.words(ids) + self.places(torch.arange(ids.shape[1]))).tanh())


class FoldedTime(nn.Module):
    """Time folded into the batch before a layer, in batch-major and in time-major order."""

    def __init__(self, *, time_first: bool) -> None:
        super().__init__()
        self.layer, self.time_first = nn.Linear(6, 4), time_first

    def forward(self, inputs: Tensor) -> Tensor:
        batch, time, width = inputs.shape
        if self.time_first:
            inputs = inputs.transpose(0, 1)
        out = self.layer(inputs.reshape(-1, width)).tanh()
        shape = (time, batch, -1) if self.time_first else (batch, time, -1)
        return out.view(shape).transpose(0, 1) if self.time_first else out.view(shape)


class Attention(nn.Module):
    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=batch_first)
        self.batch_first = batch_first

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs if self.batch_first else inputs.transpose(0, 1)
        out, _ = self.attention(inputs, inputs, inputs, need_weights=False)
        return out if self.batch_first else out.transpose(0, 1)


class FrameConvolution(nn.Module):
    """A convolution over frames that were folded into the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs.flatten(0, 1)).tanh().view(*inputs.shape[:2], -1)


def evaluated_batchnorm() -> nn.Module:
    norm = nn.BatchNorm2d(3)
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    return nn.Sequential(norm.eval(), nn.Conv2d(3, 2, 3), nn.Tanh())


def frozen_middle() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    model[2].requires_grad_(False)
    return model


CASES = [
    Case("linear", lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)), floats(6)),
    Case("linear_no_bias", lambda: nn.Linear(6, 4, bias=False), floats(6)),
    Case("linear_sequence_short", lambda: nn.Linear(16, 12), floats(4, 16)),
    Case("linear_sequence_long", lambda: nn.Linear(3, 2), floats(20, 3)),
    Case("linear_two_sequence_axes", lambda: nn.Linear(6, 4), floats(3, 2, 6)),
    Case("inplace_relu", lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)), floats(6)),
    Case("conv1d", lambda: nn.Conv1d(2, 3, 3, stride=2, padding=1), floats(2, 9)),
    Case("conv2d", lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 2)), floats(1, 7, 7)),
    Case("conv2d_strided", lambda: nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0)), floats(2, 7, 6)),
    Case("conv2d_dilated", lambda: nn.Conv2d(2, 3, 3, dilation=2, padding=2), floats(2, 8, 8)),
    Case("conv2d_grouped", lambda: nn.Conv2d(4, 6, 3, groups=2), floats(4, 6, 6)),
    Case("conv2d_depthwise", lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False), floats(4, 6, 6)),
    Case("conv2d_same", lambda: nn.Conv2d(2, 3, 4, padding="same"), floats(2, 6, 6)),
    Case("conv2d_valid", lambda: nn.Conv2d(2, 3, 3, padding="valid"), floats(2, 6, 6)),
    Case("conv2d_reflect", lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), floats(2, 6, 6)),
    Case("conv3d", lambda: nn.Conv3d(2, 3, 2, stride=1, padding=1), floats(2, 3, 4, 3)),
    Case("embedding", lambda: nn.Embedding(9, 5), tokens(6, 9)),
    Case("embedding_padding", lambda: nn.Embedding(9, 5, padding_idx=2), tokens(6, 9)),
    Case("layer_norm", lambda: nn.LayerNorm(6), floats(4, 6)),
    Case("layer_norm_two_axes", lambda: nn.LayerNorm((4, 6)), floats(4, 6)),
    Case("layer_norm_no_bias", lambda: nn.LayerNorm(6, bias=False), floats(6)),
    Case("rms_norm", lambda: nn.RMSNorm(6), floats(4, 6)),
    Case("group_norm", lambda: nn.GroupNorm(2, 4), floats(4, 5, 5)),
    Case("instance_norm", lambda: nn.InstanceNorm2d(3, affine=True), floats(3, 5, 5)),
    Case("instance_norm_1d", lambda: nn.InstanceNorm1d(3, affine=True), floats(3, 5)),
    Case("batch_norm_in_eval", evaluated_batchnorm, floats(3, 6, 6)),
    Case("prelu", lambda: nn.Sequential(nn.Linear(6, 4), nn.PReLU(4)), floats(6)),
    Case("bilinear_form", lambda: BilinearForm(), floats(6)),
    Case("bare_parameters", BareParameters, floats(4, 6)),
    Case("repeated_token", RepeatedToken, floats(3, 6)),
    Case("tied_linear", TiedLinear, tokens(4, 11)),
    Case("tied_transposed", TransposedTie, tokens(4, 11)),
    Case("shared_module", SharedModule, floats(4, 6)),
    Case("residual_inplace", Residual, floats(2, 5, 5)),
    Case("positions", Positions, tokens(7, 11)),
    Case("kinds_of_tokens", KindsOfTokens, tokens(7, 11), functional=False),
    Case("self_conditioned", SelfConditioned, floats(6)),
    Case("hard_gate", HardGate, floats(6)),
    Case("folded_time_batch_major", lambda: FoldedTime(time_first=False), floats(5, 6)),
    Case("folded_time_time_major", lambda: FoldedTime(time_first=True), floats(5, 6)),
    Case("attention_batch_first", lambda: Attention(batch_first=True), floats(5, 6)),
    Case("attention_time_first", lambda: Attention(batch_first=False), floats(5, 6), functional=False),
    Case("frame_convolution", FrameConvolution, floats(3, 1, 5, 5)),
    Case("weight_norm", lambda: parametrizations.weight_norm(nn.Linear(6, 4)), floats(6)),
    Case("frozen_middle", frozen_middle, floats(6)),
    Case("transformer_layer", lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True), floats(5, 6)),
    *(Case(name, build, inputs) for name, build, inputs in CHANGING),
    Case("weight_by_function", WeightByFunction, floats(6), functional=False),
    *(Case(name, build, inputs, functional=False) for name, build, inputs in (*LAYERS, *RECURRENT)),
]


class BilinearForm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.form = nn.Parameter(torch.randn(4, 6, 6))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.einsum("bi,kij,bj->bk", inputs, self.form, inputs)
