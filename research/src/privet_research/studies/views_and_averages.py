"""What several views of a record and averaged weights gain at one guarantee, beside a learning rate that falls.

Both are free of charge (De et al. 2022). A learning rate that falls quietens the end of a run as an average does, so it
is the control. The data are the Fashion-MNIST images that come with the package, the network and the constants those
of the recipe ``demo`` with fewer epochs. Every arm is shown at the recipe's learning rate and at twice that, which
gives a rate that falls along a cosine the same mean; nothing is chosen. Random streams are seeded: runs are repeatable,
on public data, and not private.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import SGD

from privet.datasets import load
from privet.datasets.arrays import ArrayDataset
from privet.datasets.info import DatasetInfo
from privet.mechanism.clipping import Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import Poisson
from privet.models.oriented_edges import oriented_edges
from privet.plan import Plan
from privet.runs.building import on_device
from privet.runs.model_measures import measure_model
from privet.training.augmentation import ShiftAndFlip, Views, mean_over_views
from privet.training.averaging import ExponentialAverage
from privet.training.performance import Performance
from privet.training.schedules import CosineDecay, LearningRate, LinearDecay
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit
from privet_research.studies.markdown import markdown
from privet_research.studies.regression_table import half_width

Row = dict[str, Any]
PLAIN = "constant rate"
AVERAGED = ", averaged"
_BATCH, _NORM, _EPSILON, _DELTA = 2_048, 0.1, 3.0, 1e-5
_RATES, _MOMENTUM, _DECAY = (4.0, 8.0), 0.9, 0.9
_AT_ONCE = 1_024


@dataclass(frozen=True, kw_only=True)
class Course:
    """One training, of which the last and the averaged weights are measured.

    Attributes:
        name: What the rows call it.
        num_views: Views of every record.
        falls: Whether the learning rate falls along a cosine.
    """

    name: str
    num_views: int = 1
    falls: bool = False

    @property
    def transform(self) -> Callable[[Tensor], Tensor]:
        """What makes a view of a record: nothing where there is one only, so that it is the record itself."""
        return ShiftAndFlip(max_shift=1) if self.num_views > 1 else torch.Tensor.clone


COURSES = (
    Course(name=PLAIN),
    Course(name="falling rate", falls=True),
    Course(name="4 views", num_views=4),
    Course(name="4 views, falling rate", num_views=4, falls=True),
)


def run_views_study(
    *,
    seeds: Sequence[int],
    device: torch.device,
    epochs: int = 20,
    courses: Sequence[Course] = COURSES,
    rates: Sequence[float] = _RATES,
) -> Iterator[Row]:
    """Train every course at every rate and seed; yield a row for its last weights and one for its averaged weights."""
    split = load("fashion_mnist_small")
    train, test = on_device(split.train, device), on_device(split.test, device)
    plan = Plan(
        sampling=Poisson.for_dataset(dataset_size=split.info.train_size, batch_size=_BATCH, epochs=epochs),
        clipping=Threshold(norm=_NORM),
        noise=Gaussian(),
        delta=_DELTA,
        adjacency=Adjacency.ADD_REMOVE,
        unit=Unit.RECORD,
    ).calibrated(epsilon=_EPSILON)
    facts = {"epsilon": plan.guarantee().epsilon, "delta": _DELTA, "steps": plan.num_steps, "num_test": len(test)}
    for seed, rate, course in itertools.product(seeds, rates, courses):
        began = time.monotonic()
        for ending, accuracy in _accuracies(course, plan, train, test, split.info, rate, seed):
            found = {"arm": course.name + ending, "rate": rate, "seed": seed, "accuracy": accuracy}
            yield {**found, "seconds": time.monotonic() - began, **facts}


def _accuracies(
    course: Course, plan: Plan, train: ArrayDataset, test: ArrayDataset, info: DatasetInfo, rate: float, seed: int
) -> Iterator[tuple[str, float]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = oriented_edges().to(train.features.device)
        optimizer = SGD(model.parameters(), lr=rate, momentum=_MOMENTUM)
        schedule = CosineDecay() if course.falls else LinearDecay(final=1.0)
        course_of_rate = LearningRate(optimizer, schedule, num_steps=plan.num_steps)
        losses = mean_over_views(lambda x, y: functional.cross_entropy(model(x), y, reduction="none"))
        session = privatize(
            model,
            optimizer,
            Views(dataset=train, transform=course.transform, num_views=course.num_views),
            plan,
            performance=Performance(physical_batch_size=max(1, _AT_ONCE // course.num_views)),
            averaging=ExponentialAverage(decay=_DECAY),
            seed=seed,
        )
        with session:
            for step in session.steps():
                course_of_rate.set(step.index)
                step.accumulate(losses)
                step.update()
    yield "", measure_model(model, test, info)[0].value
    with session.averaged():
        yield AVERAGED, measure_model(model, test, info)[0].value


def views_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the study as Markdown: accuracy by arm and learning rate, and the gain over the plain arm at that rate."""
    if not rows:
        return "No rows yet.\n"
    found = {(row["arm"], row["rate"], row["seed"]): 100 * float(row["accuracy"]) for row in rows}
    arms, seeds = list(dict.fromkeys(row["arm"] for row in rows)), sorted({row["seed"] for row in rows})
    rates = sorted({row["rate"] for row in rows})
    header = ["arm", *(f"{what}, rate {rate:g}" for rate in rates for what in ("accuracy %", "gain"))]
    lines = [header]
    for arm in arms:
        cells = [arm]
        for rate in rates:
            both = {seed: (found.get((arm, rate, seed)), found.get((PLAIN, rate, seed))) for seed in seeds}
            values = [own for own, _ in both.values() if own is not None]
            gains = [own - plain for own, plain in both.values() if own is not None and plain is not None]
            cells += [_shown(values, ".1f"), "" if arm == PLAIN else _shown(gains, "+.1f")]
        lines.append(cells)
    return f"{_terms(rows[0], seeds)}\n\n{markdown(lines)}\n"


def _terms(row: Mapping[str, Any], seeds: Sequence[int]) -> str:
    return (
        f"Every arm: epsilon {row['epsilon']:.3f} at delta {row['delta']:g} (add or remove one record, Poisson "
        f"sampling), {row['steps']} steps, {row['num_test']:,} test examples, seeds {', '.join(map(str, seeds))}. "
        "Gains are points against the last weights of a constant rate that begins as high, paired by seed, with 95 % "
        "intervals over seeds (Student's t)."
    )


def _shown(values: Sequence[float], style: str) -> str:
    if not values:
        return ""
    width = half_width(values)
    return format(statistics.fmean(values), style) + ("" if width is None else f" ± {width:.1f}")
