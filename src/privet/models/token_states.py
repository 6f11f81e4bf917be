"""Sentences as outputs of the frozen layers of an encoder, computed once: inputs of its trained layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privet.models.minilm import LowerLayers, MiniLm


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenStates:
    """The output of the frozen layers for each sentence, all tokens in one table, sentences ordered by length.

    Positions of a batch are sorted, so the sentences of a physical batch have similar lengths and little padding. The
    order does not affect the sampling of records.

    Attributes:
        states: One row per token, half precision.
        lengths: Number of tokens of each sentence; on the CPU, so that shapes need no device synchronisation.
        starts: First row of each sentence.
        labels: Classes.
        length_step: Batches are padded to a multiple of this number of tokens, for CUDA graphs per shape.
    """

    states: Tensor
    lengths: Tensor
    starts: Tensor
    labels: Tensor
    length_step: int = 1

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        states, mask, labels = self.take(torch.tensor([index]))
        return states[0], mask[0], labels[0]

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return padded states, the padding mask (1 for tokens), and labels of the sentences at these positions."""
        device = self.states.device
        lengths = self.lengths[indices]
        longest = int(lengths.max()) if len(indices) else 0
        places = torch.arange(-(-longest // self.length_step) * self.length_step)
        is_real = places < lengths.unsqueeze(1)
        rows = torch.where(is_real, self.starts[indices].unsqueeze(1) + places, 0)
        mask = is_real.to(device, torch.float32)
        states = self.states[rows.to(device)].float() * mask.unsqueeze(-1)
        return states, mask, self.labels[indices.to(device)]


@torch.inference_mode()
def encode_sentences(
    minilm: MiniLm,
    lower: LowerLayers,
    sentences: Sequence[str],
    labels: Sequence[int],
    device: torch.device,
    *,
    batch_size: int = 128,
    length_step: int = 1,
) -> TokenStates:
    """Run the frozen layers over sentences, shortest first."""
    tokens = minilm.tokens(sentences)
    order = sorted(range(len(tokens)), key=lambda index: len(tokens[index]))
    lower = lower.to(device).eval()
    found = []
    for start in range(0, len(order), batch_size):
        chosen = [torch.tensor(tokens[index]) for index in order[start : start + batch_size]]
        padded = nn.utils.rnn.pad_sequence(chosen, batch_first=True)
        lengths = torch.tensor([len(row) for row in chosen])
        mask = (torch.arange(padded.shape[1]) < lengths.unsqueeze(1)).to(device)
        found.append(lower(padded.to(device), mask)[mask].half())
    sizes = torch.tensor([len(tokens[index]) for index in order])
    return TokenStates(
        # Inference tensors cannot be inputs of training; a clone can.
        states=torch.cat(found).clone(),
        lengths=sizes,
        starts=sizes.cumsum(0) - sizes,
        labels=torch.tensor([labels[index] for index in order], device=device),
        length_step=length_step,
    )
