"""Architectures of transformers that read text, with padding."""

from __future__ import annotations

from typing import Any

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
SMALL: dict[str, Any] = {
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
    family = getattr(transformers, head)
    model: nn.Module = family.from_config(config) if head.startswith("Auto") else family(config)
    return model.train()


def classifies(kind: str, *, length: int = 16, base: dict[str, Any] = SMALL, **settings: Any) -> Build:
    def build() -> Built:
        model = model_of(kind, "AutoModelForSequenceClassification", base | settings)

        def loss(batch: Batch) -> Tensor:
            return class_loss(
                logits_of(model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])), batch["y"]
            )

        return model, lambda num: tokens(num, length=length), loss

    return build


def _fills(kind: str, *, length: int = 16, **settings: Any) -> Build:
    return _each_token(kind, "AutoModelForMaskedLM", SMALL | settings, length)


def continues(kind: str, *, length: int = 16, **settings: Any) -> Build:
    return _each_token(kind, "AutoModelForCausalLM", SMALL | settings, length)


def _each_token(kind: str, head: str, settings: dict[str, Any], length: int) -> Build:
    def build() -> Built:
        model = model_of(kind, head, settings)

        def loss(batch: Batch) -> Tensor:
            scores = logits_of(model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]))
            return token_loss(scores[:, :-1], batch["labels"][:, 1:])

        return model, lambda num: tokens(num, length=length), loss

    return build


