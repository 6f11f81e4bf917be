"""Architectures of transformers that read text, with padding."""

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
    logits_of,
    token_loss,
    tokens,
)

VOCABULARY = 64
# The same few numbers under the names that configurations use; a configuration takes those it knows.
_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "num_labels": CLASSES,
}
_BARE: dict[str, Any] = {"vocab_size": VOCABULARY, "num_labels": CLASSES, "pad_token_id": 1}
_ENCODER_DECODER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 3,
}


def model_of(kind: str, head: str, settings: dict[str, Any]) -> nn.Module:
    """Return a small model with random weights."""
    import transformers

    config = transformers.AutoConfig.for_model(kind, **settings)
    model: nn.Module = getattr(transformers, head).from_config(config)
    return model.train()


def _classifies(kind: str, *, length: int = 16, base: dict[str, Any] = _SMALL, **settings: Any) -> Build:
    def build() -> Built:
        model = model_of(kind, "AutoModelForSequenceClassification", base | settings)

        def loss(batch: Batch) -> Tensor:
            return class_loss(
                logits_of(model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])), batch["y"]
            )

        return model, lambda num: tokens(num, length=length), loss

    return build


def _fills(kind: str, *, length: int = 16, **settings: Any) -> Build:
    return _each_token(kind, "AutoModelForMaskedLM", _SMALL | settings, length)


def _continues(kind: str, *, length: int = 16, **settings: Any) -> Build:
    return _each_token(kind, "AutoModelForCausalLM", _SMALL | settings, length)


def _each_token(kind: str, head: str, settings: dict[str, Any], length: int) -> Build:
    def build() -> Built:
        model = model_of(kind, head, settings)

        def loss(batch: Batch) -> Tensor:
            scores = logits_of(
                model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
            )
            return token_loss(scores[:, :-1], batch["labels"][:, 1:])

        return model, lambda num: tokens(num, length=length), loss

    return build


def _translates(kind: str, *, base: dict[str, Any] = _ENCODER_DECODER, **settings: Any) -> Build:
    def build() -> Built:
        model = model_of(kind, "AutoModelForSeq2SeqLM", base | settings)

        def loss(batch: Batch) -> Tensor:
            scores = logits_of(
                model(
                    input_ids=batch["input_ids"],
                    attention_mask=batch["attention_mask"],
                    decoder_input_ids=batch["input_ids"],
                    decoder_attention_mask=batch["attention_mask"],
                )
            )
            return token_loss(scores[:, :-1], batch["labels"][:, 1:])

        return model, tokens, loss

    return build


_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8}

