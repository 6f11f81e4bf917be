"""Architectures of transformers that look, listen, read several kinds of input, or foretell series."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.isolation.architecture import (
    CLASSES,
    Architecture,
    Batch,
    Build,
    Built,
    class_loss,
    images,
    logits_of,
    padded,
    per_example,
    token_loss,
    tokens,
)
from tests.isolation.architectures_transformers import model_of

_VISION: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "num_channels": 3,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "num_labels": CLASSES,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}
_STAGES: dict[str, Any] = {"num_labels": CLASSES, "image_size": 32}
_SPEECH: dict[str, Any] = {
    "vocab_size": 12,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "conv_dim": (16, 16),
    "conv_kernel": (4, 3),
    "conv_stride": (4, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "num_labels": CLASSES,
    "classifier_proj_size": 16,
    "layerdrop": 0.0,
    "mask_time_length": 2,
    "mask_time_prob": 0.0,
    "pad_token_id": 0,
}


def frozen(model: nn.Module) -> nn.Module:
    """Batch normalisation with the averages it came with."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()
    return model


def looks(
    kind: str,
    head: str = "AutoModelForImageClassification",
    *,
    base: dict[str, Any] = _VISION,
    size: int = 32,
    **settings: Any,
) -> Build:
    def build() -> Built:
        model = frozen(model_of(kind, head, base | settings))
        channels = 3

        def loss(batch: Batch) -> Tensor:
            return class_loss(logits_of(model(pixel_values=batch["x"])), batch["y"])

        return model, lambda num: images(num, (channels, size, size)), loss

    return build


def sees(
    kind: str,
    head: str = "AutoModel",
    *,
    shape: tuple[int, ...] = (3, 32, 32),
    base: dict[str, Any] = _VISION,
    **settings: Any,
) -> Build:
    """A backbone, and the mean square of what comes out of it."""

    def build() -> Built:
        model = frozen(model_of(kind, head, base | settings))

        def loss(batch: Batch) -> Tensor:
            return per_example(logits_of(model(pixel_values=batch["x"])) ** 2)

        return model, lambda num: images(num, shape), loss

    return build


def listens(kind: str, head: str = "AutoModelForCTC", **settings: Any) -> Build:
    """Sound, padded, to letters."""

    def build() -> Built:
        model = frozen(model_of(kind, head, _SPEECH | settings))

        def make(num: int) -> Batch:
            return {
                "x": torch.randn(num, 400),
                "mask": padded(num, 400, 350),
                "letters": torch.randint(1, 12, (num, 5)),
                "y": torch.randint(0, CLASSES, (num,)),
            }

        def loss(batch: Batch) -> Tensor:
            scores = logits_of(model(batch["x"], attention_mask=batch["mask"]))
            if scores.dim() == 2:
                return class_loss(scores, batch["y"])
            lengths = torch.full((len(scores),), scores.shape[1])
            targets = torch.full((len(scores),), 5)
            return nn.functional.ctc_loss(
                scores.log_softmax(2).transpose(0, 1), batch["letters"], lengths, targets, reduction="none"
            )

        return model, make, loss

    return build


def _transcribes(kind: str, shape: tuple[int, ...], name: str, **settings: Any) -> Build:
    """Spectra to text."""
    small = {
        "vocab_size": 64, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "pad_token_id": 1,
        "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2,
    }  # fmt: skip

    def build() -> Built:
        model = model_of(kind, "AutoModelForSpeechSeq2Seq", small | settings)

        def loss(batch: Batch) -> Tensor:
            given = {name: batch["x"], "decoder_input_ids": batch["input_ids"]}
            scores = logits_of(model(**given, decoder_attention_mask=batch["attention_mask"]))
            return token_loss(scores[:, :-1], batch["labels"][:, 1:])

        return model, lambda num: {"x": torch.randn(num, *shape), **tokens(num)}, loss

    return build


