"""The way into private training: check the arguments, and return a session."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn
from torch.optim import Optimizer

from privet import checks
from privet.errors import ArgumentError
from privet.gradients.engines.engine import Engine
from privet.isolation.watch import Waiver
from privet.plan import Plan
from privet.training.averaging import ExponentialAverage
from privet.training.batching import Collate, MapDataset, check_dataset
from privet.training.distributed.ranks import Point, Ranks, ranks_of
from privet.training.distributed.sharding import ranks_for
from privet.training.distributed.shared_run import SharedRun
from privet.training.folder import RunFolder
from privet.training.launch.replay import Launch
from privet.training.performance import Performance, chosen_performance
from privet.training.prepared import PreparedRun
from privet.training.session import Session
from privet.training.telemetry import Receiver
from privet.training.tracking.progress import Progress
from privet.training.units import check_unit

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


def privatize(
    model: nn.Module,
    optimizer: Optimizer,
    dataset: MapDataset,
    plan: Plan,
    *,
    performance: Performance | None = None,
    folder: str | Path | RunFolder | None = None,
    checkpoint_every: int | None = None,
    collate: Collate | None = None,
    collate_fn: Collate | None = None,
    telemetry: Receiver | None = None,
    progress: Progress | None = None,
    averaging: ExponentialAverage | None = None,
    waive: Sequence[Waiver] = (),
    seed: int | None = None,
    group: ProcessGroup | DeviceMesh | Ranks | None = None,
    engine: Engine | None = None,
    launch: Launch | None = None,
    physical_batch_size: int | None = None,
) -> Session:
    """Prepare a model for private training; use the result in a ``with`` block.

    The model is not wrapped and keeps its class, keys and hooks. Performance, folder and telemetry are conveniences:
    none of them can change the guarantee.

    Args:
        model: Any module whose examples do not interact.
        optimizer: Any first-order torch optimizer over exactly the model's trainable parameters.
        dataset: A map-style data set; one item is one unit of privacy: one record, or what the data set states, for
            instance :class:`~privet.training.units.OneItemPerPerson`; or one record of a person who may have many:
            :class:`~privet.training.persons.PersonRecords`. Its length changes no constant of the plan.
        plan: The accounted plan.
        performance: How a step is computed: engine, launch, physical batch size, workers that read the data.
        folder: Where to keep the ledger and checkpoints; a folder that has them is resumed. None keeps the ledger in
            memory and writes nothing.
        checkpoint_every: Steps between checkpoints, when there is a folder; a tenth of the run, at most 100, by
            default. Steps after the last checkpoint are lost to a crash, and paid for.
        collate: Turns a list of items into a batch; torch's default otherwise.
        collate_fn: The same, by the name that torch's ``DataLoader`` has for it.
        telemetry: Receives exact losses, clipped shares and batch sizes. They are not private.
        progress: Receives the public values of each step: a bar or a tracker of :mod:`privet.tracking`.
        averaging: Keeps a moving average of the weights beside them, for ``session.averaged()``.
        waive: Checks that you answer for where they cannot be held; they stand in the guarantee.
        seed: Makes the run repeatable and NOT PRIVATE; for tests and benchmarks on public data.
        group: The processes that train together, in a group or a mesh of one dimension over all of them; torch's
            default process group if there is one. Every process calls this with the same arguments.
        engine: Deprecated; ``performance=Performance(engine=...)``.
        launch: Deprecated; ``performance=Performance(launch=...)``.
        physical_batch_size: Deprecated; ``performance=Performance(physical_batch_size=...)``.

    Raises:
        UnsupportedModel, PlanError, DataError: before any data is read, saying what to change.
    """
    former = {"engine": engine, "launch": launch, "physical_batch_size": physical_batch_size}
    if telemetry is not None and not callable(telemetry):
        raise ArgumentError(
            f"telemetry must be a function that takes the figures of each step, got {telemetry!r}. For instance "
            "telemetry=print; what it receives is not private."
        )
    if collate is not None and collate_fn is not None:
        raise ArgumentError("privatize() got collate= and collate_fn=, which are two names of one argument. Give one.")
    chosen = chosen_performance("privatize", performance, former, stacklevel=3)
    ranks = ranks_for(model, ranks_of(group), chosen)
    run: PreparedRun | None = None
    try:
        with nullcontext() if ranks is None else ranks.together(Point.PREPARING):
            run = PreparedRun(
                model=model,
                optimizer=optimizer,
                dataset=check_unit(check_dataset(dataset), plan),
                plan=plan,
                performance=chosen,
                folder=_run_folder(folder, checkpoint_every, plan),
                collate=collate or collate_fn,
                telemetry=telemetry,
                progress=progress,
                averaging=averaging,
                waive=waive,
                seed=seed if seed is None else checks.count("seed", seed, minimum=0),
                shared=None if ranks is None else SharedRun(ranks, lets_go=ranks is not group),
            )
            run.join()
    except BaseException:
        if run is not None:  # another rank was refused
            run.ledger.abandon()
        raise
    return Session(run)


def _run_folder(folder: str | Path | RunFolder | None, checkpoint_every: int | None, plan: Plan) -> RunFolder | None:
    if folder is None or isinstance(folder, RunFolder):
        return folder
    every = min(100, max(1, plan.num_steps // 10)) if checkpoint_every is None else checkpoint_every
    return RunFolder(Path(folder), every=checks.count("checkpoint_every", every))