_ROWS: dict[str, Build] = {
    "BERT": _classifies("bert"),
    "BERT, masked tokens": _fills("bert"),
    "BERT generation": _continues("bert-generation", is_decoder=True),
    "RoBERTa": _classifies("roberta"),
    "RoBERTa, pre-layer-norm": _classifies("roberta-prelayernorm"),
    "XLM-RoBERTa": _classifies("xlm-roberta"),
    "XLM-RoBERTa XL": _classifies("xlm-roberta-xl"),
    "CamemBERT": _fills("camembert"),
    "Data2Vec text": _classifies("data2vec-text"),
    "ALBERT": _classifies("albert", embedding_size=16, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1),
    "DistilBERT": _classifies("distilbert", dim=32, n_layers=2, n_heads=4, hidden_dim=48),
    "ELECTRA": _classifies("electra", embedding_size=16),
    "DeBERTa": _classifies("deberta", relative_attention=True, pos_att_type=["c2p", "p2c"], position_biased_input=False),
    "DeBERTa v2": _classifies("deberta-v2", relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8),
    "DeBERTa v2 with convolution": _classifies("deberta-v2", relative_attention=True, conv_kernel_size=3, share_att_key=True, norm_rel_ebd="layer_norm"),
    "XLNet": _classifies("xlnet", base=_BARE, d_model=32, n_layer=2, n_head=4, d_inner=48),
    "XLM": _classifies("xlm", emb_dim=32, n_layers=2, n_heads=4),
    "FlauBERT": _classifies("flaubert", emb_dim=32, n_layers=2, n_heads=4),
    "Longformer": _fills("longformer", attention_window=4),
    "BigBird": _classifies("big_bird", attention_type="original_full"),
    "BigBird, sparse": _fills("big_bird", attention_type="block_sparse", block_size=4, num_random_blocks=1, length=64),
    "Funnel": _classifies("funnel", base=_BARE, d_model=32, n_head=4, d_head=8, d_inner=48, block_sizes=[1, 1], num_decoder_layers=1),
    "MPNet": _classifies("mpnet"),
    "SqueezeBERT": _classifies("squeezebert", embedding_size=32),
    "ConvBERT": _classifies("convbert", embedding_size=16),
    "FNet": _classifies("fnet"),
    "Nystromformer": _classifies("nystromformer", num_landmarks=4, segment_means_seq_len=16, conv_kernel_size=3, length=16),
    "YOSO": _classifies("yoso"),
    "MRA": _classifies("mra", length=64, block_per_row=2),
    "MobileBERT": _classifies("mobilebert", embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16),
    "Megatron-BERT": _classifies("megatron-bert"),
    "RemBERT": _classifies("rembert", input_embedding_size=16, output_embedding_size=16),
    "RoFormer": _classifies("roformer", embedding_size=32),
    "I-BERT": _classifies("ibert"),
    "ERNIE": _classifies("ernie"),
    "ESM": _fills("esm", position_embedding_type="rotary", token_dropout=False),
    "LayoutLM": _classifies("layoutlm"),
    "LiLT": _classifies("lilt", hidden_size=48),
    "MarkupLM": _classifies("markuplm"),
    "CANINE": _classifies("canine", local_transformer_stride=4, length=32, num_hash_buckets=64),
    "Perceiver": _classifies("perceiver", d_model=16, d_latents=16, num_latents=4, num_blocks=1, num_self_attends_per_block=2, qk_channels=16, v_channels=16),
    "ModernBERT": _classifies("modernbert", local_attention=8),
    "NomicBERT": _classifies("nomic_bert"),
    "EuroBERT": _classifies("eurobert"),
    "Jina embeddings v3": _fills("jina_embeddings_v3"),
    "X-MOD": _classifies("xmod", languages=["en"], default_language="en"),
    "LUKE": _classifies("luke", entity_vocab_size=8, entity_emb_size=8),
    "GPT-2": _continues("gpt2"),
    "GPT-2, classifier": _classifies("gpt2"),
    "OpenAI GPT": _continues("openai-gpt", n_embd=32, n_layer=2, n_head=4),
    "GPT-Neo": _continues("gpt_neo", num_layers=2, attention_types=[[["global", "local"], 1]], window_size=4),
    "GPT-NeoX": _continues("gpt_neox"),
    "GPT-NeoX Japanese": _continues("gpt_neox_japanese"),
    "GPT-J": _continues("gptj", n_embd=32, n_layer=2, n_head=4, rotary_dim=4),
    "GPT BigCode": _continues("gpt_bigcode", n_embd=32, n_layer=2, n_head=4),
    "OPT": _continues("opt", ffn_dim=48, word_embed_proj_dim=32),
    "BLOOM": _continues("bloom", n_layer=2, n_head=4),
    "Llama": _continues("llama"),
    "Llama, classifier": _classifies("llama"),
    "Mistral": _continues("mistral", sliding_window=4),
    "Ministral": _continues("ministral", sliding_window=4, head_dim=8),
    "Qwen2": _continues("qwen2"),
    "Qwen3": _continues("qwen3", head_dim=8),
    "Gemma": _continues("gemma", head_dim=8),
    "Gemma 2": _continues("gemma2", head_dim=8, sliding_window=4),
    "Gemma 3": _continues("gemma3_text", head_dim=8, sliding_window=4),
    "VaultGemma": _continues("vaultgemma", head_dim=8),
    "RecurrentGemma": _continues("recurrent_gemma", head_dim=8, lru_width=32, attention_window_size=8),
    "Phi": _continues("phi"),
    "Phi-3": _continues("phi3"),
    "StableLM": _continues("stablelm"),
    "Falcon": _continues("falcon"),
    "Falcon, ALiBi": _continues("falcon", alibi=True, multi_query=False, new_decoder_architecture=False),
    "MPT": _continues("mpt", d_model=32, n_heads=4, n_layers=2, max_seq_len=64),
    "CodeGen": _continues("codegen", n_embd=32, n_layer=2, n_head=4, rotary_dim=4),
    "CTRL": _continues("ctrl", n_embd=32, n_layer=2, n_head=4, dff=48),
    "XGLM": _continues("xglm", d_model=32, num_layers=2, attention_heads=4, ffn_dim=48),
    "BioGPT": _continues("biogpt"),
    "Mamba": _continues("mamba", state_size=4),
    "Mamba 2": _continues("mamba2", state_size=4, num_heads=8, head_dim=8, n_groups=2, chunk_size=8),
    "Falcon-Mamba": _continues("falcon_mamba", state_size=4),
    "RWKV": _continues("rwkv", attention_hidden_size=32),
    "xLSTM": _continues("xlstm", num_heads=4, num_blocks=2, embedding_dim=32, mode="train", return_last_states=False),
    "Granite": _continues("granite"),
    "Cohere": _continues("cohere"),
    "Cohere 2": _continues("cohere2", sliding_window=4),
    "OLMo": _continues("olmo"),
    "OLMo 2": _continues("olmo2"),
    "OLMo 3": _continues("olmo3", sliding_window=4),
    "StarCoder2": _continues("starcoder2"),
    "Persimmon": _continues("persimmon"),
    "Nemotron": _continues("nemotron"),
    "GLM": _continues("glm", head_dim=8),
    "GLM-4": _continues("glm4", head_dim=8),
    "Helium": _continues("helium", head_dim=8),
    "SmolLM3": _continues("smollm3"),
    "Arcee": _continues("arcee"),
    "Apertus": _continues("apertus"),
    "Seed-OSS": _continues("seed_oss", head_dim=8),
    "EXAONE 4": _continues("exaone4", sliding_window=4),
    "ERNIE 4.5": _continues("ernie4_5", head_dim=8),
    "Hunyuan dense": _continues("hunyuan_v1_dense", head_dim=8),
    "LFM2": _continues("lfm2", layer_types=["conv", "full_attention"]),
    "BitNet": _continues("bitnet"),
    "DiffLlama": _continues("diffllama"),
    "NanoChat": _continues("nanochat"),
    "CWM": _continues("cwm", head_dim=8),
    "MiniCPM 3": _continues("minicpm3", q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8, head_dim=4),
    "ModernBERT decoder": _continues("modernbert-decoder", local_attention=8),
    "T5": _translates("t5", **_T5),
    "T5, gated": _translates("t5", feed_forward_proj="gated-gelu", **_T5),
    "mT5": _translates("mt5", **_T5),
    "UMT5": _translates("umt5", **_T5),
    "LongT5, local": _translates("longt5", local_radius=4, encoder_attention_type="local", **_T5),
    "LongT5, transient global": _translates("longt5", local_radius=4, global_block_size=4, encoder_attention_type="transient-global", **_T5),
    "BART": _translates("bart"),
    "mBART": _translates("mbart"),
    "Pegasus": _translates("pegasus"),
    "Pegasus-X": _translates("pegasus_x", block_size=4, num_global_tokens=4),
    "Marian": _translates("marian"),
    "Blenderbot": _translates("blenderbot"),
    "Blenderbot small": _translates("blenderbot-small"),
    "M2M-100": _translates("m2m_100"),
    "PLBART": _translates("plbart"),
    "MVP": _translates("mvp"),
    "LED": _translates("led", attention_window=4, max_encoder_position_embeddings=64, max_decoder_position_embeddings=64),
    "BigBird-Pegasus": _translates("bigbird_pegasus", attention_type="original_full"),
    "ProphetNet": _translates("prophetnet", base={}, vocab_size=64, pad_token_id=1, decoder_start_token_id=2, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64, hidden_size=32, num_encoder_layers=2, num_decoder_layers=2, num_encoder_attention_heads=4, num_decoder_attention_heads=4, ngram=2, num_buckets=8),
    "FSMT": _translates("fsmt", langs=["a", "b"], src_vocab_size=64, tgt_vocab_size=64),
}

TRANSFORMERS = tuple(Architecture(name=name, build=build, needs=("transformers",)) for name, build in _ROWS.items())
