"""Architectures that mix their examples, move them by number, or read them into Python: none of them is proven.

Experts, whose rows travel by number and come back, are: they are listed apart.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.isolation.architecture import Architecture, Batch, Build, Built, class_loss, images, per_example, tokens
from tests.isolation.architectures_senses import SERIES, TEXT_TOWER, TOWERS, both, foretells, listens, sees
from tests.isolation.architectures_transformers import SMALL, classifies, continues, model_of, translates


def _normalised() -> Built:
    """Batch normalisation in training mode."""
    model = model_of(
        "resnet",
        "AutoModelForImageClassification",
        {"num_labels": 5, "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    )
    return model, images, lambda batch: class_loss(model(batch["x"]).logits, batch["y"])


def _in_the_flat() -> Built:
    """torch's layer, told that the examples are its second axis though they are its first."""
    model = nn.LSTM(8, 4)
    return model, lambda num: {"x": torch.randn(num, 6, 8)}, lambda batch: per_example(model(batch["x"])[0])


def _contrasted(model: Any, batch: Batch) -> Tensor:
    """Every text with its own image, against all others of the batch."""
    output = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], pixel_values=batch["x"])
    return class_loss(output.logits_per_text, torch.arange(len(batch["x"])))


def _together(model: Any, batch: Batch) -> Tensor:
    output = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], pixel_values=batch["x"])
    return per_example(output[0] ** 2)


def _global() -> Built:
    """Longformer with a token of each example that sees, and is seen by, all others of it."""
    model = model_of("longformer", "AutoModelForSequenceClassification", SMALL | {"attention_window": 4})

    def loss(batch: Batch) -> Tensor:
        return class_loss(model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits, batch["y"])

    return model, tokens, loss


_EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_TRAVELS: dict[str, Build] = {
    "Mixtral": continues("mixtral", **_EXPERTS),
    "Qwen2-MoE": continues("qwen2_moe", shared_expert_intermediate_size=16, **_EXPERTS),
    "OLMoE": continues("olmoe", **_EXPERTS),
}
_VIDEO = {"shape": (4, 3, 16, 16), "image_size": 16, "num_frames": 4}

_ROWS: dict[str, Build] = {
    "LSTM whose time is taken for examples": _in_the_flat,
    "X-MOD": classifies("xmod", languages=["en"], default_language="en"),
    "ProphetNet": translates(
        "prophetnet",
        base={},
        vocab_size=64,
        pad_token_id=1,
        decoder_start_token_id=2,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=64,
        hidden_size=32,
        num_encoder_layers=2,
        num_decoder_layers=2,
        num_encoder_attention_heads=4,
        num_decoder_attention_heads=4,
        ngram=2,
        num_buckets=8,
    ),
    "Longformer, global attention": _global,
    "I-BERT": classifies("ibert"),
    "ResNet, batch normalisation": _normalised,
    "TimeSformer": sees("timesformer", **_VIDEO),
    "ViLT": both("vilt", _together, **TEXT_TOWER, image_size=32, patch_size=8),
    "CLIP, contrastive loss": both("clip", _contrasted, **TOWERS),
    "Wav2Vec2, SpecAugment": listens("wav2vec2", mask_time_prob=0.3),
    "Time series transformer, scaled by means": foretells(
        "time_series_transformer", "TimeSeriesTransformerModel", scaling="mean", **SERIES
    ),
    "Autoformer": foretells("autoformer", "AutoformerModel", **SERIES),
}  # fmt: skip

# experts take the rows of many examples, which come back to their places
TRAVELLING = tuple(Architecture(name=name, build=build, needs=("transformers",)) for name, build in _TRAVELS.items())
MOVING = tuple(
    Architecture(name=name, build=build, needs=() if build is _in_the_flat else ("transformers",))
    for name, build in _ROWS.items()
)
