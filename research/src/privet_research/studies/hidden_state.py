"""The comparison of noisy cyclic descent with its rivals: six published rows, and one that is honest about constants.

Each arm trains one model on one data set at one epsilon. The published table (Romijnders and Koskela, 2025) clips the
gradients of softmax cross entropy in its cyclic runs, which has no proof; that arm is run as well, marked HEURISTIC,
with the guarantee that is proven of it beside the epsilon that was claimed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from privet.accounting.gaussian_dp import gdp_epsilon, gdp_mu
from privet.accounting.guarantee import Guarantee
from privet.accounting.hidden_state import cyclic_ratio
from privet.convex.descent import NoisyCGD
from privet.convex.features import ConvexFeatures, FeatureMap, RandomFourier, RandomRelu
from privet.convex.statistics import SufficientStatistics
from privet.datasets import load
from privet.datasets.arrays import ArrayDataset, Split
from privet.errors import ArgumentError
from privet.mechanism.clipping import Threshold
from privet.mechanism.codec import suggestion
from privet.mechanism.epoch_sampling import Cyclic
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import Poisson
from privet.models.convex_relu import BoundedFeatures, ConvexRelu
from privet.models.dense import mlp
from privet.plan import Plan
from privet.runs.building import on_device
from privet.runs.model_measures import measure_model
from privet.training.last_iterate import ProvenLoss
from privet.training.performance import Performance
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit

# Far above the length of any image, so that features keep their lengths and clipping does all the bounding.
_NO_BOUND = 1e6
_ADJACENCY, _UNIT = Adjacency.REPLACE_ONE, Unit.RECORD


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a run is asked to do; the published setting by default.

    Attributes:
        dataset: Name of the data set.
        epsilon: Target.
        epochs: Epochs of the iterative arms.
        batch_size: Records per step.
        delta: Probability with which the bound may fail.
        num_gates: Gates of the convex network.
        hidden_width: Width of the plain ReLU network.
        num_features: Features of the one-shot arms.
        decay: Learning rate times ridge of the cyclic runs.
        learning_rate: Overrides the arm's own.
    """

    dataset: str = "mnist"
    epsilon: float = 4.76
    epochs: int = 400
    batch_size: int = 1000
    delta: float = 1e-5
    num_gates: int = 100
    hidden_width: int = 200
    num_features: int = 1000
    decay: float = 5.4e-5
    learning_rate: float | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run of one arm: what was asked, what it cost, what it learned.

    Attributes:
        arm: Name of the arm.
        status: "proven", or "HEURISTIC" where the epsilon that was aimed at has no proof.
        seed: Seed of the run.
        epsilon: The proven epsilon of what was released.
        epsilon_claimed: The epsilon that the method claims: equal to ``epsilon`` for proven arms.
        noise_multiplier: Noise over sensitivity.
        accuracy: Share of the test images that are classified rightly.
        seconds: How long training took, with everything in it.
        examples_per_second: Records used per second of training; 0 for one-shot arms.
        device: Where it ran.
        setting: What was asked.
    """

    arm: str
    status: str
    seed: int
    epsilon: float
    epsilon_claimed: float
    noise_multiplier: float
    accuracy: float
    seconds: float
    examples_per_second: float
    device: str
    setting: Setting

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain values, one level deep; the target and the proven epsilon are two things."""
        plain = asdict(self)
        asked: dict[str, Any] = plain.pop("setting")
        return asked | plain | {"epsilon_target": self.setting.epsilon, "asked_rate": self.setting.learning_rate}


@dataclass(frozen=True, kw_only=True)
class _Trained:
    """What an arm hands back."""

    guarantee: Guarantee
    claimed: float
    noise_multiplier: float
    num_examples: float
    accuracy: float


Arm = Callable[[Setting, Split, int], _Trained]


def run_arm(name: str, setting: Setting, *, seed: int, device: torch.device, given: Split | None = None) -> Row:
    """Train one arm once and measure it on the test split. The seed makes the run repeatable and not private.

    Args:
        name: Of the arm.
        setting: What is asked.
        seed: Of the run.
        device: Where it runs.
        given: Trained and measured on in place of the data set's own parts, for a choice among settings.
    """
    known = {**ARMS, **CURVE_ARMS}
    arm = known.get(name)
    if arm is None:
        raise ArgumentError(f"There is no arm {name!r}. {suggestion(name, list(known))}")
    found = given or load(setting.dataset, normalisation="standardized")
    split = replace(found, train=on_device(found.train, device), test=on_device(found.test, device))
    _wait(device)
    began = time.perf_counter()
    trained = arm(setting, split, seed)
    _wait(device)
    seconds = time.perf_counter() - began
    return Row(
        arm=name,
        status="HEURISTIC" if name in UNPROVEN else "proven",
        seed=seed,
        epsilon=trained.guarantee.epsilon,
        epsilon_claimed=trained.claimed,
        noise_multiplier=trained.noise_multiplier,
        accuracy=trained.accuracy,
        seconds=seconds,
        examples_per_second=trained.num_examples / seconds,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        setting=setting,
    )


