"""Public architectures for whole sessions, from transformers and torchvision, with random weights.

Nothing is downloaded. A library is imported when a model of it is built, so a missing library fails alone.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.machine import Precision
from benchmarks.models import WORKLOADS, Data, Images, Scale, Size, Tokens, Workload

_TINY_BATCH = 6
_RANK = 16
_ADAPTED = ("q_proj", "v_proj")
_ADAPTED_OF_BERT = ("query", "value")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model in a precision.

    Attributes:
        name: The short name used on the command line and in tables.
        workload: The model, its data and its batches.
        precision: How its matrix products are computed on an accelerator.
    """

    name: str
    workload: Workload
    precision: Precision = Precision.TF32


_IDS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "position_ids": lambda ids: torch.zeros_like(ids) + torch.arange(ids.shape[1], device=ids.device),
        "token_type_ids": torch.zeros_like,
    }
)


class Logits(nn.Module):
    """A model of transformers that returns its logits alone.

    Attributes:
        spells_out: Whether the ids that the model would fill in itself, once for the whole batch, are given to it for
            every example: what libraries with rules for each layer need of embeddings.
    """

    def __init__(self, model: nn.Module, ids: Sequence[str] = ()) -> None:
        super().__init__()
        self.model, self._ids = model, tuple(ids)
        self.spells_out = False

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        ids = {name: _IDS[name](inputs) for name in self._ids} if self.spells_out else {}
        return self.model(inputs, **ids).logits  # type: ignore[no-any-return]


