"""Workers read what the training process would have read, when it is paid for, and know nothing else of the run."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

import privet as pv
from privet.errors import ArgumentError, DataError, LoopError
from privet.plan import Plan
from privet.training import loading
from privet.training.folder import RunFolder
from privet.training.loading import Workers, open_loader
from privet.training.performance import Performance
from privet.training.randomness import KeystreamNoise, Streams
from privet.training.reading import reader_of
from privet.training.start import privatize
from tests.training import worker_data
from tests.training.tools import CPU, examples, flat, full_batch, losses_of, network, plain_sgd, poisson, run, shuffle
from tests.training.worker_data import Dying, Failing, Files, Looking, Random, Searching, Unwelcome, as_pair

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let workers find these files, and see that none is left behind."""
    monkeypatch.syspath_prepend(str(ROOT))
    multiprocessing.set_forkserver_preload(["privet.training.reading"])  # starts them in a tenth of the time
    # torch looks after its workers every five seconds
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.25,))
    yield
    assert multiprocessing.active_children() == []


def with_workers(workers: int = 1, size: int = 3, prefetch: int = 2) -> Performance:
    return Performance(workers=workers, physical_batch_size=size, prefetch=prefetch)


def trained(dataset: Any, plan: Plan, performance: Performance, **more: Any) -> Tensor:
    model = network()
    with privatize(model, plain_sgd(model), dataset, plan, performance=performance, seed=1, **more) as session:
        assert run(session, model) == plan.num_steps
    assert session.ledger.charged_rounds == plan.num_rounds
    return flat(model)


@pytest.mark.parametrize("plan", [poisson(6), full_batch(3), shuffle(3)], ids=["poisson", "full", "shuffle"])
@pytest.mark.parametrize("keeps_a_folder", [False, True], ids=["in memory", "in a folder"])
def test_a_run_with_workers_is_the_run_without(plan: Plan, keeps_a_folder: bool, tmp_path: Path) -> None:
    folder = {"folder": tmp_path / "run"} if keeps_a_folder else {}
    expected = trained(examples(), plan, Performance(physical_batch_size=3))
    assert torch.equal(expected, trained(Files(), plan, with_workers(2), **folder))


def test_global_random_numbers_go_on_as_if_there_were_no_workers() -> None:
    states = []
    for performance in (Performance(physical_batch_size=3), with_workers()):
        torch.manual_seed(3)
        trained(Files(), full_batch(2), performance)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_seeded_workers_draw_the_same_augmentations_again() -> None:
    found = []
    for seed in (3, 3, 4):
        model = network()
        torch.manual_seed(seed)
        with privatize(model, plain_sgd(model), Random(), full_batch(2), performance=with_workers(), seed=1) as session:
            run(session, model)
        found.append(flat(model))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_batches_of_any_class_come_through() -> None:
    model = network()

    def losses(batch: worker_data.Pair) -> Tensor:
        return losses_of(model)(batch.inputs, batch.rest["labels"])

    with privatize(
        model, plain_sgd(model), Files(), full_batch(2), collate_fn=as_pair, performance=with_workers(), seed=1
    ) as session:
        for step in session.steps():
            step.accumulate(losses)
            step.update()
    assert torch.equal(flat(model), trained(examples(), full_batch(2), Performance(physical_batch_size=3)))


