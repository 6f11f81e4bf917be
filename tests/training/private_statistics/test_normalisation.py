"""A normalisation that is paid for: what one example can change, what is charged, and that features come out even."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from privet.accounting.ledger import Ledger
from privet.errors import ArgumentError, CalibrationError, DataError, PlanError
from privet.mechanism.ablations import NoNoise
from privet.mechanism.clipping import Threshold
from privet.mechanism.epoch_sampling import Cyclic
from privet.mechanism.events import compose
from privet.mechanism.noise import Gaussian
from privet.mechanism.persons import SampledPersons
from privet.mechanism.sampling import Poisson
from privet.mechanism.strong_convexity import StronglyConvexDescent
from privet.plan import Plan
from privet.training.fitting import fit_privately
from privet.training.performance import Performance
from privet.training.private_statistics.normalisation import PrivateNormalisation, _sums
from privet.vocabulary import Adjacency, Release, Unit

SCALES = torch.tensor([0.01, 1.0, 30.0])


def features(number: int = 400, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(number, 3, 4, 4, generator=generator) + 0.5) * SCALES.view(-1, 1, 1)


def normalisation(noise_multiplier: float = 1.0, dataset_size: int = 400) -> PrivateNormalisation:
    bounds = tuple((2 * SCALES).tolist())
    return PrivateNormalisation(bounds=bounds, dataset_size=dataset_size, noise_multiplier=noise_multiplier)


def plan() -> Plan:
    return Plan(
        sampling=Poisson(rate=0.1, steps=50, expected_batch_size=40),
        clipping=Threshold(norm=1.0),
        noise=Gaussian(),
        delta=1e-5,
        adjacency=Adjacency.ADD_REMOVE,
        unit=Unit.RECORD,
    )


@settings(deadline=None, max_examples=40)
@given(
    scale=st.sampled_from([1e-3, 1.0, 1e3, 1e30]),
    shift=st.floats(-1e6, 1e6),
    spoilt=st.sampled_from([None, math.inf, -math.inf, math.nan]),
    seed=st.integers(0, 1000),
)
def test_removing_one_example_moves_the_sums_at_most_the_sensitivity(
    scale: float, shift: float, spoilt: float | None, seed: int
) -> None:
    rows = features(5, seed) * scale + shift
    if spoilt is not None:
        rows[0, seed % 3, 0, 0] = spoilt
    bounds = torch.tensor(normalisation().bounds, dtype=torch.float64)
    moved = float((_sums(rows, bounds) - _sums(rows[1:], bounds)).norm())
    assert moved <= normalisation().sensitivity * (1 + 1e-12)


def test_the_sensitivity_is_reached_by_an_example_at_all_its_bounds() -> None:
    bounds = torch.tensor(normalisation().bounds)
    full = bounds.view(1, -1, 1, 1).expand(1, 3, 4, 4)
    assert float(_sums(full, bounds.double()).norm()) == pytest.approx(normalisation().sensitivity)


def test_a_release_is_charged_once_before_any_example_is_read() -> None:
    piece = normalisation(noise_multiplier=4.0)
    _, book = piece.release(features(), seed=0)
    assert book.charged == [(dp_event.GaussianDpEvent(4.0), 1)]
    assert book.available == 0

    class Unreadable(Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func is torch.split:
                raise RuntimeError("the data was read")
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]

    with pytest.raises(RuntimeError, match="was read"):
        piece.release(features().as_subclass(Unreadable), ledger=book)
    assert book.charged_rounds == 2, "what was reserved stays charged"


def test_the_noise_is_as_large_as_what_is_charged() -> None:
    piece, empty = normalisation(noise_multiplier=2.0, dataset_size=1), features(0)
    bounds = torch.tensor(piece.bounds)
    draws = torch.cat([piece.release(empty, seed=seed)[0].means / bounds for seed in range(400)])
    expected = piece.noise_multiplier * piece.sensitivity
    assert float(draws.std()) == pytest.approx(expected, rel=0.1), "1200 draws: five standard errors"


def test_channels_of_every_size_come_out_with_mean_zero_and_variance_one() -> None:
    rows = features(4000)
    found, _ = normalisation(noise_multiplier=1.0, dataset_size=4000).release(rows, seed=1)
    even = found(rows)
    assert float(even.mean((0, 2, 3)).abs().max()) < 0.05
    assert float((even.std((0, 2, 3)) - 1).abs().max()) < 0.1


def test_with_more_noise_than_signal_the_deviations_stay_positive_and_finite() -> None:
    found, _ = normalisation(noise_multiplier=1e6).release(features(), seed=2)
    assert bool((found.stds > 0).all())
    assert bool(found(features()).isfinite().all())


def test_flat_features_are_normalised_like_maps_of_one_place() -> None:
    rows = features()[:, :, 0, 0]
    flat, _ = normalisation().release(rows, seed=3)
    maps, _ = normalisation().release(rows[:, :, None, None], seed=3)
    assert torch.equal(flat(rows), maps(rows[:, :, None, None])[:, :, 0, 0])


def test_release_and_training_together_keep_the_epsilon_and_training_alone_keeps_less() -> None:
    piece = normalisation(noise_multiplier=8.0)
    found = piece.calibrated(plan(), epsilon=2.0)
    total = piece.guarantee(found)
    assert 1.98 < total.epsilon <= 2.0
    assert found.guarantee().epsilon < total.epsilon
    assert any("normalisation" in each for each in total.assumptions)
    assert found.noise.noise_multiplier > plan().calibrated(epsilon=2.0).noise.noise_multiplier  # type: ignore[attr-defined]


def test_a_release_that_spends_everything_leaves_no_plan() -> None:
    with pytest.raises(CalibrationError):
        normalisation(noise_multiplier=0.5).calibrated(plan(), epsilon=1.0)


def test_a_model_trained_behind_a_paid_normalisation_has_the_guarantee_of_both_ledgers() -> None:
    piece = normalisation(noise_multiplier=6.0)
    private = piece.calibrated(plan(), epsilon=3.0)
    rows = features()
    labels = (rows[:, 0].mean((1, 2)) > 0.005).long()
    front, book = piece.release(rows, seed=0)
    torch.manual_seed(0)
    model = nn.Sequential(front, nn.Flatten(), nn.Linear(48, 2))
    trained = fit_privately(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        torch.utils.data.TensorDataset(rows, labels),
        private,
        lambda outputs, targets: functional.cross_entropy(outputs, targets, reduction="none"),
        performance=Performance(physical_batch_size=100),
        seed=0,
    )
    assert trained.epsilon == private.guarantee().epsilon
    both = Ledger.in_memory("0" * 64)
    for event, count in [*book.charged, (private.round_event, private.num_rounds)]:
        both.reserve(event, count)
    assert both.event == compose([(private.event, 1), (piece.event, 1)])
    assert piece.guarantee(private).epsilon <= 3.0
    assert float((model(rows).argmax(1) == labels).float().mean()) > 0.8
    assert {"0.means", "0.stds"} <= set(model.state_dict())


def test_features_with_other_channels_are_refused_before_a_charge() -> None:
    book = Ledger.in_memory("0" * 64)
    with pytest.raises(DataError, match="3 channels"):
        normalisation().release(torch.zeros(5, 4, 2, 2), ledger=book)
    assert book.charged_rounds == 0


@pytest.mark.parametrize(
    "wrong", [{"bounds": ()}, {"bounds": (0.0,)}, {"dataset_size": 0}, {"noise_multiplier": 0.0}], ids=str
)
def test_constants_that_bound_or_hide_nothing_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ArgumentError):
        PrivateNormalisation(**({"bounds": (1.0,), "dataset_size": 10, "noise_multiplier": 1.0} | wrong))  # type: ignore[arg-type]


def test_a_plan_without_a_guarantee_is_refused() -> None:
    with pytest.raises(PlanError, match="No noise"):
        normalisation().calibrated(replace(plan(), noise=NoNoise()), epsilon=1.0)


def test_a_bound_on_the_last_iterate_is_not_added_to_a_release() -> None:
    hidden = Plan(
        sampling=Cyclic(batches=4, epochs=3, expected_batch_size=2),
        clipping=Threshold(norm=1.0),
        noise=Gaussian(noise_multiplier=1.0),
        delta=1e-5,
        adjacency=Adjacency.REPLACE_ONE,
        unit=Unit.RECORD,
        release=Release.LAST_ITERATE,
        descent=StronglyConvexDescent(learning_rate=0.5, ridge=1e-2, gradient_bound=1.0, smoothness=1.0),
    )
    for ask in (lambda: normalisation().guarantee(hidden), lambda: normalisation().calibrated(hidden, epsilon=1.0)):
        with pytest.raises(PlanError, match="EVERY_ITERATE"):
            ask()


def test_a_plan_for_persons_with_several_records_is_refused() -> None:
    persons = replace(plan(), sampling=SampledPersons(sampling=plan().sampling, max_records=3), unit=Unit.PERSON)
    for ask in (lambda: normalisation().guarantee(persons), lambda: normalisation().calibrated(persons, epsilon=1.0)):
        with pytest.raises(PlanError, match="several records"):
            ask()
