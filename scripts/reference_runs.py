"""Record seeded runs of every sampling, clipping, noise, mask, grouping and engine, and compare two trees bit by bit.

    python -m scripts.reference_runs record runs/reference.json
    python -m scripts.reference_runs compare runs/reference.json

A run is identified by the digest of its released weights. Digests depend on the processor and on torch, so compare a
recording on the machine that made it: record before a refactoring, compare after it.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import itertools
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import click
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import privet as pv
from privet.federated.agreement import Agreement
from privet.federated.contributions import ClientUpdates, ClippedSums, Sessions
from privet.federated.coordinator import Coordinator
from privet.federated.loopback import run_in_process
from privet.federated.party import Party
from privet.mechanism import registry

SIZE, STEPS = 120, 6
COORDINATES = 2436  # of the network below
Plan = dict[str, Any]

BASE: Plan = {
    "sampling": {"kind": "poisson", "rate": 0.2, "steps": STEPS, "expected_batch_size": 24.0},
    "clipping": {"kind": "threshold", "norm": 0.7},
    "noise": {"kind": "gaussian", "noise_multiplier": 0.8},
    "delta": 1e-5,
    "adjacency": "zero_out",
    "unit": "record",
}
CYCLIC_POISSON = {"kind": "cyclic_poisson", "groups": 3, "rate": 0.6, "cycles": 2, "expected_batch_size": 24.0}
# Plans for each kind of each family, as changes of the base.
CHANGES: dict[str, dict[str, list[Plan]]] = {
    "sampling": {
        "poisson": [{}],
        "truncated_poisson": [
            {"sampling": {"kind": "truncated_poisson", "rate": 0.2, "steps": STEPS, "dataset_size": SIZE,
                          "max_batch_size": 40}},
            {"sampling": {"kind": "truncated_poisson", "rate": 0.2, "steps": STEPS, "dataset_size": SIZE,
                          "max_batch_size": 60, "truncation": "total_variation"}},
        ],
        "fixed_size": [{"sampling": {"kind": "fixed_size", "dataset_size": SIZE, "batch_size": 24, "steps": STEPS},
                        "adjacency": "replace_one"}],
        "full_batch": [{"sampling": {"kind": "full_batch", "steps": 3, "expected_batch_size": 120.0}}],
        "shuffle": [{"sampling": {"kind": "shuffle", "batches": 5, "epochs": 2, "expected_batch_size": 24.0}}],
        "cyclic": [
            {"sampling": {"kind": "cyclic", "batches": 5, "epochs": 2, "expected_batch_size": 24.0,
                          "secret_partition": is_secret}}
            for is_secret in (True, False)
        ],
        "cyclic_poisson": [{"sampling": CYCLIC_POISSON}],
        "balls_in_bins": [{"sampling": {"kind": "balls_in_bins", "batches": 5, "epochs": 2,
                                        "expected_batch_size": 24.0}}],
        "sampled_persons": [{"sampling": {"kind": "sampled_persons", "max_records": 3, "sampling": {
            "kind": "poisson", "rate": 0.2, "steps": STEPS, "expected_batch_size": 8.0}}, "unit": "person"}],
        "bounded_persons": [{"sampling": {"kind": "bounded_persons", "max_records": 2, "sampling": {
            "kind": "poisson", "rate": 0.2, "steps": STEPS, "expected_batch_size": 16.0}}, "unit": "person"}],
    },
    "clipping": {
        "threshold": [{"clipping": {"kind": "threshold", "norm": [0.3, 0.4, 0.5, 0.2]},
                       "grouping": {"kind": "per_layer"}}],
        "keep_or_drop": [{"clipping": {"kind": "keep_or_drop", "norm": 0.7, "cutoff": 1.5}}],
        "automatic": [{"clipping": {"kind": "automatic", "norm": 0.7}}],
        "per_sample_adaptive": [{"clipping": {"kind": "per_sample_adaptive", "norm": 0.7}}],
        "adaptive_quantile": [{"clipping": {"kind": "adaptive_quantile", "norm": 0.7, "count_noise_std": 2.0}}],
        "scheduled": [{"clipping": {"kind": "scheduled", "switches": [0.5], "parts": [
            {"kind": "threshold", "norm": 0.7}, {"kind": "automatic", "norm": 0.7}]}}],
        "unclipped": [{"clipping": {"kind": "unclipped"}}],
    },
    "noise": {
        "gaussian": [{"noise": {"kind": "gaussian", "noise_multiplier": 1.7}}],
        "none": [{"noise": {"kind": "none"}}],
        "elliptical_gaussian": [
            {"noise": {"kind": "elliptical_gaussian", "noise_multiplier": 0.8, "geometry": {
                "kind": "per_group", "group_units": [1.0, 2.0, 0.5, 1.5]}}, "grouping": {"kind": "per_layer"}},
        ],
        "groupwise_gaussian": [
            {"noise": {"kind": "groupwise_gaussian", "noise_multiplier": 0.8},
             "clipping": {"kind": "threshold", "norm": [0.3, 0.4, 0.5, 0.2]}, "grouping": {"kind": "per_layer"}},
        ],
        "l2_laplace": [{"noise": {"kind": "l2_laplace", "num_coordinates": COORDINATES, "noise_multiplier": 0.5}}],
        "product_laplace": [
            {"noise": {"kind": "product_laplace", "noise_multiplier": 0.5,
                       "sizes": [1.0 + place % 3 for place in range(COORDINATES)]}},
        ],
        "block_l2": [
            {"noise": {"kind": "block_l2", "noise_multiplier": 0.5, "coefficients": [0.6, 0.8],
                       "block_of": [place % 2 for place in range(COORDINATES)]}},
        ],
        "adaptive_gaussian": [
            {"noise": {"kind": "adaptive_gaussian", "noise_multiplier": 0.8, "learning": learning}}
            for learning in (
                {"kind": "past_gradients", "first": 2, "every": 2}, {"kind": "released_squares", "every": 2},
            )
        ],
        "banded_gaussian": [
            {"noise": {"kind": "banded_gaussian", "noise_multiplier": 0.8, "coefficients": [1.0, 0.5, 0.375]},
             "sampling": CYCLIC_POISSON},
        ],
        "banded_inverse_gaussian": [
            {"noise": {"kind": "banded_inverse_gaussian", "noise_multiplier": 0.8, "coefficients": [1.0, -0.5, -0.125],
                       "batches": 5, "epochs": 2},
             "sampling": {"kind": "cyclic", "batches": 5, "epochs": 2, "expected_batch_size": 24.0,
                          "secret_partition": True}},
        ],
    },
    "grouping": {
        "one_group": [{"grouping": {"kind": "one_group"}}],
        "per_layer": [{"grouping": {"kind": "per_layer"}}],
        "per_parameter": [{"grouping": {"kind": "per_parameter"}}],
        "by_name": [{"grouping": {"kind": "by_name", "parts": [["0", "1"], ["4", "6"]]}}],
    },
    "mask": {
        "none": [{"mask": {"kind": "none"}}],
        "random": [
            {"mask": {"kind": "random", "schedule": {"kind": "linear", "first": 0.2, "last": 0.7},
                      "granularity": {"kind": grain} | ({"num_rows": 2} if grain == "blocks" else {}),
                      "refresh_every": 2}}
            for grain in ("coordinates", "rows", "blocks")
        ],
        "shared_random": [{"mask": {"kind": "shared_random", "seed": 3, "refresh_every": 2,
                                    "schedule": {"kind": "gradual_cooling", "final": 0.8}}}],
        "ranked": [{"mask": {"kind": "ranked", "schedule": {"kind": "constant", "value": 0.5}, "refresh_every": 2}}],
        "frozen": [{"mask": {"kind": "frozen", "rate": 0.6}}],
        "chosen": [{"mask": {"kind": "chosen", "num_coordinates": COORDINATES,
                             "frozen_bits": base64.b64encode(b"\x5a" * (-(-COORDINATES // 8))).decode()}}],
    },
}  # fmt: skip
FAMILIES = {
    "sampling": registry.SAMPLERS, "clipping": registry.CLIPPINGS, "noise": registry.NOISES,
    "grouping": registry.GROUPINGS, "mask": registry.MASKS,
}  # fmt: skip


def network() -> nn.Sequential:
    """Return a small network of the common kinds of layers."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 16), nn.Tanh(), nn.Linear(16, 4)
    )


