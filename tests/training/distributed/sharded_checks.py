"""What the processes of the tests measure on sharded models: gathers, memory, refusals, and broken code."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from privet.gradients.engines.bookkeeping import RunningBookKeeping
from privet.gradients.engines.functional import Functional
from privet.mechanism.laplace import L2Laplace
from privet.mechanism.layout import Run, Share
from privet.mechanism.mask_rates import Constant
from privet.mechanism.masking import RandomMask
from privet.training.launch.replay import Compiled
from privet.training.performance import Performance
from privet.training.randomness import SharedNoise
from tests.training.distributed.sharded_cases import (
    CASES,
    Blocks,
    Case,
    a_mesh,
    a_plan,
    apart,
    built,
    by_block,
    started,
    steps,
    trained,
    weights,
)

PLAIN = Case()


def gathers(mesh: Any) -> list[dict[str, int]]:
    """Count how often each part of a model is gathered in each physical batch of a program that is known."""
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    case = Case(plan=a_plan(rate=0.5, steps=2), physical=5)
    model, counted = built(case, mesh), list[dict[str, int]]()
    now: dict[str, int] = {}
    unsharded: Any = FSDPParamGroup._to_unsharded  # type: ignore[attr-defined]
    add = RunningBookKeeping.add_scattered

    def gathered(group: Any) -> None:
        now[group._module_fqn] = now.get(group._module_fqn, 0) + 1
        unsharded(group)

    def added(engine: RunningBookKeeping, *args: Any) -> Tensor:
        found = add(engine, *args)
        counted.append(dict(now))
        now.clear()
        return found

    with (
        mock.patch.object(FSDPParamGroup, "_to_unsharded", gathered),
        mock.patch.object(RunningBookKeeping, "add_scattered", added),
        started(case, model) as session,
    ):
        steps(session, case, model)
    return counted


@contextmanager
def watched_memory(threshold: int) -> Iterator[Callable[[], int]]:
    """Note the most memory that large tensors take, looking whenever a sum is formed, parameters are gathered or moved.

    Small ones are activations and losses; the model's weights, gradients, sums and moments are large. Backward passes
    of experiments, which hold a copy of the weights and two of the sum, are looked at with and without shards.
    """
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    from privet.gradients.engines.clipper import Clipper
    from privet.training.updates import Updates

    most = 0

    def look() -> None:
        nonlocal most
        storages: dict[int, int] = {}
        for found in gc.get_objects():
            if issubclass(type(found), Tensor) and not hasattr(found, "_local_tensor"):
                with suppress(NotImplementedError, RuntimeError):  # tensors inside of transforms
                    storage = found.untyped_storage()
                    if storage.nbytes() >= threshold:
                        storages[storage._cdata] = storage.nbytes()
        most = max(most, sum(storages.values()))

    def looking(function: Callable[..., Any], *, before: bool = False) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if before:
                look()
            found = function(*args, **kwargs)
            look()
            return found

        return wrapped

    unsharded: Any = FSDPParamGroup._to_unsharded  # type: ignore[attr-defined]
    with (
        mock.patch.object(FSDPParamGroup, "_to_unsharded", looking(unsharded)),
        mock.patch.object(Clipper, "_add", looking(Clipper._add, before=True)),
        mock.patch.object(Clipper, "_add_part", looking(Clipper._add_part)),
        mock.patch.object(Updates, "add_noise", looking(Updates.add_noise)),
        mock.patch.object(torch.autograd, "grad", looking(torch.autograd.grad, before=True)),
        mock.patch.object(Tensor, "backward", looking(Tensor.backward, before=True)),
    ):
        yield lambda: most
        look()


def peak(mesh: Any = None, *, num: int = 12, width: int = 64) -> int:
    """Return the most memory of weights, gradients, sums and moments of equal blocks while they are trained."""
    case = Case(
        model=lambda: Blocks(num=num, width=width), optimizer=CASES["double"].optimizer, data=lambda: wide(width),
        plan=a_plan(rate=0.1, steps=2), physical=2,
    )  # fmt: skip
    import_module("torch.distributed.fsdp")
    import_module("torch._dynamo")
    gc.collect()
    gc.freeze()  # what is there already is not looked at
    try:
        model = built(case, mesh)
        with watched_memory(4 * width * width // 4) as most, started(case, model, seed=3) as session:
            steps(session, case, model)
    finally:
        gc.unfreeze()
    return most()


def wide(width: int) -> Any:
    from torch.utils.data import TensorDataset

    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(30, width, generator=generator), torch.randint(3, (30,), generator=generator))


# ---------------------------------------------------------------------------------------------------------- refusals


def refusals(mesh: Any) -> dict[str, str]:
    """Return the words with which runs are refused."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import Shard

    def half(model: Any, mesh: Any) -> None:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        by_block(model, mesh, mp_policy=policy)

    def columns(model: Any, mesh: Any) -> None:
        fully_shard(model.head, mesh=mesh, shard_placement_fn=lambda value: Shard(value.dim() - 1))
        fully_shard(model, mesh=mesh)

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(8, 3)])
            self.bias = nn.Parameter(torch.zeros(3))

        def forward(self, inputs: Tensor) -> Tensor:
            found = self.blocks[0](inputs)
            found[:, :1] = self.bias[:1]  # has no rule
            return found

    cases = {
        "half": Case(shard=half),
        "columns": Case(model=lambda: Blocks(width=8), shard=columns),
        "mask": Case(plan=a_plan(mask=RandomMask(schedule=Constant(value=0.5)))),
        "noise": Case(plan=a_plan(noise=L2Laplace(noise_multiplier=2.0, num_coordinates=9))),
        "no rule": Case(model=Odd),
    }
    found = {name: _refused(case, mesh) for name, case in cases.items()}
    found["engine"] = _refused(PLAIN, mesh, performance=Performance(engine=Functional()))
    sizes = Performance(physical_batch_size=3 + mesh.get_local_rank())
    found["unequal physical batches"] = _refused(PLAIN, mesh, performance=sizes)

    def by_rank(model: Any, mesh: Any) -> None:
        if not mesh.get_local_rank():
            by_block(model, mesh)

    found["one whole model"] = _refused(Case(shard=by_rank), mesh)
    found["launch"] = _refused(PLAIN, mesh, performance=Performance(launch=Compiled()))
    return found