def foretells(kind: str, head: str, **settings: Any) -> Build:
    """Series of numbers, some of them missing."""

    def build() -> Built:
        import transformers

        model = getattr(transformers, head)(transformers.AutoConfig.for_model(kind, **settings)).train()

        def make(num: int) -> Batch:
            return {
                "past_values": torch.randn(num, 19),
                "past_time_features": torch.randn(num, 19, 2),
                "past_observed_mask": padded(num, 19, 15).float(),
                "future_values": torch.randn(num, 4),
                "future_time_features": torch.randn(num, 4, 2),
            }

        def loss(batch: Batch) -> Tensor:
            output = model(**batch)
            return per_example(output.last_hidden_state**2)

        return model, make, loss

    return build


def patches(kind: str, head: str, **settings: Any) -> Build:
    def build() -> Built:
        import transformers

        model = getattr(transformers, head)(transformers.AutoConfig.for_model(kind, **settings)).train()

        def make(num: int) -> Batch:
            return {"x": torch.randn(num, 24, 3), "y": torch.randn(num, 4, 3)}

        def loss(batch: Batch) -> Tensor:
            return per_example((model(past_values=batch["x"]).prediction_outputs - batch["y"]) ** 2)

        return frozen(model), make, loss

    return build


def both(kind: str, run: Callable[[nn.Module, Batch], Tensor], head: str = "AutoModel", **settings: Any) -> Build:
    """Text and image of each example."""

    def build() -> Built:
        model = frozen(model_of(kind, head, settings))
        return model, lambda num: {**images(num), **tokens(num)}, lambda batch: run(model, batch)

    return build


def alike(model: Any, batch: Batch) -> Tensor:
    """Every text with its own image."""
    text = model.text_model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    image = model.vision_model(pixel_values=batch["x"])
    return 1 - nn.functional.cosine_similarity(text.last_hidden_state[:, 0], image.pooler_output)


def _describes(model: Any, batch: Batch) -> Tensor:
    output = model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], pixel_values=batch["x"],
    )  # fmt: skip
    return token_loss(output.logits[:, -16:], batch["labels"])


TEXT_TOWER = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 32, "projection_dim": 32, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3,
    "attention_dropout": 0.1,
}  # fmt: skip
_IMAGE_TOWER = {
    "image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "projection_dim": 32, "attention_dropout": 0.1,
}  # fmt: skip
TOWERS: dict[str, Any] = {"text_config": TEXT_TOWER, "vision_config": _IMAGE_TOWER, "projection_dim": 32}
SERIES = {
    "prediction_length": 4, "context_length": 16, "lags_sequence": [1, 2, 3], "num_time_features": 2, "d_model": 16,
    "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
}  # fmt: skip
_TS = {
    "num_input_channels": 3,
    "context_length": 24,
    "prediction_length": 4,
    "patch_length": 4,
    "patch_stride": 4,
    "d_model": 16,
}

