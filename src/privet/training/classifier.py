"""Estimators: private training in the shape of scikit-learn, with nothing left to wire up.

The constants of the plan are asked for, never read off the data: the size of a private data set is itself private when
a record may be added or removed, so ``dataset_size`` is what the owner is willing to publish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, InitVar, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer
from torch.utils.data import TensorDataset

from privet.accounting.guarantee import Guarantee
from privet.errors import ArgumentError, DataError, LoopError
from privet.gradients.engines.engine import Engine
from privet.mechanism.clipping import Clipping, Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import Poisson
from privet.plan import Plan
from privet.training.averaging import ExponentialAverage
from privet.training.batching import MapDataset
from privet.training.launch.replay import Launch
from privet.training.performance import Performance, chosen_performance
from privet.training.schedules import LearningRate, Schedule
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
Losses = Callable[[Tensor, Tensor], Tensor]
Array = NDArray[Any]
Inputs = Tensor | Array | MapDataset
Targets = Tensor | Array


def sgd(*, learning_rate: float, momentum: float = 0.0) -> MakeOptimizer:
    """Return a maker of plain SGD."""
    return lambda parameters: SGD(parameters, lr=learning_rate, momentum=momentum)


def fit_privately(
    model: nn.Module,
    optimizer: Optimizer,
    dataset: MapDataset,
    plan: Plan,
    losses: Losses,
    *,
    performance: Performance | None = None,
    folder: str | Path | None = None,
    schedule: Schedule | None = None,
    averaging: ExponentialAverage | None = None,
    seed: int | None = None,
    physical_batch_size: int | None = None,
    engine: Engine | None = None,
    launch: Launch | None = None,
) -> Guarantee:
    """Run a whole plan on data sets of (input, target) pairs and return the guarantee of the run.

    With ``averaging`` the model ends with the averaged weights. ``physical_batch_size``, ``engine`` and ``launch`` are
    deprecated: they belong into ``performance``.
    """
    former = {"physical_batch_size": physical_batch_size, "engine": engine, "launch": launch}
    chosen = chosen_performance("fit_privately", performance, former, stacklevel=3)

    def losses_of(inputs: Tensor, targets: Tensor) -> Tensor:
        return losses(model(inputs), targets)

    model.train()
    rate = None if schedule is None else LearningRate(optimizer, schedule, num_steps=plan.num_steps)
    session = privatize(
        model,
        optimizer,
        dataset,
        plan,
        performance=chosen,
        folder=folder,
        averaging=averaging,
        seed=seed,
    )
    with session:
        for step in session.steps():
            if rate is not None:
                rate.set(step.index)
            step.accumulate(losses_of)
            step.update()
    if averaging is not None:
        session.adopt_average()
    return session.guarantee()


@dataclass
class _PrivateEstimator:
    """What both estimators share: the constants of the plan and how the model is run.

    Args:
        model: The network; trained in place.
        epsilon: Target; the guarantee never exceeds it.
        delta: Probability with which the bound may fail.
        dataset_size: Declared, public size of the data set; sets the sampling rate and the number of steps. It need not
            be exact, and it is never read off the data.
        epochs: Expected number of times each record is used.
        batch_size: Expected logical batch size.
        adjacency: Which two data sets must not be told apart.
        unit: What one item of the data set stands for.
        optimizer: Makes the optimizer from the parameters; SGD with rate 0.5 and momentum 0.9 by default.
        clipping_norm: Bound on one record's gradient, which is scaled down to it if it is longer.
        clipping: Another clipping rule, with a bound of its own, instead of that one.
        schedule: The course of the learning rate; None keeps it.
        averaging: Leaves a moving average of the weights in the model instead of the last ones.
        performance: How a step is computed: engine, launch, physical batch size.
        folder: Where to keep ledger and checkpoints; None keeps nothing.
        seed: Makes the run repeatable and NOT PRIVATE.
        physical_batch_size: Deprecated; ``performance=Performance(physical_batch_size=...)``.
        engine: Deprecated; ``performance=Performance(engine=...)``.
    """

    model: nn.Module
    _: KW_ONLY
    epsilon: float
    delta: float
    dataset_size: int
    epochs: int
    batch_size: int
    adjacency: Adjacency
    unit: Unit
    optimizer: MakeOptimizer = field(default_factory=lambda: sgd(learning_rate=0.5, momentum=0.9))
    clipping_norm: float = 1.0
    clipping: Clipping | None = None
    schedule: Schedule | None = None
    averaging: ExponentialAverage | None = None
    performance: Performance | None = None
    folder: str | Path | None = None
    seed: int | None = None
    physical_batch_size: InitVar[int | None] = None
    engine: InitVar[Engine | None] = None
    _guarantee: Guarantee | None = field(default=None, init=False, repr=False)
    _was_broken_off: bool = field(default=False, init=False, repr=False)

    def __post_init__(self, physical_batch_size: int | None, engine: Engine | None) -> None:
        """Refuse an optimizer that is made already: it could not be made for this model's parameters."""
        former = {"physical_batch_size": physical_batch_size, "engine": engine}
        self.performance = chosen_performance(type(self).__name__, self.performance, former, stacklevel=4)
        if not callable(self.optimizer):
            raise ArgumentError(
                f"optimizer must be a function from parameters to an optimizer, got {self.optimizer!r}. For instance "
                "optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3) or pv.optim.sgd(learning_rate=0.5)."
            )

    def plan(self) -> Plan:
        """Return the calibrated plan; its guarantee is known before ``fit`` reads any data."""
        sampling = Poisson.for_dataset(dataset_size=self.dataset_size, batch_size=self.batch_size, epochs=self.epochs)
        return Plan(
            sampling=sampling,
            clipping=Threshold(norm=self.clipping_norm) if self.clipping is None else self.clipping,
            noise=Gaussian(),
            delta=self.delta,
            adjacency=self.adjacency,
            unit=self.unit,
        ).calibrated(epsilon=self.epsilon)

    @property
    def guarantee_(self) -> Guarantee:
        """The guarantee of the trained model, from the ledger."""
        self._check_trained()
        assert self._guarantee is not None
        return self._guarantee

    def _check_trained(self) -> None:
        if self._guarantee is None:
            name = type(self).__name__
            raise LoopError(
                f"The training of this {name} was broken off. Call fit(...) again if it has a folder=, which knows "
                "what was spent; otherwise make a new one with a fresh model."
                if self._was_broken_off
                else f"This {name} has not been trained. Call fit(...) first."
            )

    def _train(self, dataset: MapDataset, losses: Losses) -> None:
        """Run the plan.

        Guarantee:
            A model whose weights have seen data is not trained again unless a ledger on disk adds both up: neither
            after a whole run nor after one that an error or an interrupt broke off.
        """
        if self.folder is None and (self._guarantee is not None or self._was_broken_off):
            how = "broken off in mid-training" if self._guarantee is None else "trained already"
            raise LoopError(
                f"This model was {how}, and training it further would cost more than guarantee_ says. Make a new "
                "estimator with a fresh model; with folder= an interrupted fit can be taken up again."
            )
        trained = [p for p in self.model.parameters() if p.requires_grad]
        optimizer, plan = self.optimizer(trained), self.plan()
        versions = [p._version for p in trained]
        try:
            self._guarantee = fit_privately(
                self.model,
                optimizer,
                dataset,
                plan,
                losses,
                performance=self.performance,
                folder=self.folder,
                schedule=self.schedule,
                averaging=self.averaging,
                seed=self.seed,
            )
        except BaseException:
            # a refusal before the first update leaves the weights as they were, and the model can be mended and used
            self._was_broken_off |= [p._version for p in trained] != versions
            raise

    @torch.no_grad()
    def _outputs(self, inputs: Inputs) -> Tensor:
        """Run the trained model in evaluation mode, some inputs at a time."""
        self._check_trained()
        device = next(self.model.parameters()).device
        was_training = self.model.training
        self.model.eval()
        try:
            size = (self.performance or Performance()).physical_batch_size
            pieces = torch.split(_inputs_of(inputs), size)
            return torch.cat([self.model(piece.to(device)).cpu() for piece in pieces])
        finally:
            self.model.train(was_training)


