"""Random masks against no mask and against a falling learning rate, each tuned over as many rates.

The settings are those of Zhu and Blaschko, "Improving differentially private SGD via randomly sparsified gradients"
(2023), table 2, with Poisson sampling. Their comparison lacks the control: masks that grow during the run take away
noise and signal alike, as a falling learning rate does. Every arm of a setting has the same epsilon, and its learning
rate is chosen by training accuracy among as many candidates. Random streams are seeded: runs are repeatable, on public
data, and not private.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from dp_accounting import dp_event
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from privet import checks
from privet.accounting.calibration import calibrate_noise
from privet.datasets import load
from privet.datasets.arrays import ArrayDataset
from privet.datasets.feature_cache import FeatureCache
from privet.datasets.known import describe
from privet.datasets.scattering import Scattering
from privet.errors import ArgumentError
from privet.mechanism.clipping import Threshold
from privet.mechanism.mask_rates import GradualCooling
from privet.mechanism.masking import Mask, NoMask, RandomMask
from privet.mechanism.noise import Gaussian, Noise
from privet.mechanism.sampling import Poisson
from privet.plan import Plan
from privet.runs.building import on_device
from privet.training.fitting import fit_privately
from privet.training.performance import Performance
from privet.training.private_statistics.normalisation import PrivateNormalisation
from privet.training.schedules import LinearDecay, Schedule
from privet.vocabulary import Adjacency, Unit

Row = dict[str, Any]
_CHUNK = 2000
# Bounds of a paid normalisation over the sizes that channels have in made-up images.
_ROOM = 2.0
BASELINE, MASKED, DECAY, LONGER = "no mask", "random mask", "falling learning rate", "no mask, 1.2 times as long"


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to train.

    Attributes:
        mask: Which coordinates take part.
        schedule: The course of the learning rate; None for a constant one.
        stretch: Epochs over those of the baseline, as the publication trained the masked arm longer.
    """

    mask: Mask
    schedule: Schedule | None
    stretch: float


ARMS = {
    BASELINE: Arm(mask=NoMask(), schedule=None, stretch=1.0),
    MASKED: Arm(mask=RandomMask(schedule=GradualCooling(final=0.9)), schedule=None, stretch=1.2),
    DECAY: Arm(mask=NoMask(), schedule=LinearDecay(final=0.1), stretch=1.2),
    LONGER: Arm(mask=NoMask(), schedule=None, stretch=1.2),
}


@dataclass(frozen=True, kw_only=True)
class SparsificationSettings:
    """One network on one data set at one epsilon.

    Attributes:
        name: What the rows call it.
        dataset: To load.
        build: Makes the network.
        batch_size: Expected logical batch size.
        epochs: Of the baseline.
        norm: Clipping threshold.
        learning_rates: Tried for every arm.
        epsilon: At delta 1e-5.
        published: The publication's test accuracies in percent, by arm.
        published_errors: Their standard errors, as printed.
        normalisation: Of the images; None for numbers from 0 to 1.
        scattering: What the network reads in place of the images; None for the images themselves.
        normalisation_share: Share of the budget that a private normalisation of scattering features is paid from; 0
            for none, where the network normalises by itself.
        pixel_size: Public guess at the root mean square of pixels, for the bounds of that normalisation.
        num_examples: Training images that are used, and test images at most; None for all.
    """

    name: str
    dataset: str
    build: Callable[[], nn.Module]
    batch_size: int
    epochs: int
    norm: float
    learning_rates: tuple[float, ...]
    epsilon: float
    published: Mapping[str, float]
    published_errors: Mapping[str, float] = field(default_factory=dict)
    normalisation: str | None = None
    scattering: Scattering | None = None
    normalisation_share: float = 0.0
    pixel_size: float = 1.0
    num_examples: int | None = None
    delta: float = 1e-5

    def __post_init__(self) -> None:
        """Refuse a share out of range, and one for features that do not exist."""
        share = checks.probability("normalisation_share", self.normalisation_share, allow_zero=True)
        if share and self.scattering is None:
            raise ArgumentError("normalisation_share pays for normalising scattering features, and there are none.")

    def shortened(self, *, dataset: str, epochs: int, num_examples: int, batch_size: int) -> SparsificationSettings:
        """Return the same study with less of everything; its figures say nothing about the full one."""
        return replace(
            self,
            name=f"{self.name}, quick",
            dataset=dataset,
            epochs=epochs,
            num_examples=num_examples,
            batch_size=batch_size,
            learning_rates=self.learning_rates[:1],
            published={},
            published_errors={},
        )

    @property
    def dataset_size(self) -> int:
        """How many training images are used, as declared."""
        return self.num_examples or describe(self.dataset).train_size

    def plan(self, arm: Arm, dataset_size: int) -> Plan:
        """Return the plan of an arm; its noise is not calibrated yet."""
        epochs = round(self.epochs * arm.stretch)
        return Plan(
            sampling=Poisson.for_dataset(dataset_size=dataset_size, batch_size=self.batch_size, epochs=epochs),
            clipping=Threshold(norm=self.norm),
            noise=Gaussian(),
            mask=arm.mask,
            delta=self.delta,
            adjacency=Adjacency.ADD_REMOVE,
            unit=Unit.RECORD,
        )

    def plans(self, dataset_size: int) -> dict[str, Plan]:
        """Return the calibrated plans by arm. A mask costs nothing, so arms of one length share their noise."""
        noise: dict[float, Noise] = {}
        found = {}
        for name, arm in ARMS.items():
            plan = self.plan(arm, dataset_size)
            if arm.stretch not in noise:
                noise[arm.stretch] = self._calibrated(plan, dataset_size).noise
            found[name] = replace(plan, noise=noise[arm.stretch])
        return found

    def _calibrated(self, plan: Plan, dataset_size: int) -> Plan:
        paid = self.paid_normalisation(dataset_size)
        if paid is None:
            return plan.calibrated(epsilon=self.epsilon)
        return paid.calibrated(plan, epsilon=self.epsilon)

    def paid_normalisation(self, dataset_size: int) -> PrivateNormalisation | None:
        """Return the normalisation that is released before training; None where none is paid for."""
        if not self.normalisation_share:
            return None
        return PrivateNormalisation(
            bounds=self._bounds,
            dataset_size=dataset_size,
            # squared signal-to-noise ratios of Gaussian releases add up: this is the share's part of the budget
            noise_multiplier=calibrate_noise(
                dp_event.GaussianDpEvent, epsilon=self.epsilon, delta=self.delta, adjacency=Adjacency.ADD_REMOVE
            )
            / math.sqrt(self.normalisation_share),
        )

    @cached_property
    def _bounds(self) -> tuple[float, ...]:
        assert self.scattering is not None, "refused when the settings were made"
        sizes = self.scattering.typical_sizes(describe(self.dataset).input_shape)
        return tuple(_ROOM * self.pixel_size * size for size in sizes)

    @property
    def physical_batch_size(self) -> int:
        """Four standard deviations above the mean of a Poisson batch: a step is nearly always one pass."""
        return self.batch_size + 4 * math.isqrt(self.batch_size)

    def data(self, device: torch.device) -> tuple[ArrayDataset, ArrayDataset]:
        """Return what is trained and tested on, on the device, as the network reads it."""
        split = load(self.dataset, normalisation=self.normalisation)
        train, test = (self._prepared(part, device) for part in (split.train, split.test))
        return train, test

    def _prepared(self, part: ArrayDataset, device: torch.device) -> ArrayDataset:
        size = len(part) if self.num_examples is None else self.num_examples
        part = on_device(ArrayDataset(features=part.features[:size], labels=part.labels[:size]), device)
        if self.scattering is None:
            return part
        found = self.scattering.features(part.features, device=device, cache=FeatureCache.from_environment())
        return ArrayDataset(features=found, labels=part.labels)