def _statistics(features: Callable[[Setting], FeatureMap]) -> Arm:
    def arm(setting: Setting, split: Split, seed: int) -> _Trained:
        made = SufficientStatistics(
            features=features(setting),
            num_classes=_num_classes(split),
            delta=setting.delta,
            adjacency=_ADJACENCY,
            unit=_UNIT,
        ).calibrated(epsilon=setting.epsilon)
        fitted = made.fit(split.train.features, split.train.labels, seed=seed)
        return _Trained(
            guarantee=fitted.guarantee_,
            claimed=fitted.guarantee_.epsilon,
            noise_multiplier=made.noise_multiplier or math.nan,
            num_examples=0,
            accuracy=fitted.score(split.test.features, split.test.labels),
        )

    return arm


def _cyclic(setting: Setting, split: Split, seed: int) -> _Trained:
    model = _convex(setting, split, seed)
    rate = setting.learning_rate or _rate(setting, low=0.3, high=1.0)
    descent = NoisyCGD(
        learning_rate=rate, ridge=setting.decay / rate, batch_size=setting.batch_size, epochs=setting.epochs
    )
    plan = descent.plan(
        model,
        dataset_size=split.info.train_size,
        epsilon=setting.epsilon,
        delta=setting.delta,
        adjacency=_ADJACENCY,
        unit=_UNIT,
    )
    found = descent.fit(model, split.train, plan, seed=seed)
    return _trained(model, plan, found, found.epsilon, split)


def _clipped_cyclic(setting: Setting, split: Split, seed: int) -> _Trained:
    """Cyclic descent with flatly clipped gradients, calibrated by a bound whose assumptions it breaks."""
    model = _convex(setting, split, seed, radius=_NO_BOUND)
    rate = setting.learning_rate or _rate(setting, low=0.015, high=0.05)
    sampling = Cyclic.for_dataset(
        dataset_size=split.info.train_size, batch_size=setting.batch_size, epochs=setting.epochs
    )
    ratio = cyclic_ratio(contraction=1 - setting.decay, batches=sampling.batches, epochs=sampling.epochs)
    multiplier = 2 * ratio / gdp_mu(setting.epsilon, setting.delta)
    plan = _plan(setting, sampling, multiplier)
    found = _descend(model, plan, split, rate=rate, ridge=setting.decay / rate, seed=seed)
    return _trained(model, plan, found, gdp_epsilon(2 * ratio / multiplier, setting.delta), split)


def _poisson(build: Callable[[Setting, Split, int], nn.Module], low: float, high: float) -> Arm:
    def arm(setting: Setting, split: Split, seed: int) -> _Trained:
        model = build(setting, split, seed)
        sampling = Poisson.for_dataset(
            dataset_size=split.info.train_size, batch_size=setting.batch_size, epochs=setting.epochs
        )
        plan = _plan(setting, sampling, None).calibrated(epsilon=setting.epsilon)
        rate = setting.learning_rate or _rate(setting, low=low, high=high)
        found = _descend(model, plan, split, rate=rate, ridge=setting.decay / rate, seed=seed)
        return _trained(model, plan, found, found.epsilon, split)

    return arm


def _descend(model: nn.Module, plan: Plan, split: Split, *, rate: float, ridge: float, seed: int) -> Guarantee:
    session = privatize(
        model,
        SGD(model.parameters(), lr=rate, weight_decay=ridge),
        split.train,
        plan,
        # Poisson batches rarely exceed their mean by this much, so that a step is one pass
        performance=Performance(
            physical_batch_size=math.ceil(1.25 * plan.sampling.expected_batch_size),
        ),
        seed=seed,
    )

    def losses(features: Tensor, labels: Tensor) -> Tensor:
        return split.info.task.losses(model(features), labels)

    with session:
        for step in session.steps():
            step.accumulate(model.losses if isinstance(model, ProvenLoss) else losses)
            step.update()
    return session.guarantee()


def _plan(setting: Setting, sampling: Poisson | Cyclic, multiplier: float | None) -> Plan:
    return Plan(
        sampling=sampling,
        clipping=Threshold(norm=1.0),
        noise=Gaussian(noise_multiplier=multiplier),
        delta=setting.delta,
        adjacency=_ADJACENCY,
        unit=_UNIT,
    )