_ROWS: dict[str, Build] = {
    "ViT": looks("vit"),
    "DeiT": looks("deit", "DeiTForImageClassification", pooler_output_size=32),
    "BEiT": looks("beit", drop_path_rate=0.2),
    "Data2Vec vision": looks("data2vec-vision"),
    "DINOv2": looks("dinov2", mlp_ratio=2, drop_path_rate=0.2),
    "DINOv2 with registers": looks("dinov2_with_registers", mlp_ratio=2, drop_path_rate=0.2),
    "DINOv3": sees("dinov3_vit"),
    "I-JEPA": looks("ijepa"),
    "ViT-MSN": looks("vit_msn"),
    "ViT-MAE": sees("vit_mae", decoder_hidden_size=16, decoder_num_hidden_layers=1, decoder_num_attention_heads=2),
    "YOLOS": sees("yolos", image_size=[32, 32], num_detection_tokens=4),
    "Swin": looks(
        "swin", base=_STAGES, embed_dim=16, depths=[1, 2], num_heads=[2, 2], window_size=4, patch_size=4,
        drop_path_rate=0.2,
    ),
    "Swin v2": looks(
        "swinv2", base=_STAGES, embed_dim=16, depths=[1, 2], num_heads=[2, 2], window_size=4, patch_size=4,
        drop_path_rate=0.2,
    ),
    "Swin2SR": sees(
        "swin2sr", embed_dim=16, depths=[1, 2], num_heads=[2, 2], window_size=4, patch_size=1,
        base={"image_size": 16}, shape=(3, 16, 16),
    ),
    "Donut's Swin": sees(
        "donut-swin", base=_STAGES, embed_dim=16, depths=[1, 2], num_heads=[2, 2], window_size=4, patch_size=4,
    ),
    "ConvNeXt": looks("convnext", base=_STAGES, hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, drop_path_rate=0.2),
    "ConvNeXt v2": looks(
        "convnextv2", base=_STAGES, hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, drop_path_rate=0.2,
    ),
    "DINOv3 ConvNeXt": sees("dinov3_convnext", base=_STAGES, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1]),
    "ResNet, frozen batch norms": looks("resnet", base=_STAGES, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]),
    "RegNet, frozen batch norms": looks(
        "regnet", base=_STAGES, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4,
    ),
    "BiT": looks("bit", base=_STAGES, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_groups=4),
    "MobileNet v1, frozen batch norms": looks("mobilenet_v1", base=_STAGES, depth_multiplier=0.25),
    "MobileNet v2, frozen batch norms": looks("mobilenet_v2", base=_STAGES, depth_multiplier=0.25),
    "EfficientNet, frozen batch norms": looks(
        "efficientnet", base=_STAGES, width_coefficient=0.25, depth_coefficient=0.25, hidden_dim=320,
    ),
    "MobileViT, frozen batch norms": looks(
        "mobilevit", base=_STAGES, hidden_sizes=[16, 16, 16], neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 16],
        num_attention_heads=2, patch_size=2,
    ),
    "MobileViT v2, frozen batch norms": looks("mobilevitv2", base=_STAGES, size=64, width_multiplier=0.25),
    "SegFormer": looks(
        "segformer", base=_STAGES, hidden_sizes=[8, 16], depths=[1, 1], num_encoder_blocks=2, sr_ratios=[2, 1],
        num_attention_heads=[1, 2], mlp_ratios=[2, 2], patch_sizes=[7, 3], strides=[4, 2], decoder_hidden_size=16,
        drop_path_rate=0.2,
    ),
    "PoolFormer": looks(
        "poolformer", base=_STAGES, hidden_sizes=[8, 16], depths=[1, 1], num_encoder_blocks=2, patch_sizes=[7, 3],
        strides=[4, 2], padding=[2, 1], mlp_ratio=2.0, drop_path_rate=0.2,
    ),
    "PVT": looks(
        "pvt", base=_STAGES, hidden_sizes=[8, 16], depths=[1, 1], num_encoder_blocks=2,
        sequence_reduction_ratios=[2, 1], num_attention_heads=[1, 2], mlp_ratios=[2, 2], patch_sizes=[4, 2],
        strides=[4, 2],
    ),
    "PVT v2": looks(
        "pvt_v2", base=_STAGES, hidden_sizes=[8, 16], depths=[1, 1], num_encoder_blocks=2, sr_ratios=[2, 1],
        num_attention_heads=[1, 2], mlp_ratios=[2, 2], patch_sizes=[7, 3], strides=[4, 2],
    ),
    "LeViT, frozen batch norms": looks(
        "levit", "LevitForImageClassification", base=_STAGES | {"image_size": 64}, size=64,
        hidden_sizes=[16, 16, 16], num_attention_heads=[2, 2, 2], depths=[1, 1, 1], key_dim=[4, 4, 4], stride=2,
    ),
    "FocalNet": looks(
        "focalnet", base=_STAGES, embed_dim=8, hidden_sizes=[8, 16], depths=[1, 1], focal_levels=[1, 1],
        focal_windows=[3, 3],
    ),
    "Hiera": looks(
        "hiera", base=_STAGES, embed_dim=8, depths=[1, 1], num_heads=[1, 2], patch_size=[4, 4], patch_stride=[4, 4],
        patch_padding=[0, 0], image_size=[32, 32], masked_unit_size=[2, 2], query_stride=[2, 2], num_query_pool=1,
    ),
    "SwiftFormer, frozen batch norms": looks(
        "swiftformer", base=_STAGES, depths=[1, 1, 1, 1], embed_dims=[8, 8, 16, 16],
    ),
    "TextNet, frozen batch norms": sees("textnet", base={}),
    "HGNet v2, frozen batch norms": looks("hgnet_v2", base=_STAGES),
    "GLPN": sees(
        "glpn", base={}, hidden_sizes=[8, 16], depths=[1, 1], num_encoder_blocks=2, sr_ratios=[2, 1],
        num_attention_heads=[1, 2], mlp_ratios=[2, 2], patch_sizes=[7, 3], strides=[4, 2], decoder_hidden_size=16,
    ),
    "DPT": sees(
        "dpt", "AutoModelForDepthEstimation", num_hidden_layers=4, backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8, is_hybrid=False, reassemble_factors=[4, 2, 1, 0.5],
    ),
    "VideoMAE": sees("videomae", shape=(4, 3, 16, 16), image_size=16, num_frames=4, tubelet_size=2),
    "ViViT": sees("vivit", shape=(4, 3, 16, 16), image_size=16, num_frames=4, tubelet_size=[2, 8, 8]),
    "CLIP": both("clip", alike, **TOWERS),
    "SigLIP": both("siglip", alike, **TOWERS),
    "Chinese CLIP": both("chinese_clip", alike, **TOWERS),
    "BLIP": both("blip", _describes, "AutoModelForImageTextToText", **TOWERS),
    "GIT": both("git", _describes, "AutoModelForCausalLM", vision_config=_IMAGE_TOWER, **TEXT_TOWER),
    "Wav2Vec2": listens("wav2vec2"),
    "Wav2Vec2, layer norms": listens("wav2vec2", feat_extract_norm="layer", do_stable_layer_norm=True),
    "Wav2Vec2, classifier": listens("wav2vec2", "AutoModelForAudioClassification"),
    "Wav2Vec2 Conformer, frozen batch norms": listens("wav2vec2-conformer"),
    "HuBERT": listens("hubert"),
    "WavLM": listens("wavlm", num_buckets=8, max_bucket_distance=16),
    "SEW": listens("sew", squeeze_factor=2),
    "SEW-D": listens("sew-d", squeeze_factor=2, max_position_embeddings=64, position_buckets=8),
    "UniSpeech": listens("unispeech"),
    "UniSpeech-SAT": listens("unispeech-sat"),
    "Data2Vec audio": listens("data2vec-audio", conv_pos_kernel_size=3, num_conv_pos_embeddings=2),
    "Whisper": _transcribes(
        "whisper", (8, 40), "input_features", num_mel_bins=8, max_source_positions=20, max_target_positions=32,
    ),
    "Speech2Text": _transcribes(
        "speech_to_text", (40, 8), "input_features", input_feat_per_channel=8, conv_channels=16,
        max_source_positions=64, max_target_positions=32, encoder_layerdrop=0.0, decoder_layerdrop=0.0,
    ),
    "Moonshine": _transcribes(
        "moonshine", (3000,), "input_values", hidden_size=32, encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2, encoder_num_attention_heads=4, decoder_num_attention_heads=4,
        intermediate_size=48,
    ),
    "Time series transformer": foretells(
        "time_series_transformer", "TimeSeriesTransformerModel", scaling="std", **SERIES,
    ),
    "Informer": foretells("informer", "InformerModel", scaling="std", **SERIES),
    "PatchTST": patches(
        "patchtst", "PatchTSTForPrediction", **_TS, num_hidden_layers=2, num_attention_heads=2, ffn_dim=16,
        scaling="std", norm_type="layernorm",
    ),
    "PatchTSMixer": patches("patchtsmixer", "PatchTSMixerForPrediction", **_TS, num_layers=2, norm_mlp="LayerNorm"),
}  # fmt: skip

SENSES = tuple(Architecture(name=name, build=build, needs=("transformers",)) for name, build in _ROWS.items())
