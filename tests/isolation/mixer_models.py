"""Small models that do not mix; the programs around them do."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.isolation.mixer import CLASSES, VOCABULARY


def classifier_of_tokens() -> nn.Module:
    """Scores of every token by itself."""
    return nn.Sequential(nn.Embedding(VOCABULARY, 4), nn.Linear(4, CLASSES))


class Attentive(nn.Module):
    """A layer of a transformer, with dropout in its attention."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(VOCABULARY, 4), nn.Linear(4, CLASSES)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.layer(self.table(ids)))
        return found


class Recurrent(nn.Module):
    """A recurrent layer with dropout between its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(VOCABULARY, 4), nn.Linear(4, CLASSES)
        self.layer = nn.LSTM(4, 4, num_layers=2, dropout=0.2, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.layer(self.table(ids))[0])
        return found


class Dropping(nn.Module):
    """Functional dropout, and a branch that is left out for some examples."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner, self.head = nn.Embedding(VOCABULARY, 4), nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        h = functional.dropout(self.table(ids), 0.2)
        kept = torch.empty(len(ids), 1, 1).bernoulli_(0.8)
        found: Tensor = self.head(h + kept * self.inner(h))
        return found


def attentive() -> nn.Module:
    return Attentive()


def recurrent() -> nn.Module:
    return Recurrent()


def dropping() -> nn.Module:
    return Dropping()
