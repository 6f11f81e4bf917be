"""How a step is computed: choices of speed and memory, in one value.

Plan, noise and ledger never see it, so no choice here can change the guarantee; an import contract keeps it so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from privet import checks
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.engine import Engine
from privet.training.launch.replay import Eager, Launch


@dataclass(frozen=True, kw_only=True)
class Performance:
    """How a step is computed; never part of a plan.

    Attributes:
        engine: How per-example gradients are computed.
        launch: How operations are launched: ``CudaGraph`` speeds up small models on a device, for
            loops that use ``step.accumulate``. One by one by default.
        physical_batch_size: How many examples go through the model at once.

    Example:
        >>> import privet as pv
        >>> pv.Performance(physical_batch_size=64).physical_batch_size
        64
    """

    engine: Engine = field(default_factory=BookKeeping)
    launch: Launch = field(default_factory=Eager)
    physical_batch_size: int = 256

    def __post_init__(self) -> None:
        """Refuse a batch size below one."""
        object.__setattr__(self, "physical_batch_size", checks.count("physical_batch_size", self.physical_batch_size))
