"""Whether a run's model is sharded; modules that only sharded models need are imported for them alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from privet.gradients.sharding.local import is_sharded
from privet.mechanism.layout import Layout
from privet.plan import Plan
from privet.training.distributed.ranks import Point, Ranks
from privet.training.launch.replay import Launch
from privet.training.performance import Performance

if TYPE_CHECKING:
    from privet.training.distributed.shards import Shards


def ranks_for(model: object, ranks: Ranks | None, performance: Performance) -> Ranks | None:
    """Return the ranks in the form that the model asks for, after they agreed on it; None for one process.

    Ranks of a sharded model gather its parameters in every physical batch, so they must have equally many.
    """
    if ranks is None:
        return None
    gathers = isinstance(model, nn.Module) and is_sharded(model)
    facts: dict[str, str | int] = {"the model, sharded or whole": "sharded" if gathers else "whole"}
    if gathers:
        facts["the physical_batch_size"] = performance.physical_batch_size
    ranks.meet(Point.PREPARING, facts)
    return ranks.gathering() if gathers else ranks


def shards_of(
    model: nn.Module, parameters: Sequence[nn.Parameter], layout: Layout, plan: Plan, launch: Launch,
    ranks: Ranks | None,
) -> Shards | None:  # fmt: skip
    """Return this rank's part of a sharded model; None for a whole one.

    Raises:
        PlanError, UnsupportedModel: the plan, the launch or the way of sharding does not fit.
    """
    if not is_sharded(model):
        return None
    from privet.training.distributed.shards import Shards, check_shardable

    check_shardable(plan, launch)
    shards = Shards.of(model, parameters, layout)
    shards.check_ranks(ranks)
    return shards
