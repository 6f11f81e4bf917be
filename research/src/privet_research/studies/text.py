"""Private fine-tuning of a pre-trained sentence encoder on SST-2: local against mixed clipping, and without privacy.

The body of MiniLM is frozen but for its upper layers, which are trained whole or through low-rank adapters, and a new
linear head. What the frozen lower layers make of a sentence depends on that sentence alone, so it is computed once and
kept. Mixed clipping is the strategy of Bu et al. ("On the convergence and calibration of deep learning with
differential privacy", section 6.3): local clipping for 95 % of the steps, then global.

Each variant is judged twice: on training sentences that were held out, by which variants are chosen, and on the
development part, which has no say. Neither the choice nor the reporting is covered by a guarantee: the data are public.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW, Optimizer

from privet.datasets.sentences import TRAIN_SIZE, LabelledSentences, load_sst2
from privet.effects.confidence import reliability
from privet.errors import ArgumentError
from privet.mechanism.changing_clipping import Scheduled
from privet.mechanism.clipping import Clipping, KeepOrDrop, Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import Poisson
from privet.models.adapters import add_adapters
from privet.models.minilm import NUM_LAYERS, MiniLm, UpperLayers
from privet.models.token_states import TokenStates, encode_sentences
from privet.plan import Plan
from privet.training.averaging import ExponentialAverage
from privet.training.launch.replay import CudaGraph, Eager
from privet.training.optimizers import DPAdamW
from privet.training.performance import Performance
from privet.training.predictions import Predictions
from privet.training.schedules import LearningRate, LinearDecay
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit
from privet_research.studies.arms import LOCAL, MIXED, NON_PRIVATE, SCALED
from privet_research.studies.clipping import cross_fitted
from privet_research.studies.text_data import first_records, hold_out

Row = dict[str, Any]
# Lengths are rounded up on a device, so that few kinds of batches have to be recorded: 80 holds the longest sentence.
_LENGTH_STEP, _MAX_RECORDINGS = 16, 12


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """One variant of the study. The defaults did best, of three, on held-out training sentences (not charged).

    Attributes:
        arms: Which comparisons to run.
        trained_layers: Upper layers that are trained; those below are frozen.
        rank: Inner width of low-rank adapters in these layers; 0 trains the layers themselves.
        adapter_scale: Factor of the adapters. A larger one gives the body a larger share of the clipped gradient.
        dataset_size: Declared number of training records; the first so many are used.
        num_held_out: Whole sentences by which variants are compared; they and their phrases do not train. 0 trains on
            all records and compares nothing.
        batch_size: Expected logical batch size.
        epochs: Expected uses of each record.
        epsilon: Target of the private arms.
        delta: Probability with which the bound may fail.
        learning_rate: Of the layers or adapters.
        head_learning_rate: Of the head, which begins at zero and has to travel far.
        head_scale: Factor of the head's inputs. A smaller one leaves the body a larger share of the clipped gradient.
        corrected: Whether Adam takes the noise out of its second moment (:class:`DPAdamW`) or not (plain AdamW).
        averaging_decay: Of the moving average of the weights, which is what is measured; 0 measures the last weights.
        final_rate: Share of the learning rate that is left at the end of the run; 1 holds it constant, without warm-up.
        open_learning_rate: The rate without noise, where batches are ``open_batch_size``.
        norm: Bound on one example.
        cutoff: Above which the last twentieth of the mixed arm drops a gradient.
        tf32: Whether matrix products on a device may be rounded to tf32.
        recorded: Whether steps on a device are replayed as CUDA graphs, which changes speed only.
    """

    arms: tuple[str, ...] = (NON_PRIVATE, LOCAL, MIXED)
    trained_layers: int = 6
    rank: int = 0
    adapter_scale: float = 4.0
    dataset_size: int = TRAIN_SIZE
    num_held_out: int = 0
    batch_size: int = 4096
    epochs: int = 10
    epsilon: float = 3.0
    delta: float = 1e-5
    learning_rate: float = 1e-3
    head_learning_rate: float = 1e-2
    head_scale: float = 1.0
    corrected: bool = True
    weight_decay: float = 0.0
    averaging_decay: float = 0.95
    final_rate: float = 0.0
    open_learning_rate: float = 1e-4
    open_batch_size: int = 128
    open_epochs: int = 2
    norm: float = 1.0
    cutoff: float = 20.0
    tf32: bool = True
    recorded: bool = True
    physical_batch_size: int = 512

    @property
    def rules(self) -> dict[str, Clipping | None]:
        """The arms by name; None is training without privacy."""
        local = Threshold(norm=self.norm)
        kept = KeepOrDrop(norm=self.norm, cutoff=self.cutoff)
        every = {NON_PRIVATE: None, LOCAL: local, MIXED: Scheduled(parts=(local, kept), switches=(0.95,))}
        unknown = [arm for arm in self.arms if arm not in every]
        if unknown:
            raise ArgumentError(f"There is no arm {unknown[0]!r} in this study. Arms: {', '.join(every)}.")
        return {arm: every[arm] for arm in self.arms}

    @property
    def variant(self) -> str:
        """What tells this variant from others, in short."""
        body = f"{self.trained_layers} layers" + (f", rank {self.rank} x {self.adapter_scale:g}" if self.rank else "")
        return (
            f"{body}, batch {self.batch_size}, {self.epochs} epochs, rate {self.learning_rate:g} (head "
            f"{self.head_learning_rate:g}, scale {self.head_scale:g}), norm {self.norm:g}, "
            f"{'DP-AdamW' if self.corrected else 'AdamW'}, average {self.averaging_decay:g}"
        )

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

    def shortened(self) -> TextSettings:
        """Return a version of a minute or two; its figures say nothing about the full one."""
        return replace(
            self,
            trained_layers=1,
            rank=min(self.rank, 8),
            dataset_size=1_000,
            num_held_out=100,
            batch_size=200,
            epochs=1,
            open_epochs=1,
            physical_batch_size=64,
        )


QUICK = TextSettings().shortened()
# The protocol of section 6.3 as far as it is printed: one rate throughout, the last weights, one trained layer. The
# number of epochs is not told. In the variant above the last twentieth of the steps has 0.35 % of the summed rate, so
# that the clipping of those steps can have no effect.
AS_PRINTED = TextSettings(
    arms=(LOCAL, MIXED), trained_layers=1, batch_size=32, epochs=3, learning_rate=5e-4, head_learning_rate=5e-4,
    corrected=False, averaging_decay=0.0, final_rate=1.0, norm=0.1, cutoff=1000.0, physical_batch_size=64,
)  # fmt: skip


def run_text_study(settings: Sequence[TextSettings], *, seeds: Sequence[int], device: torch.device) -> Iterator[Row]:
    """Fine-tune every arm of every variant with every seed and yield one row of figures as each is known."""
    for variant in settings:
        train, held_out, dev = sentence_states(variant, device)
        for seed in seeds:
            for arm, clipping in variant.rules.items():
                began = time.monotonic()
                model = sentence_model(variant, seed).to(device)
                epsilon = None
                with rounded_products(device, tf32=variant.tf32):
                    if clipping is None:
                        _train_openly(model, train, variant, seed)
                    else:
                        epsilon = _train_privately(model, train, variant, clipping, seed)
                seconds = round(time.monotonic() - began, 1)
                chosen_by = None if held_out is None else float(predictions_of(model, held_out).is_right.mean())
                yield from _rows(variant, arm, seed, epsilon, seconds, chosen_by, predictions_of(model, dev))


def _rows(
    settings: TextSettings,
    arm: str,
    seed: int,
    epsilon: float | None,
    seconds: float,
    held_out_accuracy: float | None,
    dev: Predictions,
) -> Iterator[Row]:
    facts: Row = {"dataset": "sst2", "variant": settings.variant, "seed": seed, "epsilon": epsilon}
    facts |= {"delta": settings.delta, "seconds": seconds, "settings": asdict(settings)}
    facts |= {"epochs": settings.open_epochs if arm == NON_PRIVATE else settings.epochs}
    facts["held_out_accuracy"] = held_out_accuracy
    facts["schedule"] = "constant" if settings.final_rate == 1 else "falling"
    yield {"arm": arm, **facts, **_figures(dev)}
    if arm == LOCAL:
        yield {"arm": SCALED, **facts, **_figures(cross_fitted(dev))}


def sentence_states(
    settings: TextSettings, device: torch.device
) -> tuple[TokenStates, TokenStates | None, TokenStates]:
    """Return what trains, what variants are chosen by (None where nothing is held out), and what is measured on."""
    whole, dev = load_sst2()
    rest, held_out = hold_out(whole, settings.num_held_out)
    minilm = MiniLm.installed()
    lower = minilm.lower(NUM_LAYERS - settings.trained_layers)
    step = _LENGTH_STEP if device.type == "cuda" else 1

    def states(part: LabelledSentences) -> TokenStates:
        return encode_sentences(minilm, lower, part.sentences, part.labels, device, length_step=step)

    train = states(first_records(rest, settings.dataset_size))
    return train, states(held_out) if settings.num_held_out else None, states(dev)


def sentence_model(settings: TextSettings, seed: int) -> UpperLayers:
    """Return the trained layers with their adapters, initialised by a seed, and the new head."""
    model = MiniLm.installed().upper(settings.trained_layers, 2, head_scale=settings.head_scale)
    if settings.rank and settings.trained_layers:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            add_adapters(model.layers, rank=settings.rank, scale=settings.adapter_scale)
    return model


@contextmanager
def rounded_products(device: torch.device, *, tf32: bool) -> Iterator[None]:
    """Allow rounded matrix products for a while; the engine knows of it and leaves room in its norms."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = before or (tf32 and device.type == "cuda")
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _groups(model: UpperLayers, learning_rate: float, head_learning_rate: float) -> list[dict[str, Any]]:
    body = [value for value in model.layers.parameters() if value.requires_grad]
    groups = [{"params": list(model.head.parameters()), "lr": head_learning_rate}]
    return [{"params": body, "lr": learning_rate}, *groups] if body else groups


