"""A run whose model is sharded by FSDP2, seen from one rank: its part of the sum, of the noise and of the gradients."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed, nn

from privet.accounting.ledger import Ledger
from privet.errors import PlanError, UnsupportedModel
from privet.gradients.engines.engine import RunningEngine, ScatteringEngine
from privet.gradients.sharding.fsdp import ShardedModel
from privet.gradients.sharding.gradients import each_gradient
from privet.gradients.sharding.local import from_part
from privet.gradients.sharding.scattering import ScatteredSum
from privet.mechanism.layout import Layout
from privet.mechanism.sums import PartViews
from privet.plan import Plan
from privet.training.distributed.ranks import Point, Ranks
from privet.training.folder import RunFolder, RunState
from privet.training.launch.replay import Launch
from privet.training.shard_files import Shard, write_index, write_shard
from privet.training.updates import GradientViews
from privet.vocabulary import Release

if TYPE_CHECKING:
    from privet.training.distributed.shared_run import SharedRun


@dataclass(kw_only=True, eq=False)
class Shards:
    """The part of one rank of a sharded model and of the sums of its gradients.

    Attributes:
        sharded: The model.
        parameters: The shards that the model holds, in the layout's order.
        layout: Of the whole parameters.
    """

    sharded: ShardedModel
    parameters: Sequence[nn.Parameter]
    layout: Layout

    @classmethod
    def of(cls, model: nn.Module, parameters: Sequence[nn.Parameter], layout: Layout) -> Shards:
        """Gather the parameters once, and find this rank's part of each; all ranks call this."""
        return cls(sharded=ShardedModel(model), parameters=parameters, layout=layout)

    @cached_property
    def scatter(self) -> ScatteredSum:
        """Adds the sums of all ranks up."""
        return ScatteredSum(self.sharded, self.parameters, self.layout)

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self.sharded.model

    @cached_property
    def whole(self) -> list[nn.Parameter]:
        """The whole parameters that the model computes with, in the layout's order."""
        return [self.sharded.whole(value) for value in self.parameters]

    @property
    def held(self) -> dict[int, nn.Parameter]:
        """The shards that the model holds in place of whole parameters, by the identity of the latter."""
        return {id(part.whole): part.held for part in self.sharded.parameters.values()}

    def settle(self) -> None:
        """Free whatever is gathered."""
        self.sharded.settle()

    def gradient(self, total: Tensor) -> Sequence[Tensor | None]:
        """Return this rank's part of a gradient that all ranks compute alike; one parameter's is held at a time."""
        found: list[Tensor | None] = [None] * len(self.whole)
        runs = self.scatter.rows

        def keep(position: int, gradient: Tensor) -> None:
            found[position] = gradient[runs[position]].clone()

        with each_gradient(self.whole, keep):
            torch.autograd.grad(total, self.whole, allow_unused=True, retain_graph=True)
        return found

    def everywhere(self, holds: bool) -> bool:
        """Whether something holds on all ranks."""
        return not self.scatter.is_any(not holds)

    def check_engine(self, engine: RunningEngine) -> ScatteringEngine:
        """Return the engine if it adds to sums of which each rank holds a part.

        Raises:
            PlanError: it does not.
        """
        if isinstance(engine, ScatteringEngine):
            return engine
        raise PlanError(
            f"{type(engine).__name__} forms the gradient of the whole model, which a sharded model has no room for. "
            "Use pv.engines.BookKeeping() for a sharded model."
        )

    def write_checkpoint(self, shared: SharedRun | None) -> Callable[[RunFolder, RunState, Ledger], None]:
        """Return a function that writes a checkpoint of this rank's part; all ranks call it.

        Guarantee: the index that makes it the newest checkpoint is written after the parts of all ranks are durable.
        """
        ranks = None if shared is None else shared.ranks

        def write(folder: RunFolder, state: RunState, ledger: Ledger) -> None:
            self.settle()
            body, tensors = state.contents(ledger)
            word = secrets.token_hex(8)
            if ranks is None:
                write_index(folder.path, body, [write_shard(folder.path, word, tensors, rank=0, size=1)])
                return
            word = ranks.meet(Point.SAVING, note=word.encode())[0].decode()
            own = write_shard(folder.path, word, tensors, rank=ranks.rank, size=ranks.size)
            parts = [Shard.from_json(note) for note in ranks.meet(Point.SAVING, note=own.to_json())]
            if ranks.is_first:
                write_index(folder.path, body, parts)
            ranks.meet(Point.SAVING)

        return write

    def check_ranks(self, ranks: Ranks | None) -> None:
        """Refuse a model that is sharded over other processes than those that train.

        Raises:
            UnsupportedModel: naming both.
        """
        here = distributed.get_process_group_ranks(self.sharded.mesh.get_group())
        trained = [distributed.get_rank()] if ranks is None else distributed.get_process_group_ranks(ranks.group)
        if here != trained:
            raise UnsupportedModel(
                f"The model is sharded over the processes {here}, and those that train are {trained}. Shard it over "
                "all processes of the run, in their order: fully_shard(module, mesh=init_device_mesh(device, "
                "(world_size,)))."
            )

    def gradients(self) -> GradientViews:
        """Return the gradients of the parameters, as parts of tensors on the mesh, in the memory of a noisy sum."""
        local = Layout(names=self.layout.names, shapes=self.scatter.shapes, groups=self.layout.groups)
        return ShardedGradients(layout=local, parameters=self.parameters)


def check_shardable(plan: Plan, launch: Launch) -> None:
    """Refuse plans whose sums cannot be shared out by rows, and launches that would record collective operations.

    Raises:
        PlanError: naming the piece, and the reason.
    """
    if not plan.mask.is_whole:
        raise PlanError(
            f"{type(plan.mask).__name__} chooses coordinates of the whole model, and draws noise for those alone; a "
            "rank of a sharded model holds some rows of each parameter. Train sharded models without a mask, or the "
            "model unsharded."
        )
    if not plan.noise.is_by_coordinate:
        raise PlanError(
            f"{type(plan.noise).__name__} draws its noise for the whole sum or in its units, and a rank of a sharded "
            "model holds some rows of each parameter. Use pv.noise.Gaussian() or correlated noise, whose draws belong "
            "to single coordinates, or train the model unsharded."
        )
    if plan.release is Release.LAST_ITERATE:
        raise PlanError(
            "Release.LAST_ITERATE follows one chain of whole weights, and a rank of a sharded model holds some rows of "
            "each parameter. Use Release.EVERY_ITERATE, or train the model unsharded."
        )
    if launch.must_replay:
        raise PlanError(
            f"{type(launch).__name__} records physical batches, in which a sharded model gathers parameters from other "
            "ranks. Use pv.launch.Eager() for a sharded model."
        )


@dataclass(kw_only=True, eq=False)
class ShardedGradients(GradientViews):
    """The gradients of sharded parameters in the memory of this rank's noisy sum; they are made anew every time."""

    parameters: Sequence[nn.Parameter]

    def of(self, flat: Tensor) -> Sequence[Tensor]:
        with torch._C.DisableTorchFunction():
            parts = PartViews(layout=self.layout).of(flat)
            return [from_part(value, part) for value, part in zip(self.parameters, parts, strict=True)]
