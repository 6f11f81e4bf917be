"""Networks of diffusers: noise is added to each example, and the network says which."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.isolation.architecture import Architecture, Batch, Build, Built, per_example

_TEXT = (6, 16)  # tokens and width of what the network is conditioned on


def _model(name: str, settings: dict[str, Any]) -> Any:
    import diffusers

    return getattr(diffusers, name)(**settings).train()


def _noise(num: int, shape: tuple[int, ...]) -> Batch:
    return {
        "x": torch.randn(num, *shape),
        "time": torch.randint(0, 1000, (num,)),
        "text": torch.randn(num, *_TEXT),
        "pooled": torch.randn(num, 16),
        "label": torch.randint(0, 5, (num,)),
        "weight": torch.rand(num),
    }


def _denoises(name: str, shape: tuple[int, ...], given: dict[str, str] | None = None, **settings: Any) -> Build:
    """``given`` says which parts of the batch the network takes under which names, besides examples and times."""

    def build() -> Built:
        model, names = _model(name, settings), given or {}

        def loss(batch: Batch) -> Tensor:
            noise = torch.randn_like(batch["x"])
            share = batch["weight"].view(-1, *[1] * (batch["x"].dim() - 1))
            noisy = share.sqrt() * batch["x"] + (1 - share).sqrt() * noise
            arguments = {argument: batch[part] for argument, part in names.items()}
            found = model(noisy, timestep=batch["time"], **arguments).sample
            return per_example((found[:, : noise.shape[1]] - noise) ** 2)

        return model, lambda num: _noise(num, shape), loss

    return build


def _encodes(name: str, shape: tuple[int, ...], **settings: Any) -> Build:
    def build() -> Built:
        model = _model(name, settings)

        def loss(batch: Batch) -> Tensor:
            found = model.encode(batch["x"])
            code = found.latent_dist.sample() if hasattr(found, "latent_dist") else found[0]
            return per_example((model.decode(code).sample - batch["x"]) ** 2)

        return model, lambda num: _noise(num, shape), loss

    return build


def _flux() -> Built:
    model = _model(
        "FluxTransformer2DModel",
        {
            "patch_size": 1, "in_channels": 4, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 8,
            "num_attention_heads": 2, "joint_attention_dim": 16, "pooled_projection_dim": 16,
            "axes_dims_rope": (2, 2, 4), "guidance_embeds": False,
        },
    )  # fmt: skip

    def loss(batch: Batch) -> Tensor:
        noise = torch.randn_like(batch["x"])
        found = model(
            hidden_states=batch["x"] + noise,
            timestep=batch["weight"],
            encoder_hidden_states=batch["text"],
            pooled_projections=batch["pooled"],
            img_ids=torch.zeros(batch["x"].shape[1], 3),
            txt_ids=torch.zeros(_TEXT[0], 3),
        ).sample
        return per_example((found - noise) ** 2)

    return model, lambda num: _noise(num, (16, 4)), loss


def _controlled() -> Built:
    """A ControlNet and the network that it steers."""
    steered = _model("UNet2DConditionModel", _CONDITIONED)
    down = {key: value for key, value in _CONDITIONED.items() if key not in _NOT_OF_CONTROL}
    control = _model("ControlNetModel", down | {"conditioning_embedding_out_channels": (8, 8)})
    model = torch.nn.ModuleList([steered, control]).train()

    def loss(batch: Batch) -> Tensor:
        noise = torch.randn_like(batch["x"])
        shown = torch.nn.functional.interpolate(batch["x"][:, :3], scale_factor=2)
        down, middle = control(
            batch["x"] + noise, batch["time"], batch["text"], controlnet_cond=shown, return_dict=False
        )
        found = steered(
            batch["x"] + noise, batch["time"], batch["text"],
            down_block_additional_residuals=down, mid_block_additional_residual=middle,
        ).sample  # fmt: skip
        return per_example((found - noise) ** 2)

    return model, lambda num: _noise(num, (4, 8, 8)), loss


_NOT_OF_CONTROL = ("up_block_types", "out_channels", "sample_size", "dropout")
_CONDITIONED: dict[str, Any] = {
    "sample_size": 8, "in_channels": 4, "out_channels": 4, "block_out_channels": (8, 16), "norm_num_groups": 4,
    "layers_per_block": 1, "cross_attention_dim": 16, "attention_head_dim": 4, "dropout": 0.1,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}  # fmt: skip
_FRAMES: dict[str, Any] = {
    **{key: value for key, value in _CONDITIONED.items() if key != "dropout"},
    "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
    "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
}
_CODE: dict[str, Any] = {
    "block_out_channels": (8, 16), "norm_num_groups": 4, "latent_channels": 4,
    "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
}  # fmt: skip
_ATTENDING: dict[str, Any] = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1}

_ROWS: dict[str, Build] = {
    "UNet2D": _denoises(
        "UNet2DModel", (3, 16, 16), sample_size=16, block_out_channels=(8, 16), norm_num_groups=4,
        layers_per_block=1, attention_head_dim=4, dropout=0.1, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ),
    "UNet2D, classes": _denoises(
        "UNet2DModel", (3, 16, 16), {"class_labels": "label"}, sample_size=16, num_class_embeds=5,
        block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1,
        down_block_types=("DownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"),
    ),
    "UNet2DCondition (Stable Diffusion)": _denoises(
        "UNet2DConditionModel", (4, 8, 8), {"encoder_hidden_states": "text"}, **_CONDITIONED,
    ),
    "UNet1D": _denoises(
        "UNet1DModel", (14, 32), in_channels=14, out_channels=14, time_embedding_type="positional",
        use_timestep_embedding=True, out_block_type="OutConv1DBlock", flip_sin_to_cos=False, freq_shift=1,
        act_fn="swish", block_out_channels=(8, 8, 16), layers_per_block=1, norm_num_groups=4,
        down_block_types=("DownResnetBlock1D",) * 3, up_block_types=("UpResnetBlock1D",) * 2,
        mid_block_type="MidResTemporalBlock1D",
    ),
    "UNet3DCondition": _denoises("UNet3DConditionModel", (4, 2, 8, 8), {"encoder_hidden_states": "text"}, **_FRAMES),
    "ControlNet": _controlled,
    "Transformer2D": _denoises(
        "Transformer2DModel", (8, 8, 8), {"encoder_hidden_states": "text"}, in_channels=8, cross_attention_dim=16,
        norm_num_groups=4, dropout=0.1, **_ATTENDING,
    ),
    "DiT": _denoises(
        "DiTTransformer2DModel", (4, 8, 8), {"class_labels": "label"}, sample_size=8, patch_size=2, in_channels=4,
        num_embeds_ada_norm=1000, dropout=0.1, **_ATTENDING,
    ),
    "PixArt": _denoises(
        "PixArtTransformer2DModel", (4, 8, 8), {"encoder_hidden_states": "text"}, sample_size=8, in_channels=4,
        out_channels=4, caption_channels=16, cross_attention_dim=16, use_additional_conditions=False, dropout=0.1,
        **_ATTENDING,
    ),
    "Stable Diffusion 3": _denoises(
        "SD3Transformer2DModel", (4, 8, 8), {"encoder_hidden_states": "text", "pooled_projections": "pooled"},
        sample_size=8, patch_size=2, in_channels=4, out_channels=4, joint_attention_dim=16,
        caption_projection_dim=16, pooled_projection_dim=16, pos_embed_max_size=8, **_ATTENDING,
    ),
    "Flux": _flux,
    "AuraFlow": _denoises(
        "AuraFlowTransformer2DModel", (4, 8, 8), {"encoder_hidden_states": "text"}, sample_size=8, patch_size=2,
        in_channels=4, out_channels=4, num_mmdit_layers=1, num_single_dit_layers=1, num_attention_heads=2,
        attention_head_dim=8, joint_attention_dim=16, caption_projection_dim=16, pos_embed_max_size=16,
    ),
    "Sana": _denoises(
        "SanaTransformer2DModel", (4, 8, 8), {"encoder_hidden_states": "text"}, sample_size=8, in_channels=4,
        out_channels=4, patch_size=1, num_cross_attention_heads=2, cross_attention_head_dim=8,
        cross_attention_dim=16, caption_channels=16, dropout=0.1, **_ATTENDING,
    ),
    "AutoencoderKL": _encodes("AutoencoderKL", (3, 16, 16), **_CODE),
    "VQModel": _encodes("VQModel", (3, 16, 16), num_vq_embeddings=16, **_CODE),
    "AutoencoderTiny": _encodes(
        "AutoencoderTiny", (3, 16, 16), encoder_block_out_channels=(8, 8), decoder_block_out_channels=(8, 8),
        num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1),
    ),
    "AutoencoderOobleck": _encodes(
        "AutoencoderOobleck", (1, 64), encoder_hidden_size=8, downsampling_ratios=[2, 4], channel_multiples=[1, 2],
        decoder_channels=8, decoder_input_channels=4, audio_channels=1,
    ),
}  # fmt: skip

DIFFUSERS = tuple(
    Architecture(name=f"diffusers {name}", build=build, needs=("diffusers",)) for name, build in _ROWS.items()
)
