"""Runs with truncated, fixed-size and cyclic batches: what is drawn is what is charged, step by step."""

from __future__ import annotations

import pytest

from privet.errors import DataError
from privet.mechanism.epoch_sampling import Cyclic
from privet.mechanism.sampling import FixedSize, Sampling
from privet.mechanism.truncated import TruncatedPoisson, Truncation
from privet.training.start import privatize
from privet.vocabulary import Adjacency
from tests.training.tools import Counting, Watched, examples, network, plain_sgd, plan_of, run

PIECES: dict[str, tuple[Sampling, Adjacency]] = {
    "truncated": (
        TruncatedPoisson(rate=0.5, steps=6, dataset_size=10, max_batch_size=3),
        Adjacency.ADD_REMOVE,
    ),
    "truncated, by total variation": (
        TruncatedPoisson(rate=0.01, steps=6, dataset_size=10, max_batch_size=5, truncation=Truncation.TOTAL_VARIATION),
        Adjacency.ADD_REMOVE,
    ),
    "fixed size": (FixedSize(dataset_size=8, batch_size=3, steps=6), Adjacency.REPLACE_ONE),
    "cyclic": (Cyclic(batches=3, epochs=2, expected_batch_size=3), Adjacency.REPLACE_ONE),
    "cyclic, secret": (
        Cyclic(batches=3, epochs=2, expected_batch_size=3, secret_partition=True),
        Adjacency.ZERO_OUT,
    ),
}


@pytest.mark.parametrize("name", PIECES)
def test_a_run_is_charged_as_planned(name: str) -> None:
    sampling, adjacency = PIECES[name]
    plan = plan_of(sampling, adjacency=adjacency)
    model = network()
    optimizer = plain_sgd(model)
    counting = Counting(optimizer)
    with privatize(model, optimizer, examples(), plan) as session:
        run(session, model)
    assert counting.steps == plan.num_steps == 6
    assert session.ledger.charged == [(plan.round_event, plan.num_rounds)]
    assert session.guarantee().epsilon == plan.guarantee().epsilon < float("inf")


@pytest.mark.parametrize("secret", [False, True])
def test_every_epoch_of_a_cyclic_run_walks_through_the_same_batches(secret: bool) -> None:
    sampling = Cyclic(batches=3, epochs=3, expected_batch_size=3, secret_partition=secret)
    model, data = network(), Watched(examples())
    with privatize(model, plain_sgd(model), data, plan_of(sampling, adjacency=Adjacency.ZERO_OUT)) as session:
        run(session, model)
    first, *others = (data.asked[8 * epoch : 8 * epoch + 8] for epoch in range(3))
    assert sorted(first) == list(range(8))
    assert others == [first, first]


def test_no_truncated_step_reads_more_than_fits() -> None:
    sampling = TruncatedPoisson(rate=0.9, steps=20, dataset_size=10, max_batch_size=3)
    model, data = network(), Watched(examples())
    with privatize(model, plain_sgd(model), data, plan_of(sampling)) as session:
        for step in session.steps():
            before = len(data.asked)
            for inputs, labels in step.microbatches():
                step.backward((model(inputs) ** 2).sum(1) + 0.0 * labels)
            step.update()
            assert len(data.asked) - before <= 3


def test_more_data_than_declared_slots_stop_the_run_before_a_single_example_is_read() -> None:
    sampling = TruncatedPoisson(rate=0.5, steps=6, dataset_size=7, max_batch_size=3)
    model, data = network(), Watched(examples())
    with (
        pytest.raises(DataError, match="slots"),
        privatize(model, plain_sgd(model), data, plan_of(sampling)) as session,
    ):
        run(session, model)
    assert not data.asked
