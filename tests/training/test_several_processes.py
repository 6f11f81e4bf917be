"""Processes that were started together and have not met, and a model that is spread over them, are refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch import distributed, nn

from privet.accounting.ledger import Ledger
from privet.convex.features import RandomFourier
from privet.convex.statistics import SufficientStatistics
from privet.errors import LedgerError, UnsupportedModel
from privet.federated.agreement import Agreement
from privet.federated.contributions import ClippedSums
from privet.federated.coordinator import Coordinator
from privet.federated.party import Party
from privet.gradients.engines.support import check_model
from privet.training.classifier import PrivateClassifier
from privet.training.private_statistics.normalisation import PrivateNormalisation
from privet.training.private_statistics.private_geometry import release_geometry
from privet.training.start import privatize
from privet.vocabulary import Adjacency, Unit
from tests.training.tools import examples, losses_of, network, plain_sgd, poisson

Way = Callable[[Path], object]


def own_loop(folder: Path, *, model: nn.Module | None = None) -> object:
    model = network() if model is None else model
    return privatize(model, plain_sgd(model), examples(), poisson(), folder=folder)


def own_loop_in_memory(folder: Path) -> object:
    model = network()
    return privatize(model, plain_sgd(model), examples(), poisson())


def estimator(folder: Path) -> object:
    settings = {"epsilon": 8.0, "delta": 1e-3, "dataset_size": 8, "epochs": 1, "batch_size": 4}
    return PrivateClassifier(
        network(), **settings, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD, folder=folder
    ).fit(*examples().tensors)  # type: ignore[arg-type]


def statistics(folder: Path) -> object:
    release = SufficientStatistics(
        features=RandomFourier(size=4), num_classes=2, delta=1e-3, adjacency=Adjacency.ADD_REMOVE,
        unit=Unit.RECORD, noise_multiplier=1.0,
    )  # fmt: skip
    return release.fit(*examples().tensors)


def normalisation(folder: Path) -> object:
    return PrivateNormalisation(bounds=(1.0,) * 3, dataset_size=8, noise_multiplier=1.0).release(examples().tensors[0])


def geometry(folder: Path) -> object:
    inputs, labels = examples().tensors
    model = network()
    losses = nn.CrossEntropyLoss(reduction="none")
    return release_geometry(model, losses, inputs, labels, norm=1.0, noise_multiplier=1.0, power=0.25)


def agreement() -> Agreement:
    return Agreement(plan=poisson(), contribution=ClippedSums(), learning_rate=0.1, max_records=8)


def coordinator(folder: Path) -> object:
    return Coordinator(agreement=agreement(), model=network(), folder=folder).__enter__()


def party(folder: Path) -> object:
    model = network()
    one = Party(agreement=agreement(), model=model, dataset=examples(), losses=losses_of(model), folder=folder)
    return one._sum(0)


WAYS: dict[str, Way] = {
    "own loop": own_loop,
    "own loop in memory": own_loop_in_memory,
    "estimator": estimator,
    "sufficient statistics": statistics,
    "private normalisation": normalisation,
    "released geometry": geometry,
    "coordinator": coordinator,
    "party": party,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_process_that_was_started_with_others_spends_nothing(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        LedgerError, match=r"one process, and the environment variable WORLD_SIZE is '2'.*init_process_group"
    ):
        WAYS[way](tmp_path / "run")
    assert not list(tmp_path.glob("run/*"))


@pytest.mark.parametrize("value", ["1", "0", "", " 1 "])
def test_a_process_that_was_started_alone_trains(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", value)
    own_loop(tmp_path)


def test_a_run_that_began_alone_is_not_resumed_by_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger.create(path, plan={}, plan_hash="0" * 64).close()
    before = path.read_bytes()
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(LedgerError, match="WORLD_SIZE is '8'"):
        Ledger.open(path, plan_hash="0" * 64)
    assert path.read_bytes() == before
    monkeypatch.delenv("WORLD_SIZE")
    Ledger.open(path, plan_hash="0" * 64).close()


GROUP = """
import sys
import torch
from torch import distributed, nn
from privet.errors import LedgerError, LoopError
from tests.training.tools import examples, network, plain_sgd, poisson, run, walk
from tests.training.test_several_processes import statistics
from privet.training.start import privatize

rank, store = int(sys.argv[1]), sys.argv[2]
model = network()
session = privatize(model, plain_sgd(model), examples(), poisson())
distributed.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
try:
    with session:
        run(session, model)
except LedgerError as error:
    print("late:", error)
try:
    statistics(None)
except LedgerError as error:
    print("early:", error)
model = network()
try:
    with privatize(model, plain_sgd(model), examples(), poisson()) as session:
        for step in session.steps():
            distributed.destroy_process_group()
            walk(step, model)
            step.update()
except LoopError as error:
    print("gone:", error)
model = network()
with privatize(model, plain_sgd(model), examples(), poisson()) as session:
    print("alone:", run(session, model))
"""


def test_a_group_that_is_formed_or_given_up_during_a_run_stops_it(tmp_path: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", GROUP, str(rank), str(tmp_path / "store")],
            cwd=Path(__file__).resolve().parents[2],
            env={"PYTHONPATH": "src:.", "OMP_NUM_THREADS": "1", "PATH": "", "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    for process in started:
        told = process.communicate(timeout=120)[0]
        assert process.returncode == 0, told
        for word in ("late:", "early:"):
            assert f"{word} This ledger speaks for one process, and torch.distributed is initialised with 2" in told
        assert "gone: The process group changed during the run" in told
        assert "alone: 4" in told


# ----------------------------------------------------------------------------------------------- models that are spread


@pytest.fixture
def group_of_one(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'one'}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def sharded() -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = network()
    mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
    return fully_shard(model, mesh=mesh)  # type: ignore[return-value]


SPREAD: dict[str, Callable[[], nn.Module]] = {
    "DataParallel": lambda: nn.DataParallel(network()),
    "DistributedDataParallel": lambda: nn.parallel.DistributedDataParallel(network()),
    "inside another": lambda: nn.Sequential(nn.parallel.DistributedDataParallel(network())),
}


@pytest.mark.parametrize("kind", SPREAD)
@pytest.mark.usefixtures("group_of_one")
def test_a_model_that_is_spread_over_processes_or_devices_is_refused(kind: str, tmp_path: Path) -> None:
    model = SPREAD[kind]()
    with pytest.raises(UnsupportedModel, match=r"spread over several processes or devices.*Pass the plain module"):
        own_loop(tmp_path / "run", model=model)
    with pytest.raises(UnsupportedModel, match="spread over several processes"):
        Coordinator(agreement=agreement(), model=model, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("group_of_one")
def test_a_sharded_model_is_refused_in_a_federation(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="spread over several processes"):
        Coordinator(agreement=agreement(), model=sharded(), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("group_of_one")
def test_a_group_of_one_process_trains_a_plain_model(tmp_path: Path) -> None:
    own_loop(tmp_path)


def test_a_checkpointed_layer_is_not_taken_for_a_spread_one() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    check_model(nn.Sequential(checkpoint_wrapper(nn.Linear(3, 2)), nn.Linear(2, 2)))