def _trained(model: nn.Module, plan: Plan, found: Guarantee, claimed: float, split: Split) -> _Trained:
    assert isinstance(plan.noise, Gaussian)
    return _Trained(
        guarantee=found,
        claimed=claimed,
        noise_multiplier=plan.noise.noise_multiplier or math.nan,
        num_examples=plan.num_steps * plan.sampling.expected_batch_size,
        accuracy=_accuracy(model, split.test, split),
    )


def _accuracy(model: nn.Module, test: ArrayDataset, split: Split) -> float:
    return measure_model(model, test, split.info)[0].value


def _rate(setting: Setting, *, low: float, high: float) -> float:
    """Interpolate between rates for epsilon 1.33 and 4.76, found on public data: more noise wants shorter steps."""
    share = math.log(setting.epsilon / 1.33) / math.log(4.76 / 1.33)
    return math.exp(math.log(low) + min(1.0, max(0.0, share)) * math.log(high / low))


def _convex(setting: Setting, split: Split, seed: int, *, radius: float | None = None) -> ConvexRelu:
    bound = None if radius is None else BoundedFeatures(radius=radius)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ConvexRelu(split.info.input_shape, _num_classes(split), num_gates=setting.num_gates, features=bound)
    return model.to(split.train.features.device)


def _network(setting: Setting, split: Split, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = mlp(split.info.input_shape, _num_classes(split), hidden_widths=(setting.hidden_width,))
    return model.to(split.train.features.device)


def _logistic(setting: Setting, split: Split, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(split.info.input_shape), _num_classes(split)))
    return model.to(split.train.features.device)


def _num_classes(split: Split) -> int:
    if split.info.num_classes is None:
        raise ArgumentError(f"{split.info.name} is a regression; this comparison is of classifiers.")
    return split.info.num_classes


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


ARMS: Mapping[str, Arm] = MappingProxyType(
    {
        "ssp_convex": _statistics(
            lambda setting: ConvexFeatures(num_gates=10, projected_width=max(1, setting.num_features // 10))
        ),
        "ssp_random_relu": _statistics(lambda setting: RandomRelu(size=setting.num_features)),
        "ssp_random_fourier": _statistics(lambda setting: RandomFourier(size=setting.num_features)),
        "dpsgd_convex": _poisson(_convex, 0.3, 1.0),
        "dpsgd_relu": _poisson(_network, 0.05, 0.1),
        "noisycgd_convex": _cyclic,
        "noisycgd_convex_clipped": _clipped_cyclic,
    }
)
UNPROVEN = ("noisycgd_convex_clipped",)
# Of the published curve of accuracy against epsilon, which has logistic regression in place of noisy statistics.
CURVE_ARMS: Mapping[str, Arm] = MappingProxyType(
    {
        **{name: ARMS[name] for name in ("noisycgd_convex", "noisycgd_convex_clipped", "dpsgd_convex", "dpsgd_relu")},
        "dpsgd_logistic": _poisson(_logistic, 0.05, 0.1),
    }
)


def run_hidden_state_study(
    settings: Sequence[Setting],
    *,
    seeds: Sequence[int],
    device: torch.device,
    arms: Sequence[str] | None = None,
    earlier: Sequence[Mapping[str, Any]] = (),
) -> Iterator[dict[str, Any]]:
    """Run every arm at every setting and seed, one after the other; those of one seed come together.

    Rows of an earlier run are yielded again in their places and not run again.
    """
    known = {run_of(row): dict(row) for row in earlier}
    for seed in seeds:
        for setting in settings:
            for arm in ARMS if arms is None else arms:
                asked = {"dataset": setting.dataset, "arm": arm, "seed": seed, "epsilon_target": setting.epsilon}
                asked |= {"asked_rate": setting.learning_rate, "epochs": setting.epochs}
                yield known.get(run_of(asked)) or run_arm(arm, setting, seed=seed, device=device).to_dict()


def run_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what tells one run from another."""
    return tuple(row.get(key) for key in ("dataset", "arm", "seed", "epsilon_target", "asked_rate", "epochs"))


def recomputed_epsilons(
    *, batches: int, epochs: int, noise_multiplier: float, delta: float, decay: float
) -> dict[str, float]:
    """Return what the published noise costs by honest accounting: cyclic descent, and Poisson sampling."""
    mu = 2 / noise_multiplier * cyclic_ratio(contraction=1 - decay, batches=batches, epochs=epochs)
    poisson = Plan(
        sampling=Poisson(rate=1 / batches, steps=batches * epochs, expected_batch_size=1.0),
        clipping=Threshold(norm=1.0),
        noise=Gaussian(noise_multiplier=noise_multiplier),
        delta=delta,
        adjacency=_ADJACENCY,
        unit=_UNIT,
    )
    return {"cyclic, last iterate": gdp_epsilon(mu, delta), "Poisson": poisson.guarantee().epsilon}