def translates(kind: str, *, base: dict[str, Any] = _ENCODER_DECODER, **settings: Any) -> Build:
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
    "BERT": classifies("bert"),
    "BERT, masked tokens": _fills("bert"),
    "BERT generation": continues("bert-generation", is_decoder=True),
    "RoBERTa": classifies("roberta"),
    "RoBERTa, pre-layer-norm": classifies("roberta-prelayernorm"),
    "XLM-RoBERTa": classifies("xlm-roberta"),
    "XLM-RoBERTa XL": classifies("xlm-roberta-xl"),
    "CamemBERT": _fills("camembert"),
    "Data2Vec text": classifies("data2vec-text"),
    "ALBERT": classifies("albert", embedding_size=16, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1),
    "DistilBERT": classifies("distilbert", dim=32, n_layers=2, n_heads=4, hidden_dim=48),
    "ELECTRA": classifies("electra", embedding_size=16),
    "DeBERTa": classifies("deberta", relative_attention=True, pos_att_type=["c2p", "p2c"], position_biased_input=False),
    "DeBERTa v2": classifies("deberta-v2", relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8),
    "DeBERTa v2 with convolution": classifies(
        "deberta-v2", relative_attention=True, conv_kernel_size=3, share_att_key=True, norm_rel_ebd="layer_norm"
    ),
    "XLNet": classifies("xlnet", base=_BARE, d_model=32, n_layer=2, n_head=4, d_inner=48),
    "XLM": classifies("xlm", emb_dim=32, n_layers=2, n_heads=4),
    "FlauBERT": classifies("flaubert", emb_dim=32, n_layers=2, n_heads=4),
    "Longformer": _fills("longformer", attention_window=4),
    "BigBird": classifies("big_bird", attention_type="original_full"),
    "BigBird, sparse": _fills("big_bird", attention_type="block_sparse", block_size=4, num_random_blocks=1, length=64),
    "Funnel": classifies(
        "funnel", base=_BARE, d_model=32, n_head=4, d_head=8, d_inner=48, block_sizes=[1, 1], num_decoder_layers=1
    ),
    "MPNet": classifies("mpnet"),
    "SqueezeBERT": classifies("squeezebert", embedding_size=32),
    "ConvBERT": classifies("convbert", embedding_size=16),
    "FNet": classifies("fnet"),
    "Nystromformer": classifies("nystromformer", num_landmarks=16, segment_means_seq_len=16, conv_kernel_size=3),
    "YOSO": classifies("yoso"),
    "MRA": classifies("mra", length=64, block_per_row=2),
    "MobileBERT": classifies("mobilebert", embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16),
    "Megatron-BERT": classifies("megatron-bert"),
    "RemBERT": classifies("rembert", input_embedding_size=16, output_embedding_size=16),
    "RoFormer": classifies("roformer", embedding_size=32),
    "ERNIE": classifies("ernie"),
    "ESM": _fills("esm", position_embedding_type="rotary", token_dropout=False),
    "LayoutLM": classifies("layoutlm"),
    "LiLT": classifies("lilt", hidden_size=48),
    "MarkupLM": classifies("markuplm"),
    "CANINE": classifies("canine", local_transformer_stride=4, length=32, num_hash_buckets=64),
    "Perceiver": classifies(
        "perceiver",
        d_model=16,
        d_latents=16,
        num_latents=4,
        num_blocks=1,
        num_self_attends_per_block=2,
        qk_channels=16,
        v_channels=16,
    ),
    "ModernBERT": classifies("modernbert", local_attention=8),
    "NomicBERT": classifies("nomic_bert"),
    "EuroBERT": classifies("eurobert"),
    "Jina embeddings v3": _fills("jina_embeddings_v3"),
    "LUKE": classifies("luke", entity_vocab_size=8, entity_emb_size=8),
    "GPT-2": continues("gpt2"),
    "GPT-2, classifier": classifies("gpt2"),
    "OpenAI GPT": continues("openai-gpt", n_embd=32, n_layer=2, n_head=4),
    "GPT-Neo": continues("gpt_neo", num_layers=2, attention_types=[[["global", "local"], 1]], window_size=4),
    "GPT-NeoX": continues("gpt_neox"),
    "GPT-NeoX Japanese": continues("gpt_neox_japanese"),
    "GPT-J": continues("gptj", n_embd=32, n_layer=2, n_head=4, rotary_dim=4),
    "GPT BigCode": continues("gpt_bigcode", n_embd=32, n_layer=2, n_head=4),
    "OPT": continues("opt", ffn_dim=48, word_embed_proj_dim=32),
    "BLOOM": continues("bloom", n_layer=2, n_head=4),
    "Llama": continues("llama"),
    "Llama, classifier": classifies("llama"),
    "Mistral": continues("mistral", sliding_window=4),
    "Ministral": continues("ministral", sliding_window=4, head_dim=8),
    "Qwen2": continues("qwen2"),
    "Qwen3": continues("qwen3", head_dim=8),
    "Gemma": continues("gemma", head_dim=8),
    "Gemma 2": continues("gemma2", head_dim=8, sliding_window=4),
    "Gemma 3": continues("gemma3_text", head_dim=8, sliding_window=4),
    "VaultGemma": continues("vaultgemma", head_dim=8),
    "RecurrentGemma": continues(
        "recurrent_gemma",
        head_dim=8,
        lru_width=32,
        attention_window_size=8,
        use_cache=False,
    ),
    "Phi": continues("phi"),
    "Phi-3": continues("phi3"),
    "StableLM": continues("stablelm"),
    "Falcon": continues("falcon"),
    "Falcon, ALiBi": continues("falcon", alibi=True, multi_query=False, new_decoder_architecture=False),
    "MPT": continues("mpt", d_model=32, n_heads=4, n_layers=2, max_seq_len=64),
    "CodeGen": continues("codegen", n_embd=32, n_layer=2, n_head=4, rotary_dim=4),
    "CTRL": continues("ctrl", n_embd=32, n_layer=2, n_head=4, dff=48),
    "XGLM": continues("xglm", d_model=32, num_layers=2, attention_heads=4, ffn_dim=48),
    "BioGPT": continues("biogpt"),
    "Mamba": continues("mamba", state_size=4),
    "Mamba 2": continues("mamba2", state_size=4, num_heads=8, head_dim=8, n_groups=2, chunk_size=8),
    "Falcon-Mamba": continues("falcon_mamba", state_size=4),
    "RWKV": continues("rwkv", attention_hidden_size=32),
    "Granite": continues("granite"),
    "Cohere": continues("cohere"),
    "Cohere 2": continues("cohere2", sliding_window=4),
    "OLMo": continues("olmo"),
    "OLMo 2": continues("olmo2"),
    "OLMo 3": continues("olmo3", sliding_window=4),
    "StarCoder2": continues("starcoder2"),
    "Persimmon": continues("persimmon"),
    "Nemotron": continues("nemotron"),
    "GLM": continues("glm", head_dim=8),
    "GLM-4": continues("glm4", head_dim=8),
    "Helium": continues("helium", head_dim=8),
    "SmolLM3": continues("smollm3"),
    "Arcee": continues("arcee"),
    "Apertus": continues("apertus"),
    "Seed-OSS": continues("seed_oss", head_dim=8),
    "EXAONE 4": continues("exaone4", sliding_window=4),
    "ERNIE 4.5": continues("ernie4_5", head_dim=8),
    "Hunyuan dense": continues("hunyuan_v1_dense", head_dim=8),
    "LFM2": continues("lfm2", layer_types=["conv", "full_attention"]),
    "BitNet": continues("bitnet"),
    "DiffLlama": continues("diffllama"),
    "NanoChat": continues("nanochat"),
    "CWM": continues("cwm", head_dim=8),
    "ModernBERT decoder": continues("modernbert-decoder", local_attention=8),
    "T5": translates("t5", **_T5),
    "T5, gated": translates("t5", feed_forward_proj="gated-gelu", **_T5),
    "mT5": translates("mt5", **_T5),
    "UMT5": translates("umt5", **_T5),
    "LongT5, local": translates("longt5", local_radius=4, encoder_attention_type="local", **_T5),
    "LongT5, transient global": translates(
        "longt5", local_radius=4, global_block_size=4, encoder_attention_type="transient-global", **_T5
    ),
    "BART": translates("bart"),
    "mBART": translates("mbart"),
    "Pegasus": translates("pegasus"),
    "Pegasus-X": translates("pegasus_x", block_size=4, num_global_tokens=4),
    "Marian": translates("marian"),
    "Blenderbot": translates("blenderbot"),
    "Blenderbot small": translates("blenderbot-small"),
    "M2M-100": translates("m2m_100"),
    "PLBART": translates("plbart"),
    "MVP": translates("mvp"),
    "LED": translates(
        "led", attention_window=4, max_encoder_position_embeddings=64, max_decoder_position_embeddings=64
    ),
    "BigBird-Pegasus": translates("bigbird_pegasus", attention_type="original_full"),
    "FSMT": translates("fsmt", langs=["a", "b"], src_vocab_size=64, tgt_vocab_size=64),
}

TRANSFORMERS = tuple(Architecture(name=name, build=build, needs=("transformers",)) for name, build in _ROWS.items())