class PrivateClassifier(_PrivateEstimator):
    """A classifier trained with differential privacy; its model maps a batch to one logit per class.

    Example:
        >>> import torch, privet as pv
        >>> inputs = torch.randn(64, 2)
        >>> labels = (inputs[:, 0] > 0).long()
        >>> classifier = pv.PrivateClassifier(
        ...     torch.nn.Linear(2, 2), epsilon=8.0, delta=1e-3, dataset_size=64, epochs=2, batch_size=16,
        ...     adjacency=pv.Adjacency.ADD_REMOVE, unit=pv.Unit.RECORD)
        >>> classifier.fit(inputs, labels).guarantee_.epsilon <= 8.0
        True
    """

    def fit(self, inputs: Inputs, labels: Targets | None = None) -> Self:
        """Train on arrays of inputs and class numbers from 0 on, or on a data set of such pairs."""
        dataset = _dataset_of(inputs, labels, torch.long)
        if isinstance(dataset, TensorDataset):
            self._check_labels(*dataset.tensors)
        self._train(
            dataset,
            lambda outputs, targets: functional.cross_entropy(outputs, targets, reduction="none"),
        )
        return self

    @torch.no_grad()
    def _check_labels(self, features: Tensor, labels: Tensor) -> None:
        """Refuse labels that are not numbers of the model's outputs, without a word about which ones occur."""
        made_up = features.new_zeros(1, *features.shape[1:]).to(next(self.model.parameters()).device)
        was_training = self.model.training
        try:
            num_classes = self.model.eval()(made_up).shape[-1]
        except Exception:  # noqa: BLE001 -- training says with all its care what is wrong with the model or the inputs
            return
        finally:
            self.model.train(was_training)
        if labels.dim() != 1 or not bool(((labels >= 0) & (labels < num_classes)).all()):
            raise DataError(
                f"labels must be one class number from 0 to {num_classes - 1} per record, because the model has "
                f"{num_classes} outputs. Number the classes by a public list of their names; which ones occur is "
                "private."
            )

    def predict_proba(self, inputs: Inputs) -> Array:
        """Return class probabilities, one row per input."""
        return self._outputs(inputs).softmax(1).numpy()

    def predict(self, inputs: Inputs) -> Array:
        """Return the most probable class of each input."""
        return self._outputs(inputs).argmax(1).numpy()

    def score(self, inputs: Inputs, labels: Targets | None = None) -> float:
        """Return the share of right predictions."""
        return float((self.predict(inputs) == _targets_of(inputs, labels)).mean())