def records_for(plan: pv.Plan) -> Any:
    """Return the examples, each with its owner if the plan samples persons."""
    if plan.sampling.contribution is None:
        return records()
    return pv.PersonRecords(dataset=records(), persons=[number**2 % 37 for number in range(SIZE)])


def records() -> TensorDataset:
    """Return examples drawn from a fixed seed."""
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(
        torch.randn(SIZE, 1, 8, 8, generator=generator), torch.randint(0, 4, (SIZE,), generator=generator)
    )


def digest(tensors: Iterator[Tensor]) -> str:
    """Return the digest of the bits of some tensors."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def trained(plan: pv.Plan, *, engine: Any, walks: bool = False, adam: bool = False, **options: Any) -> str:
    """Train and return the digest of the weights."""
    model = network()
    optimizer: Any = (
        torch.optim.Adam(model.parameters(), lr=0.01)
        if adam
        else torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)
    )

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(model(inputs), labels, reduction="none")

    session = pv.privatize(
        model,
        optimizer,
        records_for(plan),
        plan,
        performance=pv.Performance(physical_batch_size=16, engine=engine),
        seed=11,
        **options,
    )
    with session:
        for step in session.steps():
            if walks:
                for batch in step.microbatches():
                    step.backward(losses(*batch))
            else:
                step.accumulate(losses)
            step.update()
    if options.get("averaging") is not None:
        session.adopt_average()
    return digest(itertools.chain(model.parameters(), model.buffers()))


def resumed(plan: pv.Plan) -> str:
    """Train in two sessions, the second of which resumes, and return the digest of the weights."""
    with tempfile.TemporaryDirectory() as folder:
        model = network()
        for stops in (3, None):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
            session = pv.privatize(
                model,
                optimizer,
                records(),
                plan,
                performance=pv.Performance(physical_batch_size=16),
                seed=11,
                folder=folder,
                checkpoint_every=1,
            )
            with session:
                for number, step in enumerate(session.steps(), 1):
                    step.accumulate(lambda x, y: functional.cross_entropy(model(x), y, reduction="none"))
                    step.update()
                    if number == stops:
                        break
        return digest(model.parameters())


def federated(contribution: Any, unit: str, mask: Plan) -> str:
    """Run a federation in one process and return the digest of the coordinator's weights."""
    plan = pv.Plan.from_dict(BASE | {"unit": unit, "mask": mask, "adjacency": "add_or_remove"})
    agreement = Agreement(plan=plan, contribution=contribution, learning_rate=0.3, max_records=100)
    data = records()
    with tempfile.TemporaryDirectory() as folder:
        model = network()
        parties = {}
        for number in range(3):
            own = copy.deepcopy(model)
            parties[number] = Party(
                agreement=agreement, model=own, dataset=torch.utils.data.Subset(data, range(number, SIZE, 3)),
                losses=_losses_of(own), folder=Path(folder) / str(number), physical_batch_size=16, seed=number,
            )  # fmt: skip
        with Coordinator(agreement=agreement, model=model, folder=Path(folder) / "c", seed=9) as coordinator:
            run_in_process(coordinator, parties)
        return digest(model.parameters())


