"""The common part of both estimators: the constants of a plan, one private fit, and the contract of scikit-learn.

The constants of the plan are asked for, never read off the data: the size of a private data set is itself private when
a record may be added or removed, so ``dataset_size`` is what the owner is willing to publish.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from privet.errors import ArgumentError, DataError, LoopError
from privet.gradients.engines.engine import Engine
from privet.mechanism.clipping import Clipping, Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import Poisson
from privet.plan import Plan
from privet.training.averaging import ExponentialAverage
from privet.training.batching import MapDataset
from privet.training.estimator_data import Inputs, Rows, is_dataset, rows_of
from privet.training.fitted import Fitted
from privet.training.fitting import Losses, MakeOptimizer, fit_privately, sgd
from privet.training.performance import Performance, chosen_performance
from privet.training.schedules import Schedule
from privet.training.tracking.progress import Progress
from privet.vocabulary import Adjacency, Unit

MakeModel = Callable[[int, int], nn.Module]


class Repeats(Enum):
    """Whether an estimator may be fitted again, by itself or by a clone.

    Searches and cross-validations of scikit-learn fit many clones to the same records and compare exact scores on
    them. That costs more than the epsilon of one fit: ``PrivateSearch`` accounts for a search.

    Attributes:
        REFUSED: One fit; clones do not fit.
        APART: Every fit is for itself: its records are in no other fit or are public, or the costs are added up
            elsewhere. The guarantee says so.
    """

    REFUSED = "refused"
    APART = "apart"


_APART = "other fits of this estimator and its clones used other or public records, or their costs are added up apart"


@dataclass
class PrivateEstimator(Fitted):
    """The constants of the plan and how the model is run.

    Args:
        model: The network, which is trained in place; or a function from the number of features and the number of
            outputs to a new network, of which every fit makes its own.
        epsilon: Target; the guarantee never exceeds it.
        delta: Probability with which the bound may fail.
        dataset_size: Declared, public size of the data set; sets the sampling rate and the number of steps. It need not
            be exact, and it is never read off the data.
        epochs: Expected number of times each record is used.
        batch_size: Expected logical batch size.
        adjacency: Which two data sets must not be told apart.
        unit: The unit that one item of the data set stands for.
        optimizer: Makes the optimizer from the parameters; SGD with rate 0.5 and momentum 0.9 by default.
        clipping_norm: Bound on one record's gradient, which is scaled down to it if it is longer.
        clipping: Another clipping rule, with a bound of its own, instead of that one.
        schedule: The course of the learning rate; None keeps it.
        averaging: Leaves a moving average of the weights in the model instead of the last ones.
        performance: How a step is computed: engine, launch, physical batch size.
        folder: Where to keep ledger and checkpoints; None keeps nothing.
        progress: Receives the public values of each step, for instance ``pv.tracking.Bar()``.
        repeats: Whether the estimator and its clones may be fitted more than once.
        seed: Makes the run repeatable and NOT PRIVATE.
        physical_batch_size: Deprecated; ``performance=Performance(physical_batch_size=...)``.
        engine: Deprecated; ``performance=Performance(engine=...)``.
    """

    model: nn.Module | MakeModel
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
    progress: Progress | None = None
    repeats: Repeats = Repeats.REFUSED
    seed: int | None = None
    physical_batch_size: InitVar[int | None] = None
    engine: InitVar[Engine | None] = None
    _was_broken_off: bool = field(default=False, init=False, repr=False)
    _is_clone: bool = field(default=False, init=False, repr=False)
    _input_type: torch.dtype | None = field(default=None, init=False, repr=False)

    def __post_init__(self, physical_batch_size: int | None, engine: Engine | None) -> None:
        """Refuse an optimizer that is made already: it could not be made for this model's parameters."""
        former = {"physical_batch_size": physical_batch_size, "engine": engine}
        if any(value is not None for value in former.values()):
            self.performance = chosen_performance(type(self).__name__, self.performance, former, stacklevel=4)
        if not callable(self.optimizer):
            raise ArgumentError(
                f"optimizer must be a function from parameters to an optimizer, got {self.optimizer!r}. For instance "
                "optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3) or pv.optim.sgd(learning_rate=0.5)."
            )

    def plan(self) -> Plan:
        """Return the calibrated plan; its guarantee is known before ``fit`` reads any data."""
        return _calibrated(self.uncalibrated_plan(), self.epsilon)

    def uncalibrated_plan(self) -> Plan:
        """Return the plan without its noise."""
        sampling = Poisson.for_dataset(dataset_size=self.dataset_size, batch_size=self.batch_size, epochs=self.epochs)
        return Plan(
            sampling=sampling,
            clipping=Threshold(norm=self.clipping_norm) if self.clipping is None else self.clipping,
            noise=Gaussian(),
            delta=self.delta,
            adjacency=self.adjacency,
            unit=self.unit,
        )

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor, as scikit-learn asks for them."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init}

    def set_params(self, **params: Any) -> Self:
        """Set arguments of the constructor by name, as scikit-learn does."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ArgumentError(
                    f"Invalid parameter {name!r} for estimator {type(self).__name__}. Valid parameters are: "
                    f"{sorted(known)!r}."
                )
            setattr(self, name, value)
        return self

    def __sklearn_clone__(self) -> Self:
        """Return an estimator with the same parameters that knows it is a clone.

        Guarantee:
            The weights of a clone have seen no data: a network that was trained in place is not copied.
        """
        params = self.get_params()
        if isinstance(self.model, nn.Module):
            if self._guarantee is not None or self._was_broken_off:
                raise LoopError(
                    "The network of this estimator is trained, and a clone must begin untrained. Give a function that "
                    "makes the network: model=lambda num_features, num_outputs: torch.nn.Linear(...)."
                )
            params["model"] = copy.deepcopy(self.model)
        cloned = type(self)(**params)
        cloned._is_clone = True
        return cloned

    def __sklearn_is_fitted__(self) -> bool:
        return self._guarantee is not None

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn what kind of estimator this is."""
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=True),
            input_tags=InputTags(sparse=True),
            non_deterministic=self.seed is None,
        )

    def _not_fitted(self) -> Exception:
        if self._was_broken_off:
            words = (
                f"The training of this {type(self).__name__} was broken off. Call fit(...) again if it has a folder=, "
                "which knows what was spent; otherwise make a new one with a fresh model."
            )
        else:
            words = str(super()._not_fitted())
        return _not_fitted_error()(words)

    def _check_may_fit(self) -> None:
        """Refuse a fit that the guarantee of this estimator would not cover.

        Guarantee:
            A model whose weights have seen data is not trained again unless a ledger on disk adds both up: neither
            after a whole run nor after one that an error or an interrupt broke off. Clones and second fits of an
            estimator are refused unless ``repeats`` says that fits are apart.
        """
        was_used = self._guarantee is not None or self._was_broken_off
        if isinstance(self.model, nn.Module) and self.folder is None and was_used:
            how = "broken off in mid-training" if self._guarantee is None else "trained already"
            raise LoopError(
                f"This model was {how}, and training it further would cost more than guarantee_ says. Make a new "
                "estimator with a fresh model; with folder= an interrupted fit can be taken up again."
            )
        if self._is_clone and self.folder is not None:
            raise LoopError("Clones of an estimator would share its folder= and its ledger. Leave out folder=.")
        is_repeat = self._is_clone or (was_used and not isinstance(self.model, nn.Module) and self.folder is None)
        if is_repeat and self.repeats is not Repeats.APART:
            raise LoopError(
                f"This {type(self).__name__} is fitted again or is a clone, as searches and cross-validations make "
                "them. Several fits to the same records cost more than one, and a choice by exact scores costs more "
                "still: pv.estimators.PrivateSearch tries settings at an accounted cost. If the records of each fit "
                "are in no other or are public, say repeats=pv.estimators.Repeats.APART."
            )

    def _made_model(self, num_features: int, num_outputs: int | None) -> nn.Module:
        """Return the network of this fit."""
        if isinstance(self.model, nn.Module):
            return self.model
        if num_outputs is None:
            raise DataError(
                "A function that makes the model needs the number of classes. Give their public list: "
                "classes=['no', 'yes'], or classes=pv.estimators.ClassesOfLabels() if it is public which ones occur."
            )
        made = self.model(num_features, num_outputs)
        if not isinstance(made, nn.Module):
            raise ArgumentError(f"model must be a torch module or make one, and it made {type(made).__name__}.")
        return made

    def _train(
        self, model: nn.Module, dataset: MapDataset, losses: Losses, *, plan: Plan | None = None,
        assumptions: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """Run a plan, the estimator's own by default; see ``_check_may_fit``, which the caller has asked."""
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = self.optimizer(trained)
        versions = [p._version for p in trained]
        try:
            found = fit_privately(
                model,
                optimizer,
                dataset,
                plan or self.plan(),
                losses,
                performance=self.performance,
                folder=self.folder,
                schedule=self.schedule,
                averaging=self.averaging,
                progress=self.progress,
                seed=self.seed,
            )
        except BaseException:
            # a refusal before the first update leaves the weights as they were, and the model can be mended and used
            self._was_broken_off |= [p._version for p in trained] != versions
            if self._was_broken_off:
                self._guarantee = None
            raise
        also = (*assumptions, *((_APART,) if self.repeats is Repeats.APART else ()))
        self.model_, self._guarantee = model, replace(found, assumptions=found.assumptions + also)

    def _remember(self, rows: Rows | None) -> None:
        """Keep the public form of the inputs: how many features there are, and their names."""
        for name in ("n_features_in_", "feature_names_in_"):
            vars(self).pop(name, None)
        if rows is not None:
            self.n_features_in_ = rows.num_features
            if rows.names is not None:
                self.feature_names_in_ = _object_array(rows.names)

    def _rows_to_predict(self, inputs: Inputs) -> Rows:
        """Read inputs in the form of those of ``fit``."""
        if is_dataset(inputs) and not (isinstance(inputs, list) and hasattr(self, "n_features_in_")):
            return Rows(values=torch.stack([torch.as_tensor(inputs[index][0]) for index in range(len(inputs))]))
        rows = rows_of(inputs)
        expected = getattr(self, "n_features_in_", rows.num_features)
        names = getattr(self, "feature_names_in_", None)
        if rows.names is not None and names is not None and list(rows.names) != list(names):
            raise DataError(_other_names(list(names), list(rows.names)))
        if rows.num_features != expected:
            raise DataError(
                f"X has {rows.num_features} features, but {type(self).__name__} is expecting {expected} features as "
                "input."
            )
        return rows

    @torch.no_grad()
    def _outputs(self, inputs: Inputs) -> Tensor:
        """Run the trained model in evaluation mode, some inputs at a time."""
        _ = self.guarantee_  # refuses a model that is not trained
        rows = self._rows_to_predict(inputs)
        first = next(self.model_.parameters())
        given = rows.values.dtype if isinstance(rows.values, Tensor) else first.dtype
        dtype = self._input_type or (first.dtype if given.is_floating_point else given)
        was_training = self.model_.training
        self.model_.eval()
        try:
            size = (self.performance or Performance()).physical_batch_size
            like = torch.empty(0, dtype=dtype, device=first.device)
            return torch.cat([self.model_(part).cpu() for part in rows.parts(size, like)])
        finally:
            self.model_.train(was_training)


def _object_array(names: tuple[str, ...]) -> Any:
    import numpy as np

    return np.asarray(names, dtype=object)


def _other_names(expected: list[str], found: list[str]) -> str:
    message = "The feature names should match those that were passed during fit.\n"
    unseen, missing = sorted(set(found) - set(expected)), sorted(set(expected) - set(found))
    for words, names in (("unseen at fit time", unseen), ("seen at fit time, yet now missing", missing)):
        if names:
            message += f"Feature names {words}:\n" + "".join(f"- {name}\n" for name in names)
    if not unseen and not missing:
        message += "Feature names must be in the same order as they were in fit.\n"
    return message


@functools.lru_cache(maxsize=64)
def _calibrated(plan: Plan, epsilon: float) -> Plan:
    """Calibrate once for all clones of an estimator: it takes longer than a small fit."""
    return plan.calibrated(epsilon=epsilon)


@functools.cache
def _class_of_both(not_fitted: type[Exception]) -> type[Exception]:
    return type("NotFitted", (LoopError, not_fitted), {"__doc__": "The estimator has not been trained."})


def _not_fitted_error() -> type[Exception]:
    """Return the error of an untrained estimator, which scikit-learn knows as its own where it is loaded."""
    exceptions = sys.modules.get("sklearn.exceptions")
    return LoopError if exceptions is None else _class_of_both(exceptions.NotFittedError)
