"""A privacy engine in the shape of Opacus', for scripts that have one: privet's session does the work behind it.

The script keeps its loop. The loader hands out the physical batches of logical steps, ``optimizer.backward(losses)``
takes one loss per example, and the update is made when all examples of a logical step were handed out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from privet.accounting.guarantee import Guarantee
from privet.errors import ArgumentError, DataError, LoopError
from privet.integrations.stepping import StepOptimizer
from privet.plan import Plan
from privet.training.batching import check_dataset
from privet.training.performance import Performance
from privet.training.session import Session, Step
from privet.training.start import privatize


class PrivacyEngine:
    """Makes a model, an optimizer and a loader private for a loop over batches.

    Guarantee:
        As :func:`~privet.training.start.privatize`, whose session does the work: batches come from the plan's Poisson
        sampling in the place of the loader's sampler, an empty batch is a step, and losses are taken one per example.

    Example:
        >>> import torch, privet as pv
        >>> model = torch.nn.Linear(2, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        >>> data = torch.utils.data.TensorDataset(torch.randn(64, 2), torch.randint(0, 2, (64,)))
        >>> engine = pv.integrations.PrivacyEngine()
        >>> model, optimizer, loader = engine.make_private_with_epsilon(
        ...     module=model, optimizer=optimizer, data_loader=torch.utils.data.DataLoader(data, batch_size=16),
        ...     target_epsilon=8.0, target_delta=1e-3, epochs=1, max_grad_norm=1.0, dataset_size=64)
        >>> for inputs, labels in loader:
        ...     losses = torch.nn.functional.cross_entropy(model(inputs), labels, reduction="none")
        ...     optimizer.backward(losses)
        ...     optimizer.step()
        >>> engine.get_epsilon(1e-3) <= 8.0
        True
    """

    def __init__(self) -> None:
        """Nothing is private yet."""
        self._session: Session | None = None

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        data_loader: DataLoader[Any],
        noise_multiplier: float,
        max_grad_norm: float,
        epochs: int,
        dataset_size: int,
        delta: float,
        performance: Performance | None = None,
        seed: int | None = None,
    ) -> tuple[nn.Module, EngineOptimizer, EngineLoader]:
        """Return module, optimizer and loader for a loop of so many epochs with fixed noise.

        Args:
            module: The model, which is not wrapped.
            optimizer: Any first-order torch optimizer over its trainable parameters.
            data_loader: Its data set, ``collate_fn``, number of workers and mean batch size are taken; its sampler is
                replaced.
            noise_multiplier: Standard deviation of the noise over the clipping norm.
            max_grad_norm: The largest norm of one example's gradient.
            epochs: How often the loop walks over the loader.
            dataset_size: A declared, public number of records, never ``len`` of private data.
            delta: The probability with which the bound may fail.
            performance: How a step is computed; workers of the loader by default.
            seed: Makes the run repeatable and NOT PRIVATE.
        """
        plan = Plan.dpsgd(
            dataset_size=dataset_size, batch_size=_batch_size(data_loader), epochs=epochs, delta=delta,
            noise_multiplier=noise_multiplier, clip_norm=max_grad_norm,
        )  # fmt: skip
        return self._made(module, optimizer, data_loader, plan, performance, seed)

    def make_private_with_epsilon(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        data_loader: DataLoader[Any],
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        max_grad_norm: float,
        dataset_size: int,
        performance: Performance | None = None,
        seed: int | None = None,
    ) -> tuple[nn.Module, EngineOptimizer, EngineLoader]:
        """Return module, optimizer and loader for a loop with the least noise that keeps to an epsilon.

        The other arguments are those of ``make_private``.
        """
        plan = Plan.dpsgd(
            dataset_size=dataset_size, batch_size=_batch_size(data_loader), epochs=epochs, delta=target_delta,
            epsilon=target_epsilon, clip_norm=max_grad_norm,
        )  # fmt: skip
        return self._made(module, optimizer, data_loader, plan, performance, seed)

    def _made(
        self, module: nn.Module, optimizer: Optimizer, loader: DataLoader[Any], plan: Plan,
        performance: Performance | None, seed: int | None,
    ) -> tuple[nn.Module, EngineOptimizer, EngineLoader]:  # fmt: skip
        if self._session is not None:
            raise LoopError("This engine has made a model private. Make another engine for another model.")
        _check_sampler(loader)
        chosen = performance or Performance(workers=loader.num_workers)
        self._session = session = privatize(
            module,
            optimizer,
            check_dataset(loader.dataset),
            plan,
            performance=chosen,
            collate_fn=loader.collate_fn,
            seed=seed,
        )
        session.open()
        stepped = EngineOptimizer(optimizer)
        return module, stepped, EngineLoader(session, stepped)

    def guarantee(self) -> Guarantee:
        """Return the guarantee of the training so far, with its terms."""
        if self._session is None:
            raise LoopError("Nothing is private yet. Call make_private or make_private_with_epsilon first.")
        return self._session.guarantee()

    def get_epsilon(self, delta: float) -> float:
        """Return the epsilon of the training so far, at the delta of the plan."""
        found = self.guarantee()
        if delta != found.delta:
            raise ArgumentError(
                f"The plan was made for delta={found.delta!r}, asked was {delta!r}. Ask for the former."
            )
        return found.epsilon


class EngineOptimizer(StepOptimizer):
    """The optimizer of the loop: ``backward`` takes the losses of a batch, ``step()`` says that the batch is done."""

    _step: Step | None = None
    _losses_were_given = False

    def hand_out(self, step: Step) -> None:
        """A physical batch of this step is handed out."""
        self._step, self._losses_were_given = step, False

    def backward(self, losses: Tensor) -> None:
        """Clip the gradient of each example and add it to the step's sum; ``losses`` has one number per example."""
        if self._step is None:
            raise LoopError("backward() belongs into the loop over the private loader.")
        self._step.backward(losses)
        self._losses_were_given = True

    def step(self, closure: Any = None) -> None:  # type: ignore[override] # torch's returns the closure's loss
        """Say that the batch is done. The loader updates the model when the logical step is complete."""
        if closure is not None:
            raise LoopError("A closure would evaluate the loss outside the guarantee. Call step() without one.")
        if not self._losses_were_given:
            raise LoopError(
                "optimizer.step() was called without optimizer.backward(losses), which would train without privacy. "
                "Write optimizer.backward(losses) in the place of loss.backward(); losses has one number per example."
            )
        self._losses_were_given = False


class EngineLoader:
    """The loader of the loop: an epoch hands out the physical batches of as many logical steps as the plan has in one.

    Guarantee:
        The model is updated once per logical step, also for an empty one, which hands out nothing. How many batches an
        epoch hands out depends on private sizes: a learning rate that changes within an epoch is refused.
    """

    def __init__(self, session: Session, optimizer: EngineOptimizer) -> None:
        """Walk over an open session."""
        self._session, self._optimizer = session, optimizer
        self._walk = session.steps()
        self._per_epoch = session.plan.sampling.steps_per_epoch

    def __len__(self) -> int:
        """Return the logical steps of an epoch, which are public."""
        return self._per_epoch

    def __iter__(self) -> Iterator[Any]:
        """Hand out the batches of one epoch; after the last step of the plan the session is closed."""
        rates = self._rates()
        for step in islice(self._walk, self._per_epoch):
            for batch in step.microbatches():
                self._optimizer.hand_out(step)
                yield batch
                if self._rates() != rates:
                    raise LoopError(
                        "The learning rate changed within an epoch, whose number of physical batches is private. Step "
                        "a schedule once per epoch, or use privatize() and step it once per step.update()."
                    )
            step.update()
        if self._session.is_complete:
            next(self._walk, None)
            self._session.close()

    def _rates(self) -> list[float]:
        return [float(group["lr"]) for group in self._optimizer.param_groups]


def _batch_size(loader: DataLoader[Any]) -> float:
    if loader.batch_size is None:
        raise DataError(
            "data_loader must be a DataLoader with batch_size=..., which is the mean size of a batch. One that "
            "Accelerate or another library prepared has none: pass the loader as it was before."
        )
    return float(loader.batch_size)


def _check_sampler(loader: DataLoader[Any]) -> None:
    if not isinstance(loader.sampler, RandomSampler | SequentialSampler):
        raise DataError(
            f"The loader draws with {type(loader.sampler).__name__}, which the plan's sampling would replace. Leave "
            "the sampler out; weights of classes belong into the loss."
        )