def _losses_of(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda inputs, labels: functional.cross_entropy(model(inputs), labels, reduction="none")


def _runs() -> Iterator[tuple[str, Callable[[], str]]]:
    engines = {
        "bookkeeping": pv.engines.BookKeeping(),
        "functional": pv.engines.Functional(),
        "chunks": pv.engines.Functional(chunk_size=5),
    }
    base = pv.Plan.from_dict(BASE)
    for family, pieces in FAMILIES.items():
        if pieces.kinds.keys() != CHANGES[family].keys():
            raise click.ClickException(f"Every {family} has a reference run: {sorted(pieces.kinds)}.")
    for family, kinds in CHANGES.items():
        for kind, changes in kinds.items():
            for number, change in enumerate(changes):
                plan = pv.Plan.from_dict(BASE | change)
                for name, engine in engines.items():
                    yield (
                        f"{family} {kind} {number} {name}",
                        lambda plan=plan, engine=engine: trained(plan, engine=engine),
                    )
    product = pv.Plan.from_dict(
        BASE | {"sampling": {"kind": "full_batch", "steps": 3, "expected_batch_size": 120.0},
                "grouping": {"kind": "per_layer"}, "clipping": {"kind": "threshold", "norm": [0.3, 0.4, 0.5, 0.2]}}
    )  # fmt: skip
    for name, engine in engines.items():
        yield f"walk {name}", lambda engine=engine: trained(base, engine=engine, walks=True)
        yield f"adam {name}", lambda engine=engine: trained(base, engine=engine, adam=True)
        yield f"groups {name}", lambda engine=engine: trained(product, engine=engine)
    yield "averaging", lambda: trained(base, engine=pv.engines.BookKeeping(), averaging=pv.optim.ExponentialAverage())
    yield "telemetry", lambda: trained(base, engine=pv.engines.BookKeeping(), telemetry=lambda values: None)
    yield "resumed", lambda: resumed(base)
    shared = {"kind": "shared_random", "seed": 3, "schedule": {"kind": "constant", "value": 0.5}, "refresh_every": 2}
    for name, (contribution, unit) in {
        "sums": (ClippedSums(), "record"),
        "sessions": (Sessions(learning_rate=0.3, local_steps=2), "record"),
        "updates": (ClientUpdates(learning_rate=0.1, local_batch_size=8), "client"),
    }.items():
        yield f"federated {name}", lambda c=contribution, u=unit: federated(c, u, {"kind": "none"})
        yield f"federated {name} masked", lambda c=contribution, u=unit: federated(c, u, shared)
    yield "statistics", _statistics
    yield "normalisation", _normalisation
    yield "geometry", _geometry
    yield "last iterate", _last_iterate


def _statistics() -> str:
    from privet.convex.features import RandomRelu

    inputs, labels = records().tensors
    fit = pv.convex.SufficientStatistics(
        features=RandomRelu(size=20), num_classes=4, delta=1e-5, adjacency=pv.Adjacency.ADD_REMOVE,
        unit=pv.Unit.RECORD,
    ).calibrated(epsilon=2.0).fit(inputs, labels, seed=4)  # fmt: skip
    return digest(iter([fit.weights]))


def _normalisation() -> str:
    inputs, _ = records().tensors
    norm, _ = pv.PrivateNormalisation(bounds=(2.0,), dataset_size=SIZE, noise_multiplier=2.0).release(inputs, seed=4)
    return digest(iter([norm(inputs)]))


def _geometry() -> str:
    model = network()
    inputs, labels = records().tensors
    made, _ = pv.geometry.release_geometry(
        model, _cross_entropy, inputs, labels, norm=0.7, noise_multiplier=2.0, power=0.25, seed=4
    )
    return hashlib.sha256(repr(made).encode()).hexdigest()


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


def _last_iterate() -> str:
    inputs, labels = records().tensors
    convex = pv.ConvexReluClassifier(
        num_classes=4, epsilon=3.0, delta=1e-4, dataset_size=SIZE, epochs=3, batch_size=20,
        adjacency=pv.Adjacency.REPLACE_ONE, unit=pv.Unit.RECORD, seed=4,
    )  # fmt: skip
    convex.fit(inputs.flatten(1), labels)
    return digest(convex.model_.parameters())


@click.group()
def main() -> None:
    """Record reference runs, or compare with a recording."""


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
def record(file: Path) -> None:
    """Write the digests of all runs."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"machine": _machine(), "runs": _all()}, indent=1), encoding="utf-8")


@main.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True))
def compare(file: Path) -> None:
    """Run again and list every run whose bits differ."""
    recorded = json.loads(file.read_text(encoding="utf-8"))
    if recorded["machine"] != _machine():
        raise click.ClickException(f"{file} was recorded on {recorded['machine']}, this is {_machine()}.")
    found = _all()
    differing = [name for name, value in recorded["runs"].items() if found.get(name) != value]
    for name in differing:
        click.echo(f"differs: {name}")
    click.echo(f"{len(recorded['runs']) - len(differing)} of {len(recorded['runs'])} runs are the same, bit for bit")
    sys.exit(bool(differing))


def _all() -> dict[str, str]:
    torch.set_num_threads(1)
    found = {}
    for name, run in _runs():
        # An even clock, so that the choice of strategies does not depend on the load of the machine.
        with mock.patch.object(time, "process_time", itertools.count(0.0, 2.0**-13).__next__):
            found[name] = run()
        click.echo(f"{found[name][:12]}  {name}")
    return found


def _machine() -> str:
    return f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


if __name__ == "__main__":
    main()