class EncoderClassifier(nn.Module):
    """An encoder of transformers, the mean over its positions, and a linear head."""

    def __init__(self, encoder: nn.Module, width: int, num_classes: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(width, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Classify by the mean over positions."""
        return self.head(self.encoder(inputs).last_hidden_state.mean(1))  # type: ignore[no-any-return]


class LowRank(nn.Module):
    """A frozen linear map plus a trained one of low rank (Hu et al. 2022), in float32."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False, device=base.weight.device)
        self.up = nn.Linear(rank, base.out_features, bias=False, device=base.weight.device)
        # Not zero, as is usual: half of the gradients would be zero, and there would be less to compare.
        nn.init.normal_(self.up.weight, std=1e-3)

    def forward(self, inputs: Tensor) -> Tensor:
        """Add the two maps; the adapter's products have its own precision."""
        base = self.base(inputs)
        return base + self.up(self.down(inputs.to(self.down.weight.dtype))).to(base.dtype)  # type: ignore[no-any-return]


def _hf(config: str, model: str, **settings: Any) -> nn.Module:
    """Build a model of transformers from its configuration."""
    library = importlib.import_module("transformers")
    built: nn.Module = getattr(library, model)(getattr(library, config)(**settings))
    return built


def _vision(model: str, **settings: Any) -> nn.Module:
    """Build a model of torchvision."""
    built: nn.Module = getattr(importlib.import_module("torchvision.models"), model)(weights=None, **settings)
    return built


def _convnext(
    *, widths: Sequence[int] = (96, 192, 384, 768), depths: Sequence[int] = (3, 3, 9, 3), path: float = 0.1
) -> nn.Module:
    """ConvNeXt; ``path`` is the rate at which examples skip a block."""
    library = importlib.import_module("torchvision.models.convnext")
    shapes = zip(widths, (*widths[1:], None), depths, strict=True)
    stages = [library.CNBlockConfig(width, after, depth) for width, after, depth in shapes]
    built: nn.Module = library.ConvNeXt(stages, stochastic_depth_prob=path)
    return built


def _swin(
    *,
    width: int = 96,
    depths: Sequence[int] = (2, 2, 6, 2),
    heads: Sequence[int] = (3, 6, 12, 24),
    path: float = 0.2,
) -> nn.Module:
    """Swin; ``path`` is the rate at which examples skip a block."""
    library = importlib.import_module("torchvision.models.swin_transformer")
    built: nn.Module = library.SwinTransformer(
        patch_size=[4, 4], embed_dim=width, depths=list(depths), num_heads=list(heads), window_size=[7, 7],
        stochastic_depth_prob=path,
    )  # fmt: skip
    return built


def _vit(*, side: int = 224, num_blocks: int = 12, num_heads: int = 12, width: int = 768) -> nn.Module:
    library = importlib.import_module("torchvision.models")
    built: nn.Module = library.VisionTransformer(
        image_size=side, patch_size=16, num_layers=num_blocks, num_heads=num_heads, hidden_dim=width, mlp_dim=4 * width
    )
    return built


def _group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(channels, 32), channels)


def _bert(*, dropout: float = 0.1, **settings: Any) -> nn.Module:
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return Logits(_hf("BertConfig", "BertForSequenceClassification", **rates, **settings), tuple(_IDS))


def _roberta(*, dropout: float = 0.1, **settings: Any) -> nn.Module:
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return Logits(_hf("RobertaConfig", "RobertaForSequenceClassification", **rates, **settings), ("token_type_ids",))


def _distilbert(*, dropout: float = 0.1, **settings: Any) -> nn.Module:
    rates = {"dropout": dropout, "attention_dropout": dropout, "seq_classif_dropout": 2 * dropout}
    return Logits(_hf("DistilBertConfig", "DistilBertForSequenceClassification", **rates, **settings))


def _gpt2(*, dropout: float = 0.1, **settings: Any) -> nn.Module:
    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    return Logits(_hf("GPT2Config", "GPT2LMHeadModel", use_cache=False, **rates, **settings), ("position_ids",))


def _t5_encoder(*, dropout: float = 0.1, width: int = 512, **settings: Any) -> nn.Module:
    encoder = _hf("T5Config", "T5EncoderModel", dropout_rate=dropout, d_model=width, **settings)
    return EncoderClassifier(encoder, width, num_classes=2)


def _deit(**settings: Any) -> nn.Module:
    return Logits(_hf("DeiTConfig", "DeiTForImageClassification", num_labels=1000, **settings))


def _llama(**settings: Any) -> nn.Module:
    """A decoder of Llama's kind; by default 134M parameters."""
    shape = {
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 2048,
        "vocab_size": 32000, "max_position_embeddings": 2048, "use_cache": False,
    }  # fmt: skip
    return Logits(_hf("LlamaConfig", "LlamaForCausalLM", **(shape | settings)))


def _lora(**settings: Any) -> nn.Module:
    """A frozen bfloat16 decoder with adapters of rank 16 on queries and values; by default 1.1B parameters.

    The adapters are peft's where it is installed.
    """
    shape = {
        "hidden_size": 2048, "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4,
        "intermediate_size": 5632,
    }  # fmt: skip
    model = _llama(**(shape | settings)).to(torch.bfloat16).requires_grad_(False)
    try:
        peft = importlib.import_module("peft")
    except ImportError:
        return _with_adapters(model)
    config = peft.LoraConfig(
        r=_RANK, lora_alpha=2 * _RANK, target_modules=list(_ADAPTED), init_lora_weights=False, lora_dropout=0.0
    )
    adapted = peft.get_peft_model(model.model, config)
    return Logits(adapted)


def _with_adapters(model: nn.Module) -> nn.Module:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in (*_ADAPTED, *_ADAPTED_OF_BERT) and isinstance(child, nn.Linear):
                setattr(parent, name, LowRank(child, _RANK))
    return model


def _minilm_lora(**settings: Any) -> nn.Module:
    """An encoder of MiniLM's size, frozen, with adapters of rank 16 on queries and values, and a trained classifier."""
    shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    model = _bert(dropout=0.0, **(shape | settings)).requires_grad_(False)
    _with_adapters(model)
    head: nn.Module = model.get_submodule("model.classifier")
    head.requires_grad_(True)
    return model


def _case(
    name: str,
    description: str,
    build: Callable[..., nn.Module],
    data: Data,
    *,
    batches: tuple[int, int],
    tiny: Mapping[str, Any],
    tiny_data: Data,
    precision: Precision = Precision.TF32,
    still: Mapping[str, float] = MappingProxyType({}),
) -> Case:
    """Return a case; ``still`` are the settings that turn its random layers off."""
    sizes = {}
    for scale, settings, examples, batch in (
        (Scale.ACCELERATOR, {}, data, batches[0]),
        (Scale.PROCESSOR, {}, data, batches[1]),
        (Scale.TINY, dict(tiny), tiny_data, _TINY_BATCH),
    ):
        sizes[scale] = Size(
            build=functools.partial(build, **settings),
            build_still=functools.partial(build, **settings, **still) if still else None,
            data=examples,
            batch_size=batch,
        )
    workload = Workload(name=name, description=description, sizes=MappingProxyType(sizes))
    return Case(name=name, workload=workload, precision=precision)


_PICTURES = Images(channels=3, side=224, num_classes=1000)
_SMALL_PICTURES = Images(channels=3, side=32, num_classes=1000)
_SENTENCES = Tokens(length=128, vocabulary=30000, num_classes=2, first_id=4)
_TEXT = Tokens(length=512, vocabulary=32000)
_FEW_WORDS = Tokens(length=9, vocabulary=50, num_classes=2, first_id=4)
_FEW_NEXT = Tokens(length=9, vocabulary=50)
_NO_DROPOUT = MappingProxyType({"dropout": 0.0})
_NO_SKIPS = MappingProxyType({"path": 0.0})
_SMALL_BERT = {
    "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 16,
}  # fmt: skip
_SMALL_LLAMA = {
    "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "num_key_value_heads": 1,
}  # fmt: skip

_PUBLIC = (
    _case(
        "bert", "BERT-base of transformers with a classifier, 109M parameters, 128 tokens",
        _bert, _SENTENCES, batches=(64, 2), tiny=_SMALL_BERT, tiny_data=_FEW_WORDS, still=_NO_DROPOUT,
    ),
    _case(
        "llama", "Llama decoder of transformers, 134M parameters, 512 tokens",
        _llama, _TEXT, batches=(16, 1), tiny=_SMALL_LLAMA, tiny_data=_FEW_NEXT,
    ),
    _case(
        "llama_bf16", "Llama decoder of transformers, 134M parameters, 512 tokens, bfloat16 autocast",
        _llama, _TEXT, batches=(16, 1), tiny=_SMALL_LLAMA, tiny_data=_FEW_NEXT, precision=Precision.BF16,
    ),
    _case(
        "lora", "adapters of rank 16 on a frozen bfloat16 Llama decoder, 1.1B parameters, 512 tokens",
        _lora, _TEXT, batches=(8, 1), tiny=_SMALL_LLAMA, tiny_data=_FEW_NEXT,
    ),
    _case(
        "minilm_lora", "adapters of rank 16 on a frozen encoder of MiniLM's size, 23M parameters, 32 tokens",
        _minilm_lora, Tokens(length=32, vocabulary=30000, num_classes=2, first_id=4), batches=(200, 8),
        tiny=_SMALL_BERT, tiny_data=_FEW_WORDS,
    ),
    _case(
        "resnet50", "ResNet-50 of torchvision with group norm, 25.6M parameters",
        functools.partial(_vision, "resnet50", norm_layer=_group_norm),
        _PICTURES, batches=(64, 2), tiny={"width_per_group": 16}, tiny_data=_SMALL_PICTURES,
    ),
    _case(
        "convnext_t", "ConvNeXt-T of torchvision, 28.6M parameters",
        _convnext, _PICTURES, batches=(64, 2), tiny={"widths": (8, 16), "depths": (1, 1)}, tiny_data=_SMALL_PICTURES,
        still=_NO_SKIPS,
    ),
    _case(
        "swin_t_bf16", "Swin-T of torchvision, 28.3M parameters, bfloat16 autocast",
        _swin, _PICTURES, batches=(64, 2), tiny={"width": 12, "depths": (2, 2), "heads": (2, 4)},
        tiny_data=_SMALL_PICTURES, precision=Precision.BF16, still=_NO_SKIPS,
    ),
    _case(
        "gpt2_hf", "GPT-2 small of transformers with its tied head, 124M parameters, 512 tokens",
        _gpt2, _TEXT, batches=(16, 1), tiny={"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2,
        "bos_token_id": 1, "eos_token_id": 1}, tiny_data=_FEW_NEXT, still=_NO_DROPOUT,
    ),
    _case(
        "vit_b", "ViT-B/16 of torchvision, 86.6M parameters",
        _vit, _PICTURES, batches=(64, 2), tiny={"side": 32, "num_blocks": 2, "num_heads": 2, "width": 16},
        tiny_data=_SMALL_PICTURES,
    ),
    _case(
        "deit_s", "DeiT-S/16 of transformers, 22M parameters",
        functools.partial(_deit, hidden_size=384, num_attention_heads=6, intermediate_size=1536),
        _PICTURES, batches=(64, 2), tiny={"image_size": 32, "num_hidden_layers": 1}, tiny_data=_SMALL_PICTURES,
    ),
    _case(
        "distilbert", "DistilBERT of transformers with a classifier, 67M parameters, 128 tokens",
        _distilbert, _SENTENCES, batches=(64, 2), tiny_data=_FEW_WORDS, still=_NO_DROPOUT,
        tiny={"vocab_size": 50, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 9},
    ),
    _case(
        "roberta", "RoBERTa-base of transformers with a classifier, 125M parameters, 128 tokens",
        functools.partial(_roberta, vocab_size=50265, max_position_embeddings=514), _SENTENCES, batches=(64, 2),
        tiny=_SMALL_BERT, tiny_data=_FEW_WORDS, still=_NO_DROPOUT,
    ),
    _case(
        "t5_encoder", "encoder of T5-small of transformers with a classifier, 35M parameters, 128 tokens",
        _t5_encoder, _SENTENCES, batches=(64, 2),
        tiny={"vocab_size": 50, "width": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2},
        tiny_data=_FEW_WORDS, still=_NO_DROPOUT,
    ),
    _case(
        "efficientnet_b0", "EfficientNet-B0 of torchvision with group norm, 5.3M parameters",
        functools.partial(_vision, "efficientnet_b0", norm_layer=_group_norm), _PICTURES, batches=(64, 2), tiny={},
        tiny_data=_SMALL_PICTURES, still=MappingProxyType({"stochastic_depth_prob": 0.0, "dropout": 0.0}),
    ),
    _case(
        "mobilenet_v3", "MobileNetV3-Large of torchvision with group norm, 5.5M parameters",
        functools.partial(_vision, "mobilenet_v3_large", norm_layer=_group_norm), _PICTURES, batches=(64, 2), tiny={},
        tiny_data=_SMALL_PICTURES, still=_NO_DROPOUT,
    ),
)  # fmt: skip

_HOUSE = tuple(Case(name=name, workload=workload) for name, workload in WORKLOADS.items())

CASES: Mapping[str, Case] = MappingProxyType({case.name: case for case in (*_PUBLIC, *_HOUSE)})
