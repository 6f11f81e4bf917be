"""Architectures of timm, torchvision and torch_geometric, mixtures of experts, and programs written by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.isolation.architecture import (
    CLASSES,
    Architecture,
    Batch,
    Build,
    Built,
    class_loss,
    images,
    logits_of,
    per_example,
    tokens,
)
from tests.isolation.architectures_senses import frozen, looks
from tests.isolation.architectures_transformers import SMALL, classifies, continues, model_of

_EXPERTS: dict[str, Any] = {
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 16, "first_k_dense_replace": 0, "n_group": 1, "topk_group": 1, "moe_num_experts": 4,
    "moe_k": 2, "shared_expert_intermediate_size": 16, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4, "v_head_dim": 8, "head_dim": 8, "num_selects": 2, "moe_topk": 2,
}  # fmt: skip


def _sees(build: Callable[[], nn.Module], shape: tuple[int, ...] = (3, 32, 32)) -> Build:
    def built() -> Built:
        model = frozen(build().train())
        return model, lambda num: images(num, shape), lambda batch: class_loss(logits_of(model(batch["x"])), batch["y"])

    return built


def _timm(name: str, size: int = 32, **settings: Any) -> Build:
    def build() -> nn.Module:
        import timm

        model: nn.Module = timm.create_model(name, pretrained=False, num_classes=CLASSES, **settings)
        return model

    return _sees(build, (3, size, size))


_TIMM: dict[str, Build] = {
    "ViT": _timm("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2),
    "DeiT, distilled": _timm("deit_tiny_distilled_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2),
    "BEiT": _timm("beit_base_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2),
    "EVA-02": _timm("eva02_tiny_patch14_224", img_size=28, size=28, patch_size=7, embed_dim=24, depth=2, num_heads=2),
    "CaiT": _timm("cait_xxs24_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2),
    "MLP-Mixer": _timm("mixer_s16_224", img_size=32),
    "ResMLP": _timm("resmlp_12_224", img_size=32),
    "gMLP": _timm("gmlp_s16_224", img_size=32),
    "Swin": _timm("swin_tiny_patch4_window7_224", img_size=32, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 2)),
    "Swin v2": _timm("swinv2_tiny_window8_256", img_size=32, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 2)),
    "ConvNeXt": _timm("convnext_atto"),
    "ConvNeXt v2": _timm("convnextv2_atto"),
    "ResNet-18, frozen batch norms": _timm("resnet18"),
    "ResNet-26d, frozen batch norms": _timm("resnet26d"),
    "NF-ResNet": _timm("nf_resnet26"),
    "RegNet, frozen batch norms": _timm("regnetx_002"),
    "MobileNet v3, frozen batch norms": _timm("mobilenetv3_small_050"),
    "EfficientNet, frozen batch norms": _timm("efficientnet_lite0"),
    "PoolFormer": _timm("poolformer_s12"),
    "EdgeNeXt": _timm("edgenext_xx_small"),
    "FocalNet": _timm("focalnet_tiny_srf"),
    "PiT": _timm("pit_ti_224", img_size=64, size=64),
    "DaViT": _timm("davit_tiny", embed_dims=(8, 16, 16, 16), depths=(1, 1, 1, 1), num_heads=(2, 2, 2, 2)),
    "MaxViT, frozen batch norms": _timm("maxvit_rmlp_pico_rw_256", img_size=64, size=64),
    "CoAtNet, frozen batch norms": _timm("coatnet_pico_rw_224", img_size=64, size=64),
    "Twins": _timm("twins_pcpvt_small", img_size=64, size=64, depths=(1, 1, 1, 1)),
}  # fmt: skip


def _torchvision(kind: str, *, size: int = 32, shape: tuple[int, ...] | None = None, **settings: Any) -> Build:
    def build() -> nn.Module:
        import torchvision

        place = torchvision.models
        *path, name = kind.split(".")
        for part in path:
            place = getattr(place, part)
        made: nn.Module = getattr(place, name)(num_classes=CLASSES, **settings)
        return made

    return _sees(build, shape or (3, size, size))


_WINDOWS: dict[str, Any] = {
    "patch_size": [4, 4], "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2], "window_size": [4, 4],
}  # fmt: skip
_TORCHVISION: dict[str, Build] = {
    "AlexNet": _torchvision("alexnet", size=64),
    "VGG-11": _torchvision("vgg11", size=32),
    "ResNet-18, frozen batch norms": _torchvision("resnet18"),
    "ResNet-18, group norms": _torchvision("resnet18", norm_layer=lambda width: nn.GroupNorm(4, width)),
    "ResNeXt-50, frozen batch norms": _torchvision("resnext50_32x4d"),
    "Wide ResNet, group norms": _torchvision("wide_resnet50_2", norm_layer=lambda width: nn.GroupNorm(4, width)),
    "DenseNet, frozen batch norms": _torchvision("DenseNet", growth_rate=8, block_config=(2, 2), num_init_features=8),
    "SqueezeNet": _torchvision("squeezenet1_1", size=64),
    "MobileNet v2, frozen batch norms": _torchvision("mobilenet_v2", width_mult=0.25),
    "MobileNet v3, frozen batch norms": _torchvision("mobilenet_v3_small", width_mult=0.5),
    "EfficientNet, frozen batch norms": _torchvision("efficientnet_b0"),
    "ShuffleNet v2, frozen batch norms": _torchvision("shufflenet_v2_x0_5"),
    "MNASNet, frozen batch norms": _torchvision("mnasnet0_5"),
    "RegNet, frozen batch norms": _torchvision("regnet_y_400mf"),
    "GoogLeNet, frozen batch norms": _torchvision("googlenet", aux_logits=False, init_weights=False),
    "ConvNeXt": _torchvision("convnext_tiny"),
    "ViT": _torchvision("VisionTransformer", image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32),
    "Swin": _torchvision("SwinTransformer", **_WINDOWS),
    "Swin v2": _torchvision("swin_transformer.SwinTransformer", block=None, **_WINDOWS),
    "MaxViT, frozen batch norms": _torchvision(
        "MaxVit", size=32, input_size=(32, 32), stem_channels=8, partition_size=2, block_channels=[8, 16], block_layers=[1, 1],
        head_dim=4, stochastic_depth_prob=0.0,
    ),
    "R3D-18, frozen batch norms": _torchvision("video.r3d_18", shape=(3, 4, 16, 16)),
    "Swin3D": _torchvision(
        "video.SwinTransformer3d", shape=(3, 4, 16, 16), patch_size=[2, 4, 4], embed_dim=16, depths=[2], num_heads=[2], window_size=[2, 2, 2],
    ),
}  # fmt: skip


def _swin_v2() -> nn.Module:
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2

    return SwinTransformer(
        num_classes=CLASSES, block=SwinTransformerBlockV2, downsample_layer=PatchMergingV2, **_WINDOWS
    )


_TORCHVISION["Swin v2"] = _sees(_swin_v2)

_NODES, _EDGES = 6, 10


def _graph(make: Callable[[Any], nn.Module]) -> Build:
    """One public graph, with other numbers at its nodes for each example, as large as many graphs side by side."""

    def build() -> Built:
        from torch_geometric import nn as layers

        layer, head = make(layers), nn.Linear(8, CLASSES)
        model = nn.ModuleList([layer, head]).train()
        edges = torch.randint(0, _NODES, (2, _EDGES), generator=torch.Generator().manual_seed(0))

        def make_batch(num: int) -> Batch:
            return {"x": torch.randn(num, _NODES, 4), "y": torch.randint(0, CLASSES, (num,))}

        def loss(batch: Batch) -> Tensor:
            num = len(batch["x"])
            shift = torch.arange(num) * _NODES
            wide = (edges[:, None, :] + shift[None, :, None]).reshape(2, -1)
            found = layer(batch["x"].reshape(num * _NODES, 4), wide)
            return class_loss(head(found.reshape(num, _NODES, 8).mean(1)), batch["y"])

        return model, make_batch, loss

    return build


def _dense(make: Callable[[Any], nn.Module]) -> Build:
    """Graphs as matrices of neighbours, one for each example."""

    def build() -> Built:
        from torch_geometric import nn as layers

        layer, head = make(layers), nn.Linear(8, CLASSES)
        model = nn.ModuleList([layer, head]).train()

        def make_batch(num: int) -> Batch:
            near = (torch.rand(num, _NODES, _NODES) < 0.4).float()
            return {"x": torch.randn(num, _NODES, 4), "near": near, "y": torch.randint(0, CLASSES, (num,))}

        def loss(batch: Batch) -> Tensor:
            return class_loss(head(layer(batch["x"], batch["near"]).mean(1)), batch["y"])

        return model, make_batch, loss

    return build


_GRAPHS: dict[str, Build] = {
    "GCN, one public graph": _graph(lambda layers: layers.GCNConv(4, 8)),
    "GAT, one public graph": _graph(lambda layers: layers.GATConv(4, 4, heads=2)),
    "GATv2, one public graph": _graph(lambda layers: layers.GATv2Conv(4, 4, heads=2)),
    "GIN, one public graph": _graph(lambda layers: layers.GINConv(nn.Linear(4, 8))),
    "GraphSAGE, one public graph": _graph(lambda layers: layers.SAGEConv(4, 8)),
    "dense GCN": _dense(lambda layers: layers.DenseGCNConv(4, 8)),
    "dense GIN": _dense(lambda layers: layers.DenseGINConv(nn.Linear(4, 8))),
    "dense GAT": _dense(lambda layers: layers.DenseGATConv(4, 4, heads=2)),
    "dense GraphSAGE": _dense(lambda layers: layers.DenseSAGEConv(4, 8)),
}


def _with_states(kind: str, **settings: Any) -> Build:
    """All hidden states are asked for, and one in the middle is used."""

    def build() -> Built:
        model = model_of(kind, "AutoModel", SMALL | settings)

        def loss(batch: Batch) -> Tensor:
            output = model(
                input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], output_hidden_states=True
            )
            return per_example(output.hidden_states[1] ** 2) + per_example(output.hidden_states[-1])

        return model, tokens, loss

    return build


_STATES: dict[str, Build] = {
    f"{kind}, all hidden states": _with_states(kind)
    for kind in ("bert", "roberta", "distilbert", "gpt2", "llama", "electra")
}
_MIXTURES: dict[str, Build] = {
    name: continues(kind, **(_EXPERTS | settings))
    for name, kind, settings in (
        ("Qwen3-MoE", "qwen3_moe", {}),
        ("DeepSeek v2", "deepseek_v2", {"topk_method": "greedy", "head_dim": 4, "num_key_value_heads": 4}),
        ("DeepSeek v3", "deepseek_v3", {"head_dim": 4, "num_key_value_heads": 4}),
        ("GPT-OSS", "gpt_oss", {}),
        ("Granite MoE", "granitemoe", {}),
        ("PhiMoE", "phimoe", {}),
        ("GLM-4 MoE", "glm4_moe", {}),
        ("ERNIE 4.5 MoE", "ernie4_5_moe", {}),
        ("Dots", "dots1", {}),
        ("FlexOLMo", "flex_olmo", {}),
        ("MiniMax", "minimax", {"layer_types": ["full_attention", "full_attention"]}),
        ("Hunyuan MoE", "hunyuan_v1_moe", {}),
    )
}


# ------------------------------------------------------------------------------------------------------ by hand


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
    "GRU from zeros": _by_hand(_parts(cell=lambda: nn.GRU(6, 5, batch_first=True), head=_linear(5, CLASSES)), _started, _series),
    "GRU cell from zeros": _by_hand(_parts(cell=lambda: nn.GRUCell(6, 5), head=_linear(5, CLASSES)), _started_cell, _series),
    "recurrence by weights from zeros": _by_hand(_parts(back=_linear(), into=_linear(), **_HEAD), _by_weights, _series),
    "LSTM with a projection": _by_hand(
        _parts(cell=lambda: nn.LSTM(6, 5, proj_size=3, batch_first=True), head=_linear(3, CLASSES)),
        lambda m, x: m["head"](m["cell"](x)[0][:, -1]), _series),
    "fixed point": _by_hand(_parts(**_INNER), _fixed_point),
    "neural differential equation": _by_hand(_parts(**_INNER), _euler),
    "hypernetwork": _by_hand(_parts(make=_linear(6, 36), **_HEAD), _hyper),
    "dynamic convolution": _by_hand(_parts(make=_linear(6, 6), head=_linear(2, CLASSES)), _dynamic_convolution, _series),
    "parameters written by index": _by_hand(_parts(skew=_table(1, 15), **_HEAD), _written),
    "a parameter written into examples": _by_hand(_parts(token=_table(1, 6), **_INNER), _written_into_examples, _series),
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
}  # fmt: skip


def _rows(prefix: str, rows: dict[str, Build], *needs: str) -> tuple[Architecture, ...]:
    return tuple(Architecture(name=f"{prefix}{name}", build=build, needs=needs) for name, build in rows.items())


WIDER: tuple[Architecture, ...] = (
    *_rows("by hand: ", _HAND),
    *_rows("", _STATES, "transformers"),
    *_rows("", {"ViT, all hidden states": looks("vit", output_hidden_states=True)}, "transformers"),
    *_rows("", {"BERT, attentions asked for": classifies("bert", attn_implementation="eager")}, "transformers"),
    *_rows("", _MIXTURES, "transformers"),
    *_rows("timm ", _TIMM, "timm"),
    *_rows("torchvision ", _TORCHVISION, "torchvision"),
    *_rows("torch_geometric ", _GRAPHS, "torch_geometric"),
)
