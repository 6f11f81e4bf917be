"""How a step is computed: choices of speed and memory, in one value.

Plan, noise and ledger never see it, so no choice here can change the guarantee; an import contract keeps it so.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from privet import checks
from privet.errors import ArgumentError
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.engine import Engine
from privet.training.launch.replay import Automatic, Launch


@dataclass(frozen=True, kw_only=True)
class Performance:
    """How a step is computed; never part of a plan.

    Attributes:
        engine: How per-example gradients are computed.
        launch: How operations are launched. By default recorded and replayed on a device wherever that gives the same,
            in loops that use ``step.accumulate``.
        physical_batch_size: How many examples go through the model at once.
        workers: How many processes read the data set, each of them whole physical batches, while the model computes;
            0 reads in the training process. Data that lie in memory are read there in any case.
        prefetch: How many physical batches each worker reads ahead.
        pin_memory: Whether parts that workers read go through pinned memory to a CUDA device; without effect elsewhere.

    Example:
        >>> import privet as pv
        >>> pv.Performance(physical_batch_size=64).physical_batch_size
        64
    """

    engine: Engine = field(default_factory=BookKeeping)
    launch: Launch = field(default_factory=Automatic)
    physical_batch_size: int = 256
    workers: int = 0
    prefetch: int = 2
    pin_memory: bool = True

    def __post_init__(self) -> None:
        """Refuse sizes below one and numbers of workers below zero."""
        for name, minimum in (("physical_batch_size", 1), ("workers", 0), ("prefetch", 1)):
            object.__setattr__(self, name, checks.count(name, getattr(self, name), minimum=minimum))
        if not isinstance(self.pin_memory, bool):
            raise ArgumentError(f"pin_memory must be True or False, got {self.pin_memory!r}.")


def chosen_performance(
    caller: str, performance: Performance | None, former: Mapping[str, Engine | Launch | int | None], *, stacklevel: int
) -> Performance:
    """Return the choices of speed of a call; keywords of version 0.1 are accepted with a warning.

    Args:
        caller: The name of the function, for messages.
        performance: The choices; None for the defaults.
        former: The keywords of version 0.1 with their values; None where they were not given.
        stacklevel: The distance to the code that is warned.

    Raises:
        ArgumentError: both forms were used.
    """
    given = {name: value for name, value in former.items() if value is not None}
    if not given:
        return performance or Performance()
    names = ", ".join(f"{name}=..." for name in given)
    if performance is not None:
        raise ArgumentError(f"{caller}() got performance= and {names}. Give all of them in Performance(...).")
    warnings.warn(
        f"{caller}({names}) is deprecated and will be removed in the version after next; use "
        f"{caller}(performance=privet.Performance({names})).",
        DeprecationWarning,
        stacklevel=stacklevel,
    )
    return replace(Performance(), **given)  # type: ignore[arg-type]
