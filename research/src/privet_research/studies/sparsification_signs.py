"""When masks help: figures 2 and 3 of Zhu and Blaschko (2023) at a small scale, on handwritten digits.

Training accuracy against the mask's final rate, for nine pairs of noise and threshold, and with one half of the
mechanism taken out at a time: clipping without noise, and noise without clipping. The publication finds that masks help
the more, the larger the noise ``sigma C`` is, that they hurt where it is small, and that they do not help without noise
or without clipping. There it is DP-CNN on CIFAR-10, 100 epochs at learning rate 1; here a network of two layers, 20
epochs at learning rate 4, at which the noise of the nine pairs matters as much, and 0.5 without clipping.

The digits come with scikit-learn. Streams are seeded, and half of the arms have no guarantee: nothing here is private.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from privet.datasets.arrays import ArrayDataset
from privet.errors import DependencyError
from privet.mechanism.ablations import NoNoise, Unclipped
from privet.mechanism.clipping import Clipping, Threshold
from privet.mechanism.mask_rates import GradualCooling
from privet.mechanism.masking import Mask, RandomMask
from privet.mechanism.noise import Gaussian, Noise
from privet.mechanism.sampling import Poisson
from privet.plan import Plan
from privet.runs.building import on_device
from privet.training.performance import Performance
from privet.training.session import Step
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit
from privet_research.studies.sparsification_table import Difference

Row = dict[str, Any]
PRIVATE, CLIP_ONLY, NOISE_ONLY = "private", "clipping alone", "noise alone"
NOISES, NORMS = (1.0, 2.0, 4.0), (0.25, 0.5, 1.0)
RATES = (0.0, 0.5, 0.9)
_NUM_TRAIN = 1437


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel of a figure: everything but the mask's rate.

    Attributes:
        kind: Which parts of the mechanism are there.
        noise_multiplier: Noise over the threshold, or over one where nothing is clipped; None for no noise.
        norm: The threshold; None for none.
        learning_rate: Of plain descent. Unclipped gradients are long, so that they take a smaller one.
    """

    kind: str
    noise_multiplier: float | None
    norm: float | None
    learning_rate: float

    @property
    def clipping(self) -> Clipping:
        """The clipping piece."""
        return Unclipped() if self.norm is None else Threshold(norm=self.norm)

    @property
    def noise(self) -> Noise:
        """The noise piece."""
        return NoNoise() if self.noise_multiplier is None else Gaussian(noise_multiplier=self.noise_multiplier)

    @property
    def title(self) -> str:
        """What tables and pictures call it."""
        noise = "no noise" if self.noise_multiplier is None else f"sigma {self.noise_multiplier:g}"
        return f"{noise}, {'unclipped' if self.norm is None else f'C {self.norm:g}'}"


PANELS = (
    *(
        Panel(kind=PRIVATE, noise_multiplier=noise, norm=norm, learning_rate=4.0)
        for norm, noise in itertools.product(NORMS, NOISES)
    ),
    *(Panel(kind=CLIP_ONLY, noise_multiplier=None, norm=norm, learning_rate=4.0) for norm in NORMS),
    *(Panel(kind=NOISE_ONLY, noise_multiplier=noise, norm=None, learning_rate=0.5) for noise in NOISES),
)


def digits(device: torch.device) -> tuple[ArrayDataset, ArrayDataset]:
    """Return the 8x8 digits of scikit-learn, four fifths to train on and one to test on."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DependencyError(
            "The digits of this study come with scikit-learn, which is not installed. "
            "Run: pip install 'privet[effects]'"
        ) from None
    found = load_digits()
    features = torch.tensor(found.data, dtype=torch.float32) / 16
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))
    whole = ArrayDataset(features=features[order], labels=torch.tensor(found.target, dtype=torch.int64)[order])
    train, test = (
        on_device(ArrayDataset(features=whole.features[rows], labels=whole.labels[rows]), device)
        for rows in (slice(_NUM_TRAIN), slice(_NUM_TRAIN, None))
    )
    return train, test


def digits_plan(*, clipping: Clipping, noise: Noise, mask: Mask, epochs: int) -> Plan:
    """Return the plan of a run on the digits."""
    return Plan(
        sampling=Poisson.for_dataset(dataset_size=_NUM_TRAIN, batch_size=256, epochs=epochs),
        clipping=clipping,
        noise=noise,
        mask=mask,
        delta=1e-4,
        adjacency=Adjacency.ADD_REMOVE,
        unit=Unit.RECORD,
    )


def digits_model(seed: int, device: torch.device) -> nn.Module:
    """Return the network with 19,210 parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 10)).to(device)


