"""Random allocation to the batches of an epoch: once for every record, and no record moves another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from privet.errors import PlanError
from privet.mechanism.balls_in_bins import BallsInBins
from privet.mechanism.correlated_noise import BandedGaussian
from privet.mechanism.sampling import Poisson
from privet.training.start import privatize
from privet.vocabulary import Adjacency
from tests.contract import statistics as stats
from tests.training.tools import Watched, examples, network, plain_sgd, plan_of, poisson, run

PIECE = BallsInBins(batches=7, epochs=3, expected_batch_size=3.0)


def bins_of(size: int, seed: int) -> NDArray[np.int64]:
    found = np.full(size, -1)
    for place, batch in enumerate(PIECE.round_batches(size, np.random.default_rng(seed))):
        found[batch] = place
    return found


@pytest.mark.parametrize("size", [1, 8, 200])
def test_one_more_record_moves_no_other_one(size: int) -> None:
    for seed in range(5):
        assert np.array_equal(bins_of(size, seed), bins_of(size + 1, seed)[:-1])


def test_every_record_is_in_one_batch_and_batches_are_alike() -> None:
    found = bins_of(14_000, 1)
    assert found.min() == 0
    counts = np.bincount(found, minlength=7)
    assert stats.chi_square(float(((counts - 2000) ** 2 / 2000).sum()), 6) > stats.ALPHA


def test_a_run_uses_every_record_once_an_epoch_and_is_charged_by_epochs() -> None:
    model, data, plan = network(), Watched(examples()), plan_of(PIECE)
    with privatize(model, plain_sgd(model), data, plan) as session:
        assert run(session, model) == 21
    assert sorted(data.asked) == sorted(list(range(8)) * 3)
    assert session.ledger.charged == [(plan.round_event, 3)]
    assert session.guarantee().epsilon == plan.guarantee().epsilon
    assert plan.guarantee().epsilon < plan_of(replace(PIECE, batches=1)).guarantee().epsilon


def test_a_plan_is_calibrated_to_less_noise_than_coins_of_the_same_rate_need() -> None:
    found = [
        plan_of(sampling).calibrated(epsilon=3.0)
        for sampling in (
            BallsInBins(batches=20, epochs=2, expected_batch_size=1.0),
            Poisson(rate=0.05, steps=40, expected_batch_size=1.0),
        )
    ]
    bins, coins = (plan.noise.noise_multiplier for plan in found)
    assert 0.5 < (bins or 0.0) < (coins or 0.0)
    assert found[0].guarantee().epsilon == pytest.approx(3.0, rel=1e-3)
    assert found[0].guarantee().accountant == "PLD"


def test_batches_follow_from_a_declared_size() -> None:
    piece = BallsInBins.for_dataset(dataset_size=1000, batch_size=300, epochs=2)
    assert (piece.batches, piece.expected_batch_size, piece.num_rounds) == (4, 250.0, 2)


def test_an_exchange_and_correlated_noise_are_refused() -> None:
    with pytest.raises(PlanError, match="Poisson"):
        plan_of(PIECE, adjacency=Adjacency.REPLACE_ONE)
    with pytest.raises(PlanError, match="at least that far apart"):
        replace(poisson(), sampling=PIECE, noise=BandedGaussian.square_root(bands=2))