def _refused(case: Case, mesh: Any, **options: Any) -> str:
    try:
        model = built(case, mesh)
        with started(case, model, **options) as session:
            steps(session, case, model)
    except Exception as error:  # noqa: BLE001 -- compared by the test
        return f"{type(error).__name__}: {error}"
    return "accepted"


# ----------------------------------------------------------------------------------------------------------- mutants


def counting_padding() -> Any:
    add = RunningBookKeeping.add_scattered
    mutant = lambda engine, losses, rule, into, num: add(engine, losses, rule, into, len(losses))  # noqa: E731
    return mock.patch.object(RunningBookKeeping, "add_scattered", mutant)


def noise_per_rank() -> Any:
    mutant = lambda noise, flat, std: noise.source.add_normal(flat, std)  # noqa: E731
    return mock.patch.object(SharedNoise, "add_normal", mutant)


def offset_wrong() -> Any:
    def shifted(noise: SharedNoise, flat: Tensor, std: float) -> None:
        runs = [Run(start=max(0, run.start - 1), stop=max(0, run.start - 1) + len(run), place=run.place)
                for run in noise.share.runs]  # fmt: skip
        noise.source.add_share(flat, std, Share(total=noise.share.total, runs=tuple(runs)))

    return mock.patch.object(SharedNoise, "add_normal", shifted)


def reducing_in_bfloat16() -> Any:
    from privet.gradients.sharding import scattering

    reduce: Any = scattering._reduce_scatter

    def mutant(received: Tensor, sent: Tensor, **options: Any) -> None:
        reduce(received, sent.bfloat16().to(sent.dtype), **options)

    return mock.patch.object(scattering, "_reduce_scatter", mutant)


MUTANTS: dict[str, Callable[[], Any]] = {
    each.__name__: each for each in (counting_padding, noise_per_rank, offset_wrong, reducing_in_bfloat16)
}


def mutants(mesh: Any) -> dict[str, float]:
    """Return how far from the weights of the code as it is each change of the code ends."""
    found, truth = {}, trained(PLAIN, mesh)
    for name, broken in MUTANTS.items():
        with broken():
            found[name] = apart(trained(PLAIN, mesh), truth)
    return found


def measured(rank: int, size: int) -> dict[str, Any]:
    mesh = a_mesh(size)
    return {"gathers": gathers(mesh), "refusals": refusals(mesh), "mutants": mutants(mesh)}


def peak_of_one(rank: int, size: int) -> int:
    return peak(a_mesh(size))


# -------------------------------------------------------------------------------------------------------- checkpoints

RESUMED = Case(plan=a_plan(steps=6), averaging=True, optimizer=CASES["double"].optimizer)


def parted(rank: int, size: int, folder: str) -> list[list[float]]:
    """Take one step of a run in a folder, sharded unless there is one rank; return what was held before and after."""
    model = built(RESUMED, a_mesh(size) if size > 1 else None)
    with started(RESUMED, model, folder=Path(folder), checkpoint_every=1) as session:
        found = [held_by(session, model)]
        steps(session, RESUMED, model, 1)
        found.append(held_by(session, model))
    return found


def held_by(session: Any, model: nn.Module) -> list[float]:
    """Return weights, averages and moments, whole."""
    found = weights(model)
    with session.averaged():
        found += weights(model)
    for value in model.parameters():
        moment = session.optimizer.state[value].get("exp_avg")
        if moment is not None:
            whole = moment.full_tensor() if hasattr(moment, "full_tensor") else moment
            found += whole.double().flatten().tolist()
    return found