def run_sparsification_study(
    settings: Sequence[SparsificationSettings],
    *,
    seeds: Sequence[int],
    device: torch.device,
    earlier: Sequence[Row] = (),
) -> Iterator[Row]:
    """Train every arm of every setting and yield one row of figures as each is known.

    The first seed tunes: it trains every arm with every rate. The others train every arm with the rate at which the
    first one's training accuracy was best, so that all arms had as many trials, and none on test images. Rows of an
    earlier run are yielded again in their places and not trained again.
    """
    known = {_run_of(row): row for row in earlier}
    for setting in settings:
        train, test = setting.data(device)
        plans = setting.plans(setting.dataset_size)
        best: dict[str, Row] = {}
        for seed in seeds:
            for name, arm in ARMS.items():
                for rate in setting.learning_rates if seed == seeds[0] else (best[name]["rate"],):
                    facts = {"setting": setting.name, "arm": name, "rate": rate, "seed": seed}
                    row = known.get(_run_of(facts)) or {
                        **facts,
                        "published": setting.published.get(name),
                        "published_error": setting.published_errors.get(name),
                        "delta": setting.delta,
                        "device": device.type,
                        **_figures(setting, arm, plans[name], rate, train, test, seed, device),
                    }
                    if name not in best or row["train_accuracy"] > best[name]["train_accuracy"]:
                        best[name] = row
                    yield row


def _run_of(row: Row) -> tuple[Any, ...]:
    return tuple(row[key] for key in ("setting", "arm", "rate", "seed"))


def _figures(
    setting: SparsificationSettings,
    arm: Arm,
    plan: Plan,
    rate: float,
    train: ArrayDataset,
    test: ArrayDataset,
    seed: int,
    device: torch.device,
) -> Row:
    began = time.monotonic()
    model, epsilon = _trained(setting, arm, plan, rate, train, seed, device)
    return {
        "epsilon": epsilon,
        "steps": plan.num_steps,
        "accuracy": _accuracy(model, test),
        "train_accuracy": _accuracy(model, train),
        "seconds": round(time.monotonic() - began, 1),
    }


def _trained(
    settings: SparsificationSettings,
    arm: Arm,
    plan: Plan,
    rate: float,
    train: ArrayDataset,
    seed: int,
    device: torch.device,
) -> tuple[nn.Module, float]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = settings.build().to(device)
    paid = settings.paid_normalisation(settings.dataset_size)
    if paid is not None:
        model = nn.Sequential(paid.release(train.features, seed=seed)[0], model)
    found = fit_privately(
        model,
        SGD(model.parameters(), lr=rate),
        train,
        plan,
        _losses,
        performance=Performance(physical_batch_size=settings.physical_batch_size),
        schedule=arm.schedule,
        seed=seed,
    )
    return model, found.epsilon if paid is None else paid.guarantee(plan).epsilon


def _losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


@torch.no_grad()
def _accuracy(model: nn.Module, part: ArrayDataset) -> float:
    """Share of right answers; a model that diverged and says NaN answers something, and is wrong."""
    model.eval()
    pieces = zip(torch.split(part.features, _CHUNK), torch.split(part.labels, _CHUNK), strict=True)
    return float(torch.stack([(model(images).argmax(1) == labels).sum() for images, labels in pieces]).sum()) / len(
        part
    )
