"""Private fine-tuning of a pre-trained sentence encoder on SST-2: local against mixed clipping, and without privacy.

The lower layers of MiniLM are frozen. What they make of a sentence depends on that sentence alone, so it is computed
once and kept; the upper layers and a linear head are trained on it with AdamW, as post-processing of noisy gradients.
Mixed clipping is the strategy of Bu et al. ("On the convergence and calibration of deep learning with differential
privacy", section 6.3): local clipping for 95 % of the steps, then global.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW

from privet.datasets.sentences import TRAIN_SIZE, LabelledSentences, load_sst2
from privet.effects.calibration import reliability
from privet.experiments.studies.arms import LOCAL, MIXED, NON_PRIVATE, SCALED
from privet.experiments.studies.clipping import cross_fitted
from privet.mechanism.clipping import Clipping, Threshold
from privet.mechanism.clipping_rules import KeepOrDrop
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import Poisson
from privet.mechanism.scheduled_clipping import Scheduled
from privet.mechanism.terms import Adjacency, Unit
from privet.models.minilm import NUM_LAYERS, LowerLayers, MiniLm, UpperLayers
from privet.plan import Plan
from privet.training.predictions import Predictions
from privet.training.schedules import LearningRate, LinearDecay
from privet.training.session import privatize

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """The constants of the study. They were chosen by hand; that choice is not covered by any guarantee.

    Attributes:
        trained_layers: Upper layers that are trained; the others are frozen.
        dataset_size: Declared number of training records; the first so many are used.
        batch_size: Expected logical batch size.
        epochs: Expected uses of each record.
        epsilon: Target of the private arms.
        learning_rate: Of the layers; the head's is ``head_factor`` times that, because the head begins at zero.
        open_learning_rate: The same without noise, where batches are ``open_batch_size``.
        norm: Bound on one example.
        cutoff: Above which the last twentieth of the mixed arm drops a gradient.
    """

    trained_layers: int = 2
    dataset_size: int = TRAIN_SIZE
    batch_size: int = 2048
    epochs: int = 5
    epsilon: float = 3.0
    delta: float = 1e-5
    learning_rate: float = 5e-4
    head_factor: float = 60.0
    open_learning_rate: float = 1e-4
    open_batch_size: int = 128
    open_epochs: int = 2
    norm: float = 1.0
    cutoff: float = 20.0

    @property
    def rules(self) -> dict[str, Clipping | None]:
        """The arms by name; None is training without privacy."""
        local = Threshold(norm=self.norm)
        kept = KeepOrDrop(norm=self.norm, cutoff=self.cutoff)
        return {NON_PRIVATE: None, LOCAL: local, MIXED: Scheduled(parts=(local, kept), switches=(0.95,))}

    def plan(self, clipping: Clipping) -> Plan:
        """Return the plan of a private arm, calibrated to the target."""
        return Plan(
            sampling=Poisson.for_dataset(
                dataset_size=self.dataset_size, batch_size=self.batch_size, epochs=self.epochs
            ),
            clipping=clipping,
            noise=Gaussian(noise_multiplier=1.0),
            delta=self.delta,
            adjacency=Adjacency.ADD_REMOVE,
            unit=Unit.RECORD,
        ).calibrated(epsilon=self.epsilon)


QUICK = TextSettings(trained_layers=1, dataset_size=1_500, batch_size=150, epochs=1, open_epochs=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenStates:
    """What the frozen layers make of each sentence: all tokens in one table, in order of length.

    The order saves work: batches are drawn as sorted positions, so a physical batch holds sentences of about one length
    and little padding. It changes nothing about which records are drawn.

    Attributes:
        states: One row per token, half precision.
        lengths: Tokens of each sentence; on the CPU, so that shapes are known without waiting for a device.
        starts: First row of each sentence.
        labels: Classes.
    """

    states: Tensor
    lengths: Tensor
    starts: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        states, mask, labels = self.take(torch.tensor([index]))
        return states[0], mask[0], labels[0]

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return padded states, the mask of real tokens, and labels of the sentences at these positions."""
        device = self.states.device
        lengths = self.lengths[indices]
        places = torch.arange(int(lengths.max()) if len(indices) else 0)
        is_real = places < lengths.unsqueeze(1)
        rows = torch.where(is_real, self.starts[indices].unsqueeze(1) + places, 0)
        mask = is_real.to(device, torch.float32)
        states = self.states[rows.to(device)].float() * mask.unsqueeze(-1)
        return states, mask, self.labels[indices.to(device)]


