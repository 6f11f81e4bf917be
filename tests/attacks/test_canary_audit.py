"""The canary audit on the real session: correct pieces pass, broken ones are found, and alarms are rare."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from privet.attacks.audit_claim import AuditFinding, Claim
from privet.attacks.canary_audit import CanaryAudit, Coins, sharpened
from privet.errors import ArgumentError, DataError, PlanError
from privet.mechanism.ablations import NoNoise
from privet.mechanism.changing_clipping import AdaptiveQuantile
from privet.mechanism.clipping import Automatic, Clipping, KeepOrDrop, Threshold
from privet.mechanism.correlated_noise import BandedGaussian, BandedGaussianRun, BandedInverseGaussian
from privet.mechanism.cyclic_poisson import CyclicPoisson
from privet.mechanism.epoch_sampling import Cyclic, Shuffle
from privet.mechanism.geometry import PerGroup
from privet.mechanism.grouping import PerLayer
from privet.mechanism.layout import Layout
from privet.mechanism.mask_rates import Constant
from privet.mechanism.masking import RandomMask
from privet.mechanism.noise import Gaussian, NoiseRun
from privet.mechanism.sampling import FixedSize, FullBatch, Poisson, Sampling
from privet.mechanism.shaped_noise import EllipticalGaussian
from privet.mechanism.sums import ClippedSum, NormalSource, PrivateSum
from privet.plan import Plan
from privet.vocabulary import Adjacency, Unit
from tests.mechanism.test_user_pieces import Coins as LookAlike

SIZE = 64


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """A source that gives only a part of the noise it is asked for."""

    inner: NormalSource
    part: float

    def add_normal(self, flat: Tensor, std: float) -> None:
        self.inner.add_normal(flat, std * self.part)


@dataclass(frozen=True, kw_only=True)
class ShortNoise(Gaussian):
    """Broken: adds less than it says."""

    part: float = 0.9

    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        return super().add(clipped, Scaled(inner=source, part=self.part))


@dataclass(frozen=True, kw_only=True)
class LooseThreshold(Threshold):
    """Broken: clips at twice the bound that it states."""

    def factors(self, norms: Tensor, bounds: tuple[float, ...]) -> Tensor:
        return super().factors(norms / 2, bounds)


FULL = FullBatch(steps=10, expected_batch_size=100.0)


def plan_of(
    *,
    sampling: Sampling = FULL,
    clipping: Clipping | None = None,
    noise: Gaussian | EllipticalGaussian | None = None,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
) -> Plan:
    return Plan(
        sampling=sampling,
        clipping=clipping or Threshold(norm=0.7),
        noise=noise or Gaussian(noise_multiplier=0.5),
        delta=1e-5,
        adjacency=adjacency,
        unit=Unit.RECORD,
    )


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(SIZE, 40), nn.Tanh(), nn.Linear(40, 10))


def losses_of(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda inputs, labels: functional.cross_entropy(model(inputs), labels, reduction="none")


def made_up(num: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(num, SIZE, generator=generator), torch.randint(0, 10, (num,), generator=generator)


def audited(plan: Plan, **settings: object) -> AuditFinding:
    audit = replace(CanaryAudit(), **settings)  # type: ignore[arg-type]
    model = network()
    return audit.run(model, plan, losses=losses_of(model), record=made_up(audit.num_canaries))


def test_a_look_alike_of_poisson_sampling_is_audited_as_poisson_sampling() -> None:
    poisson = plan_of(sampling=Poisson(rate=0.2, steps=10, expected_batch_size=20.0))
    # enough canaries for a positive bound: with fewer both bounds are 0, and a wrong inclusion would not show
    plans = (poisson, plan_of(sampling=LookAlike(share=0.2, length=10)))
    found = [audited(plan, num_canaries=1000, num_rounds=3) for plan in plans]
    assert found[0] == found[1]
    assert found[0].epsilon_bound > 0


def test_two_thousand_canaries_and_ten_steps_pass_correct_code_and_flag_a_tenth_of_noise_missing(
    record_property: Callable[[str, object], None],
) -> None:
    audited(plan_of(), num_canaries=20, num_rounds=1)  # what torch loads on first use is not the audit's time
    began = time.process_time()
    correct = audited(plan_of())
    took = time.process_time() - began
    short = audited(plan_of(noise=ShortNoise(noise_multiplier=0.5)))
    assert not correct.is_broken
    assert 0.9 * correct.epsilon_claim < correct.epsilon_bound < correct.epsilon_claim
    assert short.is_broken
    assert short.epsilon_bound > short.epsilon_claim == correct.epsilon_claim
    assert took <= 5
    record_property("epsilon claimed", round(correct.epsilon_claim, 2))
    record_property("lower bound, correct code", round(correct.epsilon_bound, 2))
    record_property("lower bound, noise x 0.9", round(short.epsilon_bound, 2))
    record_property("seconds", round(took, 1))
    assert correct.num_observations == 20_000


@pytest.mark.parametrize(
    "plan",
    [
        plan_of(noise=ShortNoise(noise_multiplier=0.5, part=0.5)),
        plan_of(noise=ShortNoise(noise_multiplier=0.5, part=1e-3)),
        plan_of(noise=ShortNoise(noise_multiplier=0.5, part=0.5), adjacency=Adjacency.REPLACE_ONE),
        plan_of(noise=ShortNoise(noise_multiplier=0.5), adjacency=Adjacency.ZERO_OUT),
        plan_of(
            noise=ShortNoise(noise_multiplier=0.5, part=0.5),
            sampling=Poisson(rate=0.2, steps=10, expected_batch_size=400.0),
        ),
    ],
    ids=[
        "half noise",
        "no noise",
        "half noise, replace",
        "noise x0.9, blank",
        "half noise, q=0.2",
    ],
)
def test_broken_pieces_are_found(plan: Plan) -> None:
    assert audited(plan).is_broken


def test_a_rule_that_clips_at_twice_its_bound_is_held_to_it_and_found_where_nothing_holds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of(clipping=LooseThreshold(norm=0.7))
    assert not audited(plan).is_broken
    monkeypatch.setattr(Plan, "holds_bounds", False)  # as for ablations
    assert audited(plan).is_broken


@pytest.mark.parametrize("coins", list(Coins), ids=lambda coins: coins.value)
@pytest.mark.parametrize(
    "plan",
    [
        plan_of(adjacency=Adjacency.REPLACE_ONE),
        plan_of(sampling=Poisson(rate=0.2, steps=10, expected_batch_size=400.0)),
        plan_of(sampling=Shuffle(batches=3, epochs=3, expected_batch_size=9.0), adjacency=Adjacency.ZERO_OUT),
        plan_of(clipping=Automatic(norm=0.7)),
        plan_of(clipping=KeepOrDrop(norm=0.7, cutoff=0.7)),
        replace(plan_of(), grouping=PerLayer()),
        replace(plan_of(), mask=RandomMask(schedule=Constant(value=0.5))),
        plan_of(noise=EllipticalGaussian(geometry=PerGroup(group_units=(3.0,)), noise_multiplier=0.5)),
    ],
    ids=["replace", "poisson", "shuffle", "automatic", "keep or drop", "per layer", "mask", "elliptical"],
)
def test_correct_pieces_of_every_kind_pass_and_leave_a_trace(plan: Plan, coins: Coins) -> None:
    found = audited(plan, num_canaries=1000, num_rounds=3, coins=coins)
    assert not found.is_broken
    assert 0 < found.epsilon_bound < found.epsilon_claim


def test_a_sampling_of_exactly_so_many_records_gets_them() -> None:
    sampling = FixedSize(dataset_size=900, batch_size=500, steps=1)
    found = audited(plan_of(sampling=sampling, adjacency=Adjacency.REPLACE_ONE), num_canaries=700)
    assert not found.is_broken
    assert found.epsilon_bound > 0


def test_the_claim_is_that_of_the_rounds_that_were_run() -> None:
    plan = plan_of(sampling=Poisson(rate=0.2, steps=50, expected_batch_size=9.0))
    found = audited(plan, num_canaries=100, num_rounds=7)
    same = replace(plan, sampling=Poisson(rate=0.2, steps=7, expected_batch_size=9.0))
    assert found.num_rounds == 7
    assert found.epsilon_claim == pytest.approx(same.guarantee().epsilon, rel=1e-12)


def test_a_clipping_bound_that_is_learned_on_the_way_is_followed() -> None:
    learned = AdaptiveQuantile(norm=0.7, count_noise_std=50.0)
    assert not audited(plan_of(clipping=learned), num_canaries=1000, num_rounds=4).is_broken


def test_an_audit_leaves_the_model_as_it_was_and_can_be_repeated() -> None:
    model = network()
    before = [value.detach().clone() for value in model.parameters()]
    audit = CanaryAudit(num_canaries=200, num_rounds=2, confidence=0.95)
    first, second = (audit.run(model, plan_of(), losses=losses_of(model), record=made_up(200)) for _ in range(2))
    assert first == second
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    assert all(value.grad is None for value in model.parameters())
    assert replace(audit, seed=1).run(model, plan_of(), losses=losses_of(model), record=made_up(200)) != first


def test_more_canaries_than_coordinates_are_cut_to_one_each() -> None:
    model = nn.Linear(SIZE, 1, bias=False)
    found = CanaryAudit(num_rounds=2).run(
        model, plan_of(), losses=lambda inputs, labels: model(inputs).squeeze(1), record=made_up(2000)
    )
    assert found.num_canaries == SIZE


def test_sharpening_keeps_the_broken_piece_and_finds_it_where_the_plan_itself_hides_it() -> None:
    plan = plan_of(
        noise=ShortNoise(noise_multiplier=6.0), sampling=Poisson(rate=0.01, steps=500, expected_batch_size=20.0)
    )
    assert not audited(plan).is_broken
    assert audited(sharpened(plan, num_rounds=10)).is_broken


def test_what_promises_nothing_or_does_not_fit_is_refused() -> None:
    with pytest.raises(PlanError, match="promises nothing"):
        audited(replace(plan_of(), noise=NoNoise()))
    with pytest.raises(PlanError, match="no noise_multiplier yet"):
        audited(plan_of(noise=Gaussian()))
    with pytest.raises(DataError, match="made-up examples"):
        CanaryAudit().run(network(), plan_of(), losses=losses_of(network()), record=made_up(10))
    with pytest.raises(ArgumentError, match="confidence"):
        CanaryAudit(confidence=1.0)
    with pytest.raises(PlanError, match="Audit fewer"):
        Claim(plan=plan_of(), num_rounds=11)


def test_the_inverse_of_a_claim_is_the_trade_off_function_from_below() -> None:
    for plan in (plan_of(), plan_of(sampling=Poisson(rate=0.3, steps=2, expected_batch_size=3.0))):
        claim = Claim(plan=plan, num_rounds=2)
        inverse = claim.inverse(0.8)
        rates = np.array([1e-6, 0.003, 0.05, 0.3, 0.77, 0.999])
        exact = claim.false_negatives(0.8, 1 - rates)
        found = np.array([inverse(float(rate)) for rate in rates])
        assert (found <= exact + 1e-15).all()
        assert found == pytest.approx(exact, rel=0.15)


def test_correct_code_alarms_no_more_often_than_the_confidence_allows() -> None:
    alarms = sum(
        audited(plan_of(), num_canaries=100, num_rounds=1, confidence=0.8, seed=seed).is_broken for seed in range(40)
    )
    # a rate of 20 percent gives more than 18 of 40 with a probability below 1e-4
    assert alarms <= 18


@pytest.mark.slow
def test_two_hundred_audits_of_correct_code_give_no_alarm(record_property: Callable[[str, object], None]) -> None:
    alarms = [seed for seed in range(200) if audited(plan_of(), seed=seed).is_broken]
    record_property("false alarms of 200 audits", len(alarms))
    assert alarms == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "sigma", "steps"),
    [(1.0, 0.5, 1), (1.0, 1.0, 10), (1.0, 2.0, 25), (0.05, 0.6, 40), (0.2, 1.0, 20)],
    ids=str,
)
def test_ten_thousand_canaries_never_exceed_the_claim_and_reach_four_fifths_of_it_without_sampling(
    rate: float, sigma: float, steps: int
) -> None:
    model = nn.Linear(SIZE, 160)
    plan = plan_of(
        sampling=Poisson(rate=rate, steps=steps, expected_batch_size=100.0), noise=Gaussian(noise_multiplier=sigma)
    )
    audit = CanaryAudit(num_canaries=10_000, num_rounds=steps, confidence=0.95)
    found = audit.run(model, plan, losses=losses_of(model), record=made_up(10_000))
    assert not found.is_broken
    assert found.epsilon_bound <= found.epsilon_claim
    if rate == 1:
        assert found.epsilon_bound >= 0.8 * found.epsilon_claim


# ------------------------------------------------------------------------------ noise that is correlated between steps


@dataclass(frozen=True, kw_only=True)
class ShortBands(BandedGaussian):
    """Broken: each draw is smaller than it says."""

    part: float = 0.7

    def start(self, layout: Layout, *, has_mask: bool) -> NoiseRun:
        return _ShortRun(noise=self, layout=layout)


class _ShortRun(BandedGaussianRun):
    def add(self, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        assert isinstance(self.noise, ShortBands)
        return super().add(clipped, Scaled(inner=source, part=self.noise.part))


def banded_plan(noise: type[BandedGaussian] = BandedGaussian, rate: float = 1.0) -> Plan:
    return plan_of(
        sampling=CyclicPoisson(groups=3, rate=rate, cycles=6, expected_batch_size=100.0),
        noise=noise(coefficients=(1.0, 0.95, 0.9), noise_multiplier=0.9),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_correct_bands_pass_with_canaries_in_their_own_groups(rate: float) -> None:
    found = audited(banded_plan(rate=rate), num_canaries=2000, num_rounds=6)
    assert not found.is_broken
    assert found.audit == "canaries per run"
    assert rate < 1 or found.epsilon_bound > 0.5 * found.epsilon_claim, "the attacker sees nearly all that is charged"


def test_bands_with_too_little_noise_are_found() -> None:
    assert audited(banded_plan(ShortBands), num_canaries=2000, num_rounds=6).is_broken


def test_the_canaries_of_fixed_batches_with_inverse_bands_pass() -> None:
    noise = BandedInverseGaussian.square_root(bands=3, batches=3, epochs=4).with_multiplier(0.8)
    sampling = Cyclic(batches=3, epochs=4, expected_batch_size=100.0)
    plan = plan_of(sampling=sampling, noise=noise, adjacency=Adjacency.ZERO_OUT)  # type: ignore[arg-type]
    found = audited(plan, num_canaries=2000, num_rounds=4)
    assert not found.is_broken
    assert found.epsilon_bound > 0.5 * found.epsilon_claim


def test_little_noise_keeps_the_sampling_that_bands_need() -> None:
    plan = banded_plan()
    assert sharpened(plan, num_rounds=3).sampling == plan.sampling
    assert sharpened(plan_of(), num_rounds=3).sampling == FullBatch(steps=3, expected_batch_size=100.0)
