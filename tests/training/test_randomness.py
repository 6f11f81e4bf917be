"""Random streams: secret and fresh by default, repeatable and stamped when seeded, never shared by processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Event, current_thread, main_thread

import numpy as np
import pytest
import torch
from torch import Tensor

from privet.errors import ArgumentError, LoopError, PrivetError
from privet.plan import Plan
from privet.training.randomness import HostNoise, KeystreamNoise, Streams
from privet.training.start import privatize
from tests.training.tools import (
    CPU,
    Watched,
    examples,
    flat,
    full_batch,
    network,
    plain_sgd,
    poisson,
    run,
    shuffle,
    walk,
)


def trained(plan: Plan, seed: int | None) -> tuple[Tensor, list[int]]:
    model, dataset = network(), Watched(examples())
    with privatize(model, plain_sgd(model), dataset, plan, seed=seed) as session:
        run(session, model)
    return flat(model), dataset.asked


def test_a_seed_repeats_a_run_bit_for_bit() -> None:
    (first, asked), (second, asked_again) = (trained(poisson(4), 7) for _ in range(2))
    assert torch.equal(first, second)
    assert asked == asked_again


def test_another_seed_gives_other_samples_and_other_noise() -> None:
    (first, asked), (second, asked_again) = (trained(poisson(4), seed) for seed in (7, 8))
    assert not torch.equal(first, second)
    assert asked != asked_again


def test_without_a_seed_two_runs_differ_in_samples_and_in_noise() -> None:
    (first, asked), (second, asked_again) = (trained(poisson(20), None) for _ in range(2))
    assert not torch.equal(first, second)
    assert asked != asked_again


def test_the_global_generators_of_torch_and_numpy_decide_nothing() -> None:
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        np.random.seed(3)
        found.append(trained(poisson(20), None))
    assert not torch.equal(found[0][0], found[1][0])
    assert found[0][1] != found[1][1]


def test_a_run_leaves_the_global_generator_of_torch_alone() -> None:
    model = network()
    with privatize(model, plain_sgd(model), examples(), poisson(4)) as session:
        before = torch.get_rng_state()
        run(session, model)
        assert torch.equal(torch.get_rng_state(), before)


def test_a_seeded_run_is_stamped_not_private() -> None:
    model = network()
    with privatize(model, plain_sgd(model), examples(), poisson(2), seed=0) as session:
        run(session, model)
    found = session.guarantee()
    assert str(found).startswith("NOT PRIVATE")
    assert "seeded by the user" in found.not_private_because[0]
    assert found.statement().startswith("No privacy is promised")


def test_an_unseeded_run_is_not_stamped() -> None:
    model = network()
    with privatize(model, plain_sgd(model), examples(), poisson(2)) as session:
        run(session, model)
    assert session.guarantee().not_private_because == ()


@pytest.mark.parametrize("seed", [-1, 1.5, True, "0"])
def test_a_seed_that_is_no_count_is_refused(seed: object) -> None:
    model = network()
    with pytest.raises(ArgumentError, match="seed"):
        privatize(model, plain_sgd(model), examples(), poisson(), seed=seed)  # type: ignore[arg-type]


def normals(streams: Streams, num: int) -> Tensor:
    draw = torch.zeros(num, dtype=torch.float64)
    streams.noise.add_normal(draw, 1.0)
    return draw


def test_the_noise_of_a_fresh_stream_is_standard_normal() -> None:
    # Bands of 6 standard errors: one false alarm in 5e8.
    num = 200_000
    draw = normals(Streams.new(CPU), num)
    assert abs(float(draw.mean())) < 6 / num**0.5
    assert abs(float(draw.square().mean()) - 1) < 6 * (2 / num) ** 0.5
    assert abs(float(draw.pow(4).mean()) - 3) < 6 * (96 / num) ** 0.5
    assert abs(float((draw[1:] * draw[:-1]).mean())) < 6 / num**0.5


def test_noise_is_never_drawn_twice() -> None:
    streams, other = Streams.new(CPU), Streams.new(CPU)
    first, second, foreign = normals(streams, 1000), normals(streams, 1000), normals(other, 1000)
    assert len(torch.cat([first, second, foreign]).unique()) == 3000


BLOCK = KeystreamNoise._BLOCK


@pytest.mark.parametrize("num", [1, 2, 3, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
def test_every_place_of_a_vector_of_any_length_gets_noise_of_its_own(num: int) -> None:
    # places that share a draw, or that a block leaves out, would show as values that come twice
    draw = normals(Streams.new(CPU, seed=3), num)
    assert len(draw.unique()) == num
    assert bool(draw.ne(0).all())
    for block in draw.split(BLOCK):
        assert abs(float(block.square().mean()) - 1) < 6 * (2 / len(block)) ** 0.5


class SoonThreaded(KeystreamNoise):
    _BLOCK, _MANY = 1 << 12, 1 << 14


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
def test_draws_do_not_depend_on_the_number_of_threads(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    key, num = bytes(range(48)), 50 * SoonThreaded._BLOCK + 3
    found = []
    for num_threads in (1, 2, 5):
        monkeypatch.setattr(torch, "get_num_threads", lambda num_threads=num_threads: num_threads)
        source, draws = SoonThreaded(key), torch.zeros(2, num, dtype=dtype)
        for draw in draws:
            source.add_normal(draw, 1.0)
        found.append(draws)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert len(found[0].double().flatten().unique()) > 0.95 * 2 * num  # single precision has some draws twice


def test_an_error_in_a_thread_that_helps_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Event()

    class Broken(SoonThreaded):
        def _fill(self, num_bytes: int, into: bytearray) -> None:
            if current_thread() is not main_thread():
                failed.set()
                raise RuntimeError("no noise was added")
            super()._fill(num_bytes, into)
            self._turn.release()  # the others get their turn before this thread has taken all of them
            failed.wait(10)
            self._turn.acquire()

    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.raises(RuntimeError, match="no noise"):
        Broken(bytes(48)).add_normal(torch.zeros(8 * Broken._BLOCK), 1.0)


def test_streams_of_one_seed_are_independent_of_each_other() -> None:
    """What is sampled says nothing about the noise: drawing from one stream leaves the others where they were."""
    drawn, untouched = Streams.new(CPU, seed=1), Streams.new(CPU, seed=1)
    drawn.sampling.random(100)
    drawn.masks.random(100)
    assert torch.equal(normals(drawn, 50), normals(untouched, 50))
    streams = Streams.new(CPU, seed=1)
    assert not np.array_equal(streams.sampling.random(10), streams.masks.random(10))


def in_a_fork(attempt: Callable[[], None]) -> str:
    """Run in a forked child; return the name of the error it met, or an empty word."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        told = "unknown error"
        try:
            attempt()
            told = ""
        except PrivetError:
            told = "refused"
        finally:
            os.write(write, told.encode())
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as answer:
        return answer.read()