@pytest.mark.parametrize("reserve_ahead", [1, 10])
def test_no_example_is_read_before_the_row_of_its_round_is_on_disk(reserve_ahead: int, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", reserve_ahead=reserve_ahead)
    notes, model, plan = tmp_path / "notes", network(), poisson(8)
    dataset = Looking(tmp_path / "run" / "ledger.jsonl", notes)
    performance = with_workers(2, size=2)
    with privatize(model, plain_sgd(model), dataset, plan, folder=folder, performance=performance, seed=1) as session:
        run(session, model)
    rounds = _rounds_of_each_example(plan, seed=1)
    seen: dict[int, list[int]] = {}
    for line in notes.read_text().splitlines():
        process, index, charged = map(int, line.split())
        assert process != os.getpid()
        seen.setdefault(index, []).append(charged)
    assert {index: len(charged) for index, charged in seen.items()} == {
        index: len(numbers) for index, numbers in rounds.items()
    }
    for index, numbers in rounds.items():
        assert all(charged > number for charged, number in zip(sorted(seen[index]), numbers, strict=True))


def _rounds_of_each_example(plan: Plan, *, seed: int) -> dict[int, list[int]]:
    stream, found = Streams.new(CPU, seed=seed).sampling, dict[int, list[int]]()
    for number in range(plan.num_rounds):
        for batch in plan.sampling.round_batches(8, stream):
            for index in batch:
                found.setdefault(int(index), []).append(number)
    return found


def test_with_workers_one_round_more_is_charged_while_the_run_goes_on_and_given_back_when_it_is_broken_off() -> None:
    model = network()
    with privatize(model, plain_sgd(model), Files(), poisson(6), performance=with_workers(), seed=1) as session:
        assert run(session, model, at_most=2) == 2
        assert session.ledger.charged_rounds == 3
        assert run(session, model, at_most=1) == 1, "what was read ahead is used by the next walk"
    assert session.ledger.charged_rounds == 3
    assert session.ledger.available == 0
    other, performance = network(), Performance(physical_batch_size=3)
    with privatize(other, plain_sgd(other), examples(), poisson(6), performance=performance, seed=1) as session:
        run(session, other, at_most=3)
    assert torch.equal(flat(model), flat(other))


def test_the_batches_of_the_next_charged_step_are_read_ahead() -> None:
    loader = open_loader(Files(), None, CPU, with_workers(1, prefetch=4))
    assert isinstance(loader, Workers)
    try:
        first, second = np.arange(3), np.arange(3, 8)
        loader.read_also(lambda: [second])
        loader.begin(first, 3)
        loader.fetch(first)
        assert [part.tolist() for part in loader._in_flight if part is not None] == [[3, 4, 5], [6, 7]]
        loader.read_also(list)
        loader.begin(second, 3)
        assert sum(part is not None for part in loader._in_flight) == 2, "they are not asked for again"
        assert torch.equal(loader.fetch(second[:3])[0], worker_data.tensors()[0][3:6])
        with pytest.raises(LoopError, match="other examples"):
            loader.fetch(first)
    finally:
        loader.close()


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_step_that_lacks_memory_starts_over_with_the_same_examples(at: int) -> None:
    model, calls = network(), 0

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 8 + at:  # past the pre-flight
            raise torch.OutOfMemoryError("full")
        return losses_of(model)(inputs, labels)

    weights = []
    for dataset, performance in ((examples(), Performance(physical_batch_size=4)), (Files(), with_workers(1, 4, 4))):
        model, calls = network(), 0
        with privatize(model, plain_sgd(model), dataset, poisson(4), performance=performance, seed=1) as session:
            for step in session.steps():
                step.accumulate(losses)
                step.update()
        assert session.physical_batch_size == 2
        weights.append(flat(model))
    assert torch.equal(*weights)


def test_an_error_of_the_data_set_comes_with_its_class_and_leaves_the_step_charged() -> None:
    model = network()
    before = flat(model)
    session = privatize(model, plain_sgd(model), Failing(), full_batch(2), performance=with_workers())
    with pytest.raises(OSError, match="unreadable"), session:
        run(session, model)
    assert session.ledger.charged_rounds == 1
    assert torch.equal(flat(model), before)


def test_a_worker_that_dies_ends_the_step_charged_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    fuse = tmp_path / "fuse"
    fuse.touch()
    charged = []
    for _ in range(2):
        model = network()
        session = privatize(
            model, plain_sgd(model), Dying(fuse), full_batch(4), folder=tmp_path / "run", performance=with_workers()
        )
        if fuse.exists():
            with pytest.raises(DataError, match=r"died \(signal 9\)") as raised, session:
                run(session, model)
            assert isinstance(raised.value.__cause__, RuntimeError | ConnectionError | EOFError), "torch notices first"
            fuse.unlink()
        else:
            with session:
                assert run(session, model) == 3, "the round of the step that failed stays charged"
        charged.append(session.ledger.charged_rounds)
    assert charged == [1, 4]


@pytest.mark.parametrize("kind", ["in a function", "refuses"])
def test_a_data_set_that_cannot_be_sent_is_refused_before_anything_is_charged(kind: str, tmp_path: Path) -> None:
    class Local(Files):
        pass

    dataset = Local() if kind == "in a function" else Unwelcome()
    model, folder = network(), tmp_path / "run"
    session = privatize(model, plain_sgd(model), dataset, full_batch(), folder=folder, performance=with_workers())
    with pytest.raises(DataError, match="__main__"), session:
        pass
    assert session.ledger.charged_rounds == 0
    with privatize(
        model, plain_sgd(model), Files(), full_batch(), folder=folder, performance=with_workers()
    ) as session:
        assert run(session, model) == 3


def test_workers_that_died_before_anyone_looked_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(DataLoader[Any]):
        def __iter__(self) -> Any:
            started: Any = super().__iter__()
            for process in started._workers:
                process.join()
            multiprocessing.active_children()  # forgets the dead
            return started

    monkeypatch.setattr(loading, "DataLoader", Slow)
    model = network()
    session = privatize(model, plain_sgd(model), Unwelcome(), full_batch(), performance=with_workers())
    with pytest.raises(DataError, match="__main__"), session:
        pass
    assert session.ledger.charged_rounds == 0


def test_a_connection_that_a_dying_worker_breaks_is_told_as_its_death() -> None:
    workers = Workers(reader_of(Files(), None), CPU, with_workers())

    class Broken:
        def __next__(self) -> Any:
            Timer(0.1, workers._processes[0].kill).start()
            raise ConnectionResetError

    try:
        batches, workers._batches = workers._batches, Broken()
        with pytest.raises(DataError, match=r"died \(signal 9\)"):
            workers.fetch(np.array([0]))
    finally:
        workers._batches = batches
        workers.close()


def test_a_batch_that_cannot_be_looked_into_is_refused_in_the_worker() -> None:
    model = network()
    session = privatize(
        model, plain_sgd(model), Files(), full_batch(), performance=with_workers(),
        collate=worker_data.as_nothing_known,
    )  # fmt: skip
    with pytest.raises(DataError, match="holds set, which cannot be looked into"), session:
        run(session, model)


@pytest.mark.parametrize(
    "make",
    [examples, lambda: examples().tensors[0], lambda: pv.datasets.ArrayDataset(
        features=examples().tensors[0], labels=examples().tensors[1])],
    ids=["TensorDataset", "tensor", "own class"],
)  # fmt: skip
def test_data_in_memory_needs_no_worker(make: Callable[[], Any]) -> None:
    loader = open_loader(make(), None, CPU, with_workers(2))
    assert not isinstance(loader, Workers)
    assert multiprocessing.active_children() == []


def test_a_worker_holds_neither_keys_nor_the_ledger(tmp_path: Path) -> None:
    """Whatever a data set does in a worker, it cannot find there what would undo the noise."""
    model, dataset = network(), Searching(tmp_path)
    session = privatize(
        model, plain_sgd(model), dataset, full_batch(2), folder=tmp_path / "run", performance=with_workers()
    )
    with session:
        run(session, model, at_most=1)
        streams = session._run.streams
        assert isinstance(streams.noise, KeystreamNoise)
        keys = {
            "noise": bytes(streams.noise._key.key),
            "sampling": _words(streams.sampling),
            "masks": _words(streams.masks),
        }
        found_here = {name for piece in worker_data.writable_memory() for name, key in keys.items() if key in piece}
        run(session, model)
    assert int((tmp_path / "pid").read_text()) != os.getpid()
    there = (tmp_path / "memory").read_bytes()
    assert len(there) > 1 << 20
    assert found_here == set(keys), "the search finds keys where they are"
    assert [name for name, key in keys.items() if key in there] == []
    held = (tmp_path / "secrets").read_text().split()
    assert set(held) <= {"Generator", "SeedSequence"}, "torch and numpy have generators of their own"
    assert not {"Streams", "Ledger", "Session"} & set(held)
    assert {"Streams", "Ledger", "Session"} <= set(worker_data.secrets_in_memory())
    assert str(tmp_path / "run") not in (tmp_path / "descriptors").read_text()


def _words(stream: np.random.Generator) -> bytes:
    """Return the increment of a stream, which its key alone decides and no draw changes, as it lies in memory."""
    state: Any = stream.bit_generator.state["state"]
    return int(state["inc"]).to_bytes(16, "little")


def test_streams_do_not_leave_their_process() -> None:
    with pytest.raises(LoopError, match="another process"):
        ForkingPickler.dumps(Streams.new(CPU))


def test_a_data_loader_is_still_refused_and_says_where_its_settings_go() -> None:
    model = network()
    loader = torch.utils.data.DataLoader(examples())
    with pytest.raises(DataError, match=r"Performance\(workers="):
        privatize(model, plain_sgd(model), loader, full_batch())  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"workers": -1}, {"workers": 1.5}, {"prefetch": 0}, {"pin_memory": 1}])
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        Performance(**wrong)