class PrivateRegressor(_PrivateEstimator):
    """A regressor trained with differential privacy under squared loss; its model gives one output per target."""

    def fit(self, inputs: Inputs, targets: Targets | None = None) -> Self:
        """Train on arrays of inputs and real targets, or on a data set of such pairs."""
        self._train(
            _dataset_of(inputs, targets, torch.get_default_dtype()),
            lambda outputs, wanted: (outputs.flatten(1) - wanted.reshape(len(wanted), -1)).square().mean(1),
        )
        return self

    def predict(self, inputs: Inputs) -> Array:
        """Return the predicted targets; a single target per input comes as a flat array."""
        outputs = self._outputs(inputs)
        return (outputs.squeeze(1) if outputs.dim() == 2 and outputs.shape[1] == 1 else outputs).numpy()

    def score(self, inputs: Inputs, targets: Targets | None = None) -> float:
        """Return the coefficient of determination, R squared."""
        found, expected = self.predict(inputs), _targets_of(inputs, targets)
        expected = expected.reshape(found.shape)
        residual, spread = ((found - expected) ** 2).sum(), ((expected - expected.mean(0)) ** 2).sum()
        return float(1.0 - residual / spread) if spread > 0 else 0.0


def _dataset_of(inputs: Inputs, targets: Targets | None, dtype: torch.dtype) -> MapDataset:
    if targets is None:
        if isinstance(inputs, Tensor | np.ndarray):
            raise DataError("fit() got inputs without targets. Pass both arrays, or one data set of pairs.")
        return inputs
    if not isinstance(inputs, Tensor | np.ndarray):
        raise DataError(
            f"fit() got targets beside a {type(inputs).__name__}. Pass two arrays (numpy or torch), or one data set of "
            "pairs."
        )
    try:
        features, wanted = _inputs_of(inputs), torch.as_tensor(targets).to(dtype)
    except (TypeError, ValueError, RuntimeError):
        raise DataError(
            "fit() takes arrays of numbers, and got something else. Number classes by a public list of their names, "
            "and turn words among the inputs into numbers in the same way."
        ) from None
    if len(features) != len(wanted):
        raise DataError(f"fit() got {len(features)} inputs and {len(wanted)} targets. They must be pairs.")
    return TensorDataset(features, wanted)


def _inputs_of(inputs: Inputs) -> Tensor:
    if not isinstance(inputs, Tensor | np.ndarray):
        return torch.stack([torch.as_tensor(inputs[index][0]) for index in range(len(inputs))])
    tensor = torch.as_tensor(inputs)
    return tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor


def _targets_of(inputs: Inputs, targets: Targets | None) -> Array:
    if targets is not None:
        return np.asarray(targets)
    if isinstance(inputs, Tensor | np.ndarray):
        raise DataError("score() got inputs without targets. Pass both arrays, or one data set of pairs.")
    return np.asarray([inputs[index][1] for index in range(len(inputs))])
