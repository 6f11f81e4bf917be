"""Pieces that a user writes: nothing about them is guessed, and a member that is missing is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from dp_accounting import DpEvent, PoissonSampledDpEvent
from numpy.typing import NDArray

from privet.errors import PlanError
from privet.mechanism.clipping import Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import Poisson
from privet.plan import Plan
from privet.vocabulary import Adjacency, Unit


@dataclass(frozen=True, kw_only=True)
class Coins:
    """Poisson sampling by another name, written from the protocol alone."""

    share: float
    length: int

    num_rounds = property(lambda self: self.length)
    steps_per_round = property(lambda self: 1)
    steps_per_epoch = property(lambda self: round(1 / self.share))
    inclusion = property(lambda self: self.share)
    expected_batch_size = property(lambda self: 100 * self.share)
    batch_limit = property(lambda self: None)
    declared_size = property(lambda self: None)
    has_exact_size = property(lambda self: False)
    has_independent_coins = property(lambda self: True)
    independent_rate = property(lambda self: self.share)
    contribution = property(lambda self: None)
    fixed_batches = property(lambda self: None)
    same_batches_after_restart = property(lambda self: False)
    separation = property(lambda self: 1)
    assumptions = property(lambda self: ("coins are fair",))

    def described(self, num_steps: int) -> str:
        return "by coins"

    def refusal(self, adjacency: Adjacency) -> str | None:
        return None

    def round_batches(self, num_examples: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        return Poisson(rate=self.share, steps=1, expected_batch_size=1.0).round_batches(num_examples, rng)

    def amplify(self, event: DpEvent) -> DpEvent:
        return PoissonSampledDpEvent(self.share, event)


PLAN = Plan(
    sampling=Coins(share=0.01, length=300),
    clipping=Threshold(norm=1.0),
    noise=Gaussian(noise_multiplier=1.0),
    delta=1e-5,
    adjacency=Adjacency.ADD_REMOVE,
    unit=Unit.RECORD,
)
MEMBERS = [name for name in vars(Coins) if not name.startswith("_") and name not in ("share", "length")]


def test_a_look_alike_of_poisson_sampling_has_its_epochs_its_inclusion_and_its_price() -> None:
    poisson = replace(PLAN, sampling=Poisson(rate=0.01, steps=300, expected_batch_size=1.0))
    assert PLAN.sampling.steps_per_epoch == poisson.sampling.steps_per_epoch == 100
    assert PLAN.sampling.inclusion == poisson.sampling.inclusion == 0.01
    assert PLAN.guarantee().epsilon == poisson.guarantee().epsilon


@pytest.mark.parametrize("missing", MEMBERS)
def test_a_sampler_that_lacks_a_member_is_refused_by_name(missing: str) -> None:
    without: Any = type("Without", (), {name: value for name, value in vars(Coins).items() if name in MEMBERS})
    delattr(without, missing)
    with pytest.raises(PlanError, match=f"sampling must be a Sampling piece.* It lacks {missing}, and nothing"):
        replace(PLAN, sampling=without())


def test_something_that_is_no_piece_at_all_gets_no_list_of_members() -> None:
    with pytest.raises(PlanError, match=r"sampling must be a Sampling piece, got 3[.]$"):
        replace(PLAN, sampling=3)  # type: ignore[arg-type]


def test_a_piece_that_changes_what_it_inherits_does_not_inherit_what_was_proven_of_it() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Other(Gaussian):
        def add(self, clipped: Any, source: Any) -> Any:
            return super().add(clipped, source)

    @dataclass(frozen=True, kw_only=True)
    class Softer(Threshold):
        def factors(self, norms: Any, bounds: tuple[float, ...]) -> Any:
            return super().factors(norms, bounds) / 2

    assert (Gaussian().is_spherical, Gaussian().is_recordable, Threshold(norm=2.0).threshold) == (True, True, 2.0)
    assert (Other().is_spherical, Other().is_recordable, Softer(norm=2.0).threshold) == (False, False, None)