def steps_of(model: nn.Module, train: ArrayDataset, plan: Plan, learning_rate: float, seed: int) -> Iterator[Step]:
    """Train; yield every step after its update, to look at the model and the mask."""
    optimizer = SGD(model.parameters(), lr=learning_rate)

    def loss_of(features: Tensor, labels: Tensor) -> Tensor:
        return losses(model(features), labels)

    with privatize(
        model, optimizer, train, plan, performance=Performance(physical_batch_size=512), seed=seed
    ) as session:
        for step in session.steps():
            step.accumulate(loss_of)
            step.update()
            yield step


def losses(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return one loss per example."""
    return functional.cross_entropy(outputs, labels, reduction="none")


def run_signs_study(
    *, seeds: Sequence[int], device: torch.device, panels: Sequence[Panel] = PANELS, epochs: int = 20
) -> Iterator[Row]:
    """Train with every panel, rate and seed, and yield one row of figures as each is known."""
    train, test = digits(device)
    for seed, panel, rate in itertools.product(seeds, panels, RATES):
        began = time.monotonic()
        model = digits_model(seed, device)
        mask = RandomMask(schedule=GradualCooling(final=rate))
        plan = digits_plan(clipping=panel.clipping, noise=panel.noise, mask=mask, epochs=epochs)
        for _ in steps_of(model, train, plan, panel.learning_rate, seed):
            pass
        yield {
            "arm": f"{panel.kind}, {panel.title}, rate {rate:g}",
            "kind": panel.kind,
            "panel": panel.title,
            "noise_multiplier": panel.noise_multiplier,
            "norm": panel.norm,
            "rate": rate,
            "seed": seed,
            "accuracy": _accuracy(model, test),
            "train_accuracy": _accuracy(model, train),
            "seconds": round(time.monotonic() - began, 1),
        }


@torch.no_grad()
def _accuracy(model: nn.Module, part: ArrayDataset) -> float:
    return float((model(part.features).argmax(1) == part.labels).double().mean())


def signs_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the study as Markdown: what the largest rate gains in every panel, and what the figures claim of it."""
    head = ["mechanism", "panel", "noise sigma C", "rate 0, %", "gain in training accuracy", "in test accuracy"]
    lines = [head, ["---"] * len(head)]
    gains: dict[tuple[str, str], Difference] = {}
    for kind, title in dict.fromkeys((row["kind"], row["panel"]) for row in rows):
        own = [row for row in rows if (row["kind"], row["panel"]) == (kind, title)]
        none, most = ([row for row in own if row["rate"] == rate] for rate in (0.0, max(row["rate"] for row in own)))
        train = Difference.between(_as_accuracy(most), _as_accuracy(none))
        gains[kind, title] = train
        base = 100 * sum(row["train_accuracy"] for row in none) / max(1, len(none))
        shown = [kind, title, _size(own[0]), f"{base:.1f}", str(train), str(Difference.between(most, none))]
        lines.append(shown)
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{table}\n\n{_finding(rows, gains)}\n"


def _as_accuracy(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [{"seed": row["seed"], "accuracy": row["train_accuracy"]} for row in rows]


def _size(row: Mapping[str, Any]) -> str:
    return "0" if row["noise_multiplier"] is None else f"{row['noise_multiplier'] * (row['norm'] or 1.0):g}"


def _finding(rows: Sequence[Mapping[str, Any]], gains: Mapping[tuple[str, str], Difference]) -> str:
    private = [key for key in gains if key[0] == PRIVATE]
    if not private:
        return "A finding needs private panels."
    sizes = {(row["kind"], row["panel"]): float(_size(row)) for row in rows}
    least, most = min(private, key=lambda key: sizes[key]), max(private, key=lambda key: sizes[key])
    helped = [f"{key[1]} ({gain})" for key, gain in gains.items() if key[0] in (CLIP_ONLY, NOISE_ONLY) and gain.is_sure]
    return (
        f"Points between the largest rate and none, 95 % intervals over seeds. Under the least noise ({least[1]}) the "
        f"mask changes training accuracy by {gains[least]}, under the most ({most[1]}) by {gains[most]}. With clipping "
        f"alone or noise alone it surely helps in {', '.join(helped) if helped else 'no panel'}."
    )