def test_workers_of_a_list_of_pairs_read_by_whole_physical_batches() -> None:
    inputs, labels = worker_data.tensors()
    loader = open_loader(list(zip(inputs, labels, strict=True)), None, CPU, with_workers(1))
    try:
        loader.begin(np.arange(8), 5)
        found = [loader.fetch(part) for part in (np.arange(5), np.arange(5, 8))]
    finally:
        loader.close()
    assert torch.equal(torch.cat([batch[0] for batch in found]), inputs)
    assert isinstance(found[0], list)


@pytest.mark.gpu
@pytest.mark.parametrize("pin_memory", [True, False])
def test_what_workers_read_gets_to_a_gpu_beside_the_computation(pin_memory: bool) -> None:
    device = torch.device("cuda")
    performance = Performance(workers=1, physical_batch_size=100, prefetch=4, pin_memory=pin_memory)
    dataset, places = Files(1_000), np.arange(1_000)
    loader = open_loader(dataset, as_pair, device, performance)
    matrix = torch.randn(4_096, 4_096, device=device)
    try:
        for _ in range(3):
            loader.begin(places, 100)
            sums = []
            for part in np.split(places, 10):
                batch = loader.fetch(part)
                assert batch.inputs.device.type == batch.rest["labels"].device.type == "cuda"
                for _ in range(5):
                    matrix = matrix @ matrix / 4_096  # the device is busy while the next batch comes
                sums.append(batch.inputs.double().sum(0).clone())
                del batch
            expected = worker_data.tensors(1_000)[0].double().view(10, 100, 3).sum(1)
            assert torch.allclose(torch.stack(sums).cpu(), expected)
    finally:
        loader.close()
    weights = []
    for data, chosen in ((examples(), Performance(physical_batch_size=3)), (Files(), with_workers())):
        model = network().to(device)
        with privatize(model, plain_sgd(model), data, full_batch(3), performance=chosen, seed=1) as session:
            run(session, model)
        weights.append(flat(model))
    assert torch.equal(*weights)