def _optimizer(model: UpperLayers, settings: TextSettings) -> Optimizer:
    groups = _groups(model, settings.learning_rate, settings.head_learning_rate)
    if settings.corrected:
        return DPAdamW(groups, weight_decay=settings.weight_decay)
    return AdamW(groups, weight_decay=settings.weight_decay)


def sentence_losses(model: nn.Module, states: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy of each sentence."""
    return functional.cross_entropy(model(states, mask), labels, reduction="none")


def _train_privately(
    model: UpperLayers, train: TokenStates, settings: TextSettings, clipping: Clipping, seed: int
) -> float:
    plan = settings.plan(clipping)
    optimizer = _optimizer(model, settings)
    warm_up = 0.0 if settings.final_rate == 1 else 0.06
    rate = LearningRate(optimizer, LinearDecay(warm_up=warm_up, final=settings.final_rate), num_steps=plan.num_steps)
    model.train()
    decay = settings.averaging_decay
    is_cuda = train.states.device.type == "cuda"
    session = privatize(
        model,
        optimizer,
        train,
        plan,
        performance=Performance(
            physical_batch_size=settings.physical_batch_size if is_cuda else min(64, settings.physical_batch_size),
            launch=CudaGraph(max_recordings=_MAX_RECORDINGS) if is_cuda and settings.recorded else Eager(),
        ),
        averaging=ExponentialAverage(decay=decay) if decay else None,
        seed=seed,
    )

    def losses(states: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        return sentence_losses(model, states, mask, labels)

    with session:
        for step in session.steps():
            rate.set(step.index)
            step.accumulate(losses)
            step.update()
    if decay:
        session.adopt_average()
    return session.guarantee().epsilon


def _train_openly(model: UpperLayers, train: TokenStates, settings: TextSettings, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer = AdamW(_groups(model, settings.open_learning_rate, settings.head_learning_rate), weight_decay=0.0)
    batches = -(-len(train) // settings.open_batch_size)
    rate = LearningRate(optimizer, LinearDecay(warm_up=0.06), num_steps=settings.open_epochs * batches)
    model.train()
    for epoch in range(settings.open_epochs):
        order = torch.randperm(len(train), generator=generator)
        for place, rows in enumerate(torch.split(order, settings.open_batch_size)):
            rate.set(epoch * batches + place)
            optimizer.zero_grad(set_to_none=True)
            sentence_losses(model, *train.take(rows)).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()


@torch.no_grad()
def predictions_of(model: UpperLayers, part: TokenStates) -> Predictions:
    """Return what the model says of each sentence."""
    model.eval()
    scores = [model(*part.take(rows)[:2]).double().cpu() for rows in torch.split(torch.arange(len(part)), 64)]
    return Predictions.from_logits(torch.cat(scores).numpy(), part.labels.cpu().numpy())


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
