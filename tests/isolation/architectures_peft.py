"""Adapters of peft on small models of transformers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tests.isolation.architecture import (
    Architecture,
    Batch,
    Build,
    Built,
    class_loss,
    logits_of,
    token_loss,
    tokens,
)
from tests.isolation.architectures_transformers import SMALL, model_of

_BERT = ["query", "value"]
_LLAMA = ["q_proj", "v_proj"]


def _on_bert(name: str, **settings: Any) -> Build:
    def build() -> Built:
        import peft

        base = model_of("bert", "AutoModelForSequenceClassification", SMALL)
        model = peft.get_peft_model(base, getattr(peft, name)(task_type="SEQ_CLS", **settings)).train()

        def loss(batch: Batch) -> Tensor:
            scores = logits_of(model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]))
            return class_loss(scores, batch["y"])

        return model, tokens, loss

    return build


def _on_llama(name: str, **settings: Any) -> Build:
    def build() -> Built:
        import peft

        base = model_of("llama", "AutoModelForCausalLM", SMALL)
        model = peft.get_peft_model(base, getattr(peft, name)(task_type="CAUSAL_LM", **settings)).train()

        def loss(batch: Batch) -> Tensor:
            scores = logits_of(model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]))
            return token_loss(scores[:, -16:-1], batch["labels"][:, 1:])

        return model, tokens, loss

    return build


_SHAPE = {"token_dim": 32, "num_layers": 2, "num_attention_heads": 4}

_ROWS: dict[str, Build] = {
    "LoRA on BERT": _on_bert("LoraConfig", r=2, lora_dropout=0.1, target_modules=_BERT),
    "LoRA on Llama": _on_llama("LoraConfig", r=2, lora_dropout=0.1, target_modules=_LLAMA),
    "rank-stabilised LoRA": _on_bert("LoraConfig", r=2, use_rslora=True, lora_dropout=0.1, target_modules=_BERT),
    "DoRA on BERT": _on_bert("LoraConfig", r=2, use_dora=True, lora_dropout=0.1, target_modules=_BERT),
    "DoRA on Llama": _on_llama("LoraConfig", r=2, use_dora=True, target_modules=_LLAMA),
    "LoRA on the embedding": _on_llama("LoraConfig", r=2, target_modules=["embed_tokens", "q_proj"]),
    "PiSSA": _on_llama("LoraConfig", r=2, init_lora_weights="pissa", target_modules=_LLAMA),
    "AdaLoRA": _on_bert("AdaLoraConfig", init_r=2, target_r=1, total_step=10, target_modules=_BERT),
    "IA3 on BERT": _on_bert(
        "IA3Config", target_modules=["key", "value", "output.dense"], feedforward_modules=["output.dense"],
    ),
    "IA3 on Llama": _on_llama(
        "IA3Config", target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"],
    ),
    "LoHa": _on_bert("LoHaConfig", r=2, target_modules=_BERT),
    "LoKr": _on_bert("LoKrConfig", r=2, target_modules=_BERT),
    "OFT": _on_bert("OFTConfig", oft_block_size=4, target_modules=_BERT),
    "BOFT": _on_bert("BOFTConfig", boft_block_size=4, target_modules=_BERT),
    "VeRA": _on_bert("VeraConfig", r=4, target_modules=_BERT),
    "FourierFT": _on_bert("FourierFTConfig", n_frequency=8, target_modules=_BERT),
    "VB-LoRA": _on_bert("VBLoRAConfig", r=2, num_vectors=8, vector_length=8, topk=2, target_modules=_BERT),
    "HRA": _on_bert("HRAConfig", r=2, target_modules=_BERT),
    "MiSS": _on_bert("MissConfig", r=4, target_modules=_BERT),
    "RandLoRA": _on_bert("RandLoraConfig", r=2, target_modules=_BERT),
    "C3A": _on_bert("C3AConfig", block_size=8, target_modules=_BERT),
    "SHiRA": _on_bert("ShiraConfig", r=2, target_modules=_BERT),
    "layer norms only": _on_bert("LNTuningConfig", target_modules=["LayerNorm"]),
    "trainable tokens": _on_llama("TrainableTokensConfig", target_modules=["embed_tokens"], token_indices=[5, 6]),
    "prompt tuning on BERT": _on_bert("PromptTuningConfig", num_virtual_tokens=4, **_SHAPE),
    "prompt tuning on Llama": _on_llama("PromptTuningConfig", num_virtual_tokens=4, **_SHAPE),
    "P-tuning": _on_llama("PromptEncoderConfig", num_virtual_tokens=4, encoder_hidden_size=16, **_SHAPE),
    "P-tuning, LSTM": _on_llama(
        "PromptEncoderConfig", num_virtual_tokens=4, encoder_hidden_size=16, encoder_reparameterization_type="LSTM",
        **_SHAPE,
    ),
    "prefix tuning on Llama": _on_llama("PrefixTuningConfig", num_virtual_tokens=4, **_SHAPE),
    "prefix tuning, projected": _on_llama(
        "PrefixTuningConfig", num_virtual_tokens=4, prefix_projection=True, encoder_hidden_size=16, **_SHAPE,
    ),
    "LLaMA-Adapter": _on_llama("AdaptionPromptConfig", adapter_len=4, adapter_layers=2),
}  # fmt: skip

PEFT = tuple(
    Architecture(name=f"peft {name}", build=build, needs=("transformers", "peft")) for name, build in _ROWS.items()
)