@torch.inference_mode()
def encode(
    minilm: MiniLm, lower: LowerLayers, data: LabelledSentences, device: torch.device, *, batch_size: int = 128
) -> TokenStates:
    """Run the frozen layers over sentences, shortest first."""
    tokens = minilm.tokens(data.sentences)
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
        # A clone leaves inference mode: states are inputs of a model that is trained.
        states=torch.cat(found).clone(),
        lengths=sizes,
        starts=sizes.cumsum(0) - sizes,
        labels=torch.tensor([data.labels[index] for index in order], device=device),
    )


def run_text_study(settings: TextSettings, *, seeds: Sequence[int], device: torch.device) -> Iterator[Row]:
    """Fine-tune every arm with every seed and yield one row of figures as each is known."""
    train_part, dev_part = load_sst2()
    train_part = LabelledSentences(
        sentences=train_part.sentences[: settings.dataset_size], labels=train_part.labels[: settings.dataset_size]
    )
    minilm = MiniLm.installed()
    lower = minilm.lower(NUM_LAYERS - settings.trained_layers)
    train, dev = (encode(minilm, lower, part, device) for part in (train_part, dev_part))
    for seed in seeds:
        for arm, clipping in settings.rules.items():
            began = time.monotonic()
            model = MiniLm.installed().upper(settings.trained_layers, 2).to(device)
            epsilon = None
            if clipping is None:
                _train_openly(model, train, settings, seed)
            else:
                epsilon = _train_privately(model, train, settings, clipping, seed)
            predictions = _predictions(model, dev)
            facts: Row = {"dataset": "sst2", "seed": seed, "epsilon": epsilon, "delta": settings.delta}
            facts |= {"seconds": round(time.monotonic() - began, 1), "device": device.type}
            facts |= {"epochs": settings.open_epochs if clipping is None else settings.epochs}
            yield {"arm": arm, **facts, **_figures(predictions)}
            if arm == LOCAL:
                yield {"arm": SCALED, **facts, **_figures(cross_fitted(predictions))}


def _optimizer(model: UpperLayers, learning_rate: float, head_factor: float) -> AdamW:
    groups = [
        {"params": list(model.layers.parameters()), "lr": learning_rate},
        {"params": list(model.head.parameters()), "lr": learning_rate * head_factor},
    ]
    return AdamW(groups, weight_decay=0.0)


def _losses(model: nn.Module, states: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(model(states, mask), labels, reduction="none")


def _train_privately(
    model: UpperLayers, train: TokenStates, settings: TextSettings, clipping: Clipping, seed: int
) -> float:
    plan = settings.plan(clipping)
    optimizer = _optimizer(model, settings.learning_rate, settings.head_factor)
    rate = LearningRate(optimizer, LinearDecay(warm_up=0.06), num_steps=plan.num_steps)
    model.train()
    size = 64 if train.states.device.type == "cpu" else 512
    session = privatize(model, optimizer, train, plan, physical_batch_size=size, seed=seed)
    with session:
        for step in session.steps():
            rate.set(step.index)
            step.accumulate(lambda states, mask, labels: _losses(model, states, mask, labels))
            step.update()
    return session.guarantee().epsilon


def _train_openly(model: UpperLayers, train: TokenStates, settings: TextSettings, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer = _optimizer(model, settings.open_learning_rate, settings.head_factor)
    batches = -(-len(train) // settings.open_batch_size)
    rate = LearningRate(optimizer, LinearDecay(warm_up=0.06), num_steps=settings.open_epochs * batches)
    model.train()
    for epoch in range(settings.open_epochs):
        order = torch.randperm(len(train), generator=generator)
        for place, rows in enumerate(torch.split(order, settings.open_batch_size)):
            rate.set(epoch * batches + place)
            optimizer.zero_grad(set_to_none=True)
            _losses(model, *train.take(rows)).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()


@torch.no_grad()
def _predictions(model: UpperLayers, dev: TokenStates) -> Predictions:
    model.eval()
    parts = []
    for rows in torch.split(torch.arange(len(dev)), 64):
        states, mask, _ = dev.take(rows)
        parts.append(model(states, mask).double().cpu())
    return Predictions.from_logits(torch.cat(parts).numpy(), dev.labels.cpu().numpy())


def _figures(predictions: Predictions) -> Row:
    found = reliability(predictions, num_bins=15)
    return {
        "accuracy": float(predictions.is_right.mean()),
        "loss": float(predictions.losses.mean()),
        "ece_10": reliability(predictions, num_bins=10).expected_error,
        "ece_15": found.expected_error,
        "mce_15": found.largest_error,
        "over_confidence": found.over_confidence,
        "under_confidence": found.under_confidence,
        "num_test": predictions.num_examples,
    }