@pytest.mark.parametrize("plan", [full_batch(2), shuffle()], ids=["full batch", "shuffle"])
def test_a_forked_child_cannot_update_with_its_parents_noise(plan: Plan) -> None:
    model = network()
    with privatize(model, plain_sgd(model), examples(), plan) as session:
        for step in session.steps():
            walk(step, model)
            assert in_a_fork(step.update) == "refused"
            step.update()
    assert session.ledger.charged_rounds == plan.num_rounds


def test_streams_refuse_to_be_used_by_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams.new(torch.device("cpu"), seed=None)
    streams.check_process()
    monkeypatch.setattr(os, "getpid", lambda: streams.process + 1)
    with pytest.raises(LoopError, match="another process"):
        streams.check_process()


def test_a_forked_child_that_asks_for_a_step_reads_no_data() -> None:
    model = network()
    dataset = Watched(examples())
    with privatize(model, plain_sgd(model), dataset, full_batch(4)) as session:
        run(session, model, at_most=1)

        def go_on() -> None:
            dataset.look = lambda: os._exit(1)
            run(session, model)

        assert in_a_fork(go_on) == "refused"
        assert run(session, model) == 3


def test_noise_moved_to_a_device_is_the_streams_own_and_goes_on_from_chunk_to_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HostNoise, "_CHUNK", 300)
    key = bytes(range(48))
    moved, alone = torch.full((700,), 2.0), torch.full((700,), 2.0)
    HostNoise(key).add_normal(moved, 1.5)
    source = KeystreamNoise(key)
    for start in (0, 300, 600):
        draws = torch.zeros(len(alone[start : start + 300]))
        source.add_normal(draws, 1.5)
        alone[start : start + 300] += draws
    assert torch.equal(moved, alone)


def test_a_device_without_double_precision_gets_its_noise_from_the_processor() -> None:
    assert isinstance(Streams.new(torch.device("mps"), seed=1).noise, HostNoise)
