"""Products, transposed convolutions, bags, attention in its options, adapters, tied weights and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Formula(nn.Module):
    """A function of the inputs and of bare parameters."""

    def __init__(self, formula: Callable[..., Tensor], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.randn(shape)) for shape in shapes])
        self.formula = formula

    def forward(self, inputs: Tensor) -> Tensor:
        return self.formula(inputs, *self.parts)


class Bag(nn.Module):
    """An embedding bag fed with rows of ids, or with one flat list and the start of each bag."""

    def __init__(self, *, flat: bool = False, weighted: bool = False, **options: object) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(9, 5, **options)  # type: ignore[arg-type]
        self.flat, self.weighted = flat, weighted

    def forward(self, ids: Tensor) -> Tensor:
        weights = (ids.to(self.bag.weight.dtype) * 0.7).cos() if self.weighted else None
        if not self.flat:
            return self.bag(ids, per_sample_weights=weights)
        # bags of different lengths, empty ones among them: as many ids of a row as its first id says
        lengths = ids[:, 0] % (ids.shape[1] + 1)
        inside = torch.arange(ids.shape[1]) < lengths.unsqueeze(1)
        ends = lengths.cumsum(0)
        starts = torch.cat([torch.zeros(1, dtype=torch.long), ends])
        starts = starts if self.bag.include_last_offset else starts[:-1]
        return self.bag(ids[inside], starts, per_sample_weights=None if weights is None else weights[inside])


class Attending(nn.Module):
    """Cross-attention over longer keys of another width, with every option of torch's layer."""

    def __init__(self, *, masked: bool = False, weights: bool = False, **options: object) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, **options)  # type: ignore[arg-type]
        kdim, vdim = self.attention.kdim, self.attention.vdim
        self.keys = nn.Linear(3, 5 * kdim)
        self.values = nn.Linear(3, 5 * vdim)
        self.masked, self.weights = masked, weights

    def forward(self, inputs: Tensor) -> Tensor:
        batch = len(inputs)
        keys = self.keys(inputs[:, 0, :3]).view(batch, 5, -1)
        values = self.values(inputs[:, 0, 3:]).view(batch, 5, -1)
        first = self.attention.batch_first
        query, keys, values = (part if first else part.transpose(0, 1) for part in (inputs, keys, values))
        padding = (inputs[:, :1, 0] > 0) & (torch.arange(5) > 2) if self.masked else None
        mask = torch.ones(inputs.shape[1], 5, dtype=torch.bool).triu(2) if self.masked else None
        out, weights = self.attention(
            query, keys, values, key_padding_mask=padding, attn_mask=mask, need_weights=self.weights
        )
        out = out if first else out.transpose(0, 1)
        return out.flatten(1) if weights is None else torch.cat([out.flatten(1), weights.flatten(1)], 1)


class Decoding(nn.Module):
    """A decoder layer over a memory from an encoder layer."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(6, 2, 5, dropout=0.0, batch_first=batch_first, norm_first=True)
        self.decoder = nn.TransformerDecoderLayer(6, 3, 5, dropout=0.0, batch_first=batch_first)
        self.batch_first = batch_first

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs if self.batch_first else inputs.transpose(0, 1)
        mask = nn.Transformer.generate_square_subsequent_mask(4, dtype=inputs.dtype)
        out: Tensor = self.decoder(inputs, self.encoder(inputs), tgt_mask=mask)
        return out if self.batch_first else out.transpose(0, 1)


class LowRank(nn.Module):
    """A frozen linear layer with a trained update of low rank, added to its output or merged into its weight."""

    def __init__(self, *, merged: bool) -> None:
        super().__init__()
        self.base = nn.Linear(6, 4).requires_grad_(False)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 4, bias=False)
        self.merged, self.scaling = merged, 0.5

    def forward(self, inputs: Tensor) -> Tensor:
        if self.merged:
            weight = self.base.weight + self.scaling * (self.up.weight @ self.down.weight)
            return functional.linear(inputs, weight, self.base.bias)
        return self.base(inputs) + self.scaling * self.up(self.down(inputs))


class TiedModules(nn.Module):
    """A language model whose head is its embedding table; ``extra`` uses the table a third time."""

    def __init__(self, *, extra: bool = False) -> None:
        super().__init__()
        self.table, self.middle, self.head = nn.Embedding(11, 6), nn.Linear(6, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.table.weight
        self.extra = extra

    def forward(self, ids: Tensor) -> Tensor:
        out = self.head(self.middle(self.table(ids)).tanh())
        return out + self.head(self.table(ids.flip(1))).sin() if self.extra else out


class Checkpointed(nn.Module):
    """A block that is run again in the backward pass."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(6, 6), block, nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(checkpoint(self.block, self.first(inputs), use_reentrant=False))


