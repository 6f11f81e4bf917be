"""Architectures of timm, torchvision and torch_geometric, and mixtures of experts; programs written by hand besides."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

import privet as pv
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
from tests.isolation.architectures_hand import HAND
from tests.isolation.architectures_senses import frozen, looks
from tests.isolation.architectures_transformers import SMALL, classifies, continues, model_of

_EXPERTS: dict[str, Any] = {
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 0,
    "n_group": 1,
    "topk_group": 1,
    "moe_num_experts": 4,
    "moe_k": 2,
    "shared_expert_intermediate_size": 16,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "head_dim": 8,
    "num_selects": 2,
    "moe_topk": 2,
}


def _sees(build: Callable[[], nn.Module], shape: tuple[int, ...] = (3, 32, 32)) -> Build:
    def built() -> Built:
        model = frozen(build().train())
        return model, lambda num: images(num, shape), lambda batch: class_loss(logits_of(model(batch["x"])), batch["y"])

    return built


def _timm(name: str, size: int = 32, **settings: Any) -> Build:
    def build() -> nn.Module:
        timm = import_module("timm")  # in an environment of its own
        model: nn.Module = timm.create_model(name, pretrained=False, num_classes=CLASSES, **settings)
        return model

    return _sees(build, (3, size, size))


_TIMM: dict[str, Build] = {
    "ViT": _timm("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2),
    "DeiT, distilled": _timm(
        "deit_tiny_distilled_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2
    ),
    "BEiT": _timm("beit_base_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2),
    "EVA-02": _timm("eva02_tiny_patch14_224", img_size=28, size=28, patch_size=7, embed_dim=24, depth=2, num_heads=2),
    "CaiT": _timm("cait_xxs24_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2),
    "MLP-Mixer": _timm("mixer_s16_224", img_size=32),
    "ResMLP": _timm("resmlp_12_224", img_size=32),
    "gMLP": _timm("gmlp_s16_224", img_size=32),
    "Swin": _timm(
        "swin_tiny_patch4_window7_224", img_size=32, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 2)
    ),
    "Swin v2": _timm(
        "swinv2_tiny_window8_256", img_size=32, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 2)
    ),
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
}


def _torchvision(kind: str, *, size: int = 32, shape: tuple[int, ...] | None = None, **settings: Any) -> Build:
    def build() -> nn.Module:
        place = import_module("torchvision").models  # in an environment of its own
        *path, name = kind.split(".")
        for part in path:
            place = getattr(place, part)
        made: nn.Module = getattr(place, name)(num_classes=CLASSES, **settings)
        return made

    return _sees(build, shape or (3, size, size))


_WINDOWS: dict[str, Any] = {
    "patch_size": [4, 4],
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 2],
    "window_size": [4, 4],
}
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
    "ViT": _torchvision(
        "VisionTransformer", image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32
    ),
    "Swin": _torchvision("SwinTransformer", **_WINDOWS),
    "MaxViT, frozen batch norms": _torchvision(
        "MaxVit",
        size=32,
        input_size=(32, 32),
        stem_channels=8,
        partition_size=2,
        block_channels=[8, 16],
        block_layers=[1, 1],
        head_dim=4,
        stochastic_depth_prob=0.0,
    ),
    "R3D-18, frozen batch norms": _torchvision("video.r3d_18", shape=(3, 4, 16, 16)),
    "Swin3D": _torchvision(
        "video.SwinTransformer3d",
        shape=(3, 4, 16, 16),
        patch_size=[2, 4, 4],
        embed_dim=16,
        depths=[2],
        num_heads=[2],
        window_size=[2, 2, 2],
    ),
}


def _swin_v2() -> nn.Module:
    place = import_module("torchvision.models.swin_transformer")
    model: nn.Module = place.SwinTransformer(
        num_classes=CLASSES, block=place.SwinTransformerBlockV2, downsample_layer=place.PatchMergingV2, **_WINDOWS
    )
    return model


_TORCHVISION["Swin v2"] = _sees(_swin_v2)

_NODES, _EDGES = 6, 10


def _graph(make: Callable[[Any], nn.Module]) -> Build:
    """One public graph, with other numbers at its nodes for each example, as large as many graphs side by side.

    Rules do not follow rows along edges, so the loss function is declared to take one example at a time.
    """

    def build() -> Built:
        layers = import_module("torch_geometric.nn")
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

        return model, make_batch, pv.engines.one_at_a_time(loss)

    return build


def _dense(make: Callable[[Any], nn.Module]) -> Build:
    """Graphs as matrices of neighbours, one for each example."""

    def build() -> Built:
        layers = import_module("torch_geometric.nn")
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
    "GCN, one public graph, one at a time": _graph(lambda layers: layers.GCNConv(4, 8)),
    "GAT, one public graph, one at a time": _graph(lambda layers: layers.GATConv(4, 4, heads=2)),
    "GATv2, one public graph, one at a time": _graph(lambda layers: layers.GATv2Conv(4, 4, heads=2)),
    "GIN, one public graph, one at a time": _graph(lambda layers: layers.GINConv(nn.Linear(4, 8))),
    "GraphSAGE, one public graph, one at a time": _graph(lambda layers: layers.SAGEConv(4, 8)),
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


def _rows(prefix: str, rows: dict[str, Build], *needs: str) -> tuple[Architecture, ...]:
    return tuple(Architecture(name=f"{prefix}{name}", build=build, needs=needs) for name, build in rows.items())


WIDER: tuple[Architecture, ...] = (
    *HAND,
    *_rows("", _STATES, "transformers"),
    *_rows("", {"ViT, all hidden states": looks("vit", output_hidden_states=True)}, "transformers"),
    *_rows("", {"BERT, attentions asked for": classifies("bert", attn_implementation="eager")}, "transformers"),
    *_rows("", _MIXTURES, "transformers"),
    *_rows("timm ", _TIMM, "timm"),
    *_rows("torchvision ", _TORCHVISION, "torchvision"),
    *_rows("torch_geometric ", _GRAPHS, "torch_geometric"),
)
