"""Noisy cyclic gradient descent: fixed disjoint batches, last iterate only, a guarantee that converges with epochs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn
from torch.optim import SGD

from privet import checks
from privet.accounting.guarantee import Guarantee
from privet.errors import ArgumentError
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.engine import Engine
from privet.mechanism.clipping import Threshold
from privet.mechanism.epoch_sampling import Cyclic
from privet.mechanism.noise import Gaussian
from privet.mechanism.strong_convexity import StronglyConvexDescent
from privet.plan import Plan
from privet.training.batching import MapDataset
from privet.training.last_iterate import ProvenLoss
from privet.training.performance import Performance
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Release, Unit


@dataclass(frozen=True, kw_only=True)
class NoisyCGD:
    """Noisy cyclic gradient descent on a model with a proven convex loss.

    Attributes:
        learning_rate: Step size; at most ``2 / (2 * ridge + smoothness)`` of the model.
        ridge: Constant of the quadratic regularisation; a larger one contracts faster.
        batch_size: Number of records per batch, and the divisor of every noisy sum.
        epochs: Number of passes over the records.
    """

    learning_rate: float
    ridge: float
    batch_size: int
    epochs: int

    def __post_init__(self) -> None:
        checks.fields(self, checks.positive, "learning_rate")
        checks.fields(self, checks.non_negative, "ridge")
        checks.fields(self, checks.count, "batch_size", "epochs")

    def plan(
        self,
        model: nn.Module,
        *,
        dataset_size: int,
        epsilon: float,
        delta: float,
        adjacency: Adjacency,
        unit: Unit,
    ) -> Plan:
        """Return the calibrated plan for a model and a public number of records."""
        if not isinstance(model, ProvenLoss):
            raise ArgumentError(
                f"{type(model).__name__} has no proven loss. Use a model such as privet.models.ConvexRelu."
            )
        plan = Plan(
            sampling=Cyclic.for_dataset(dataset_size=dataset_size, batch_size=self.batch_size, epochs=self.epochs),
            clipping=Threshold(norm=model.gradient_bound),
            noise=Gaussian(),
            delta=delta,
            adjacency=adjacency,
            unit=unit,
            release=Release.LAST_ITERATE,
            descent=StronglyConvexDescent(
                learning_rate=self.learning_rate,
                ridge=self.ridge,
                gradient_bound=model.gradient_bound,
                smoothness=model.smoothness,
            ),
        )
        return plan.calibrated(epsilon=epsilon)

    def fit(
        self,
        model: nn.Module,
        dataset: MapDataset,
        plan: Plan,
        *,
        physical_batch_size: int | None = None,
        folder: str | Path | None = None,
        engine: Engine | None = None,
        seed: int | None = None,
    ) -> Guarantee:
        """Run the plan in a session and return the guarantee of the last model."""
        session = privatize(
            model,
            SGD(model.parameters(), lr=self.learning_rate, weight_decay=self.ridge),
            dataset,
            plan,
            performance=Performance(
                engine=engine or BookKeeping(),
                physical_batch_size=physical_batch_size or self.batch_size,
            ),
            folder=folder,
            seed=seed,
        )
        # the session refuses other models
        assert isinstance(model, ProvenLoss)
        with session:
            for step in session.steps():
                step.accumulate(model.losses)
                step.update()
        return session.guarantee()