class TransposedWeight(nn.Module):
    """A linear layer stored the other way round, as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(4))

    def forward(self, inputs: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, inputs.view(-1, inputs.size(-1)), self.weight)
        return flat.view(*inputs.shape[:-1], 4)


def vectors(*shape: int) -> Callable[[int], Tensor]:
    return lambda batch: torch.randn(batch, *shape)


def ids(batch: int) -> Tensor:
    return torch.randint(0, 9, (batch, 6))


def row_major(inputs: Tensor, weight: Tensor) -> Tensor:
    return functional.linear(inputs.flatten(1), weight.view(4, 6).to(inputs.dtype).contiguous())


LAYERS: list[tuple[str, Callable[[], nn.Module], Callable[[int], Tensor]]] = [
    ("transposed_conv1d", lambda: nn.ConvTranspose1d(2, 3, 3, stride=2, padding=1), vectors(2, 5)),
    ("transposed_conv2d", lambda: nn.ConvTranspose2d(2, 3, 3), vectors(2, 4, 4)),
    (
        "transposed_conv2d_all_options",
        lambda: nn.ConvTranspose2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 0), groups=2, dilation=(1, 2)),
        vectors(4, 4, 3),
    ),
    (
        "transposed_conv2d_much_output_padding",
        lambda: nn.ConvTranspose2d(2, 3, 2, stride=2, padding=1, output_padding=2, dilation=3, bias=False),
        vectors(2, 3, 4),
    ),
    ("transposed_conv3d", lambda: nn.ConvTranspose3d(2, 2, 2, stride=2, output_padding=1), vectors(2, 2, 3, 2)),
    ("bag_mean", lambda: Bag(), ids),
    ("bag_sum_weighted", lambda: Bag(mode="sum", weighted=True), ids),
    ("bag_padding", lambda: Bag(mode="mean", padding_idx=2), ids),
    ("bag_flat_mean", lambda: Bag(flat=True, padding_idx=-4), ids),
    ("bag_flat_sum", lambda: Bag(flat=True, mode="sum", weighted=True, include_last_offset=True), ids),
    ("matmul", lambda: Formula(lambda x, w: x @ w, (6, 4)), vectors(3, 6)),
    ("matmul_left", lambda: Formula(lambda x, w: torch.matmul(w, x), (4, 6)), vectors(6, 3)),
    ("matmul_left_examples_last", lambda: Formula(lambda x, w: w.mm(x.mT).mT, (4, 6)), vectors(6)),
    ("matmul_vector", lambda: Formula(lambda x, w: (x @ w).tanh(), (6,)), vectors(3, 6)),
    ("matmul_batched_parameter", lambda: Formula(lambda x, w: torch.matmul(x, w), (3, 6, 2)), vectors(3, 4, 6)),
    ("matmul_transposed", lambda: Formula(lambda x, w: x @ w.t(), (4, 6)), vectors(3, 6)),
    ("matmul_expanded", lambda: Formula(lambda x, w: torch.bmm(x, w.expand(len(x), -1, -1)), (6, 4)), vectors(3, 6)),
    ("addmm", TransposedWeight, vectors(3, 6)),
    ("addmm_scaled", lambda: Formula(lambda x, b, w: torch.addmm(b, x, w, beta=2, alpha=0.5), (1, 4), (6, 4)),
     vectors(6)),
    ("baddbmm", lambda: Formula(lambda x, b, w: torch.baddbmm(b, x, w.mT.expand(len(x), 6, 4)), (4,), (4, 6)),
     vectors(3, 6)),
    ("einsum", lambda: Formula(lambda x, w: torch.einsum("btd,dk->btk", x, w), (6, 4)), vectors(3, 6)),
    ("einsum_heads", lambda: Formula(lambda x, w: torch.einsum("btd,hkd->bhtk", x, w), (2, 3, 6)), vectors(3, 6)),
    ("einsum_shared", lambda: Formula(lambda x, w: torch.einsum("bhd,hdk->bhk", x, w), (3, 6, 2)), vectors(3, 6)),
    ("views", lambda: Formula(row_major, (2, 12)), vectors(6)),
    ("views_chained", lambda: Formula(lambda x, w: x @ w.flatten().view(4, 6).T.clone(), (4, 2, 3)), vectors(6)),
    ("permuted_view", lambda: Formula(lambda x, w: x @ w.permute(1, 0, 2).reshape(6, 4), (2, 3, 4)), vectors(6)),
    ("bilinear", lambda: TwoInputs(), vectors(6)),
    ("prelu_shared", lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.PReLU()), vectors(1, 4, 4)),
    ("prelu_channels", lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.PReLU(3)), vectors(1, 4, 4)),
    ("attention_other_widths", lambda: Attending(kdim=4, vdim=3, batch_first=True, weights=True), vectors(4, 6)),
    ("attention_extra_keys", lambda: Attending(add_bias_kv=True, add_zero_attn=True, batch_first=True), vectors(4, 6)),
    ("attention_extra_keys_time_first", lambda: Attending(add_bias_kv=True, masked=True, weights=True), vectors(4, 6)),
    ("attention_masked", lambda: Attending(masked=True, bias=False, batch_first=True), vectors(4, 6)),
    ("transformer_decoder", lambda: Decoding(batch_first=True), vectors(4, 6)),
    ("transformer_decoder_time_first", lambda: Decoding(batch_first=False), vectors(4, 6)),
    ("low_rank_adapter", lambda: LowRank(merged=False), vectors(3, 6)),
    ("low_rank_adapter_merged", lambda: LowRank(merged=True), vectors(3, 6)),
    ("tied_modules", TiedModules, ids),
    ("tied_modules_thrice", lambda: TiedModules(extra=True), ids),
    ("checkpointed", lambda: Checkpointed(nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.LayerNorm(6))), vectors(6)),
    ("checkpointed_attention", lambda: Checkpointed(SelfAttention()), vectors(4, 6)),
]  # fmt: skip


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.form = nn.Linear(6, 3), nn.Bilinear(3, 6, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.form(self.first(inputs).tanh(), inputs)


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(6, 18), nn.Linear(6, 6)

    def forward(self, inputs: Tensor) -> Tensor:
        query, key, value = self.inward(inputs).chunk(3, -1)
        return self.outward(torch.softmax(query @ key.mT / math.sqrt(6), -1) @ value)
