from __future__ import annotations

import json

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from numpy.typing import NDArray

from privet.attacks.membership import (
    MembershipScores,
    Shadows,
    likelihood_ratio,
    logistic_regression,
    loss_threshold,
    train_shadows,
)
from privet.attacks.membership_verdict import AttackLimit, MembershipReport, membership_report
from privet.errors import ArgumentError, DataError
from privet.training.predictions import Predictions
from privet.vocabulary import Adjacency


def predictions(size: int, *, lift: float, seed: int) -> Predictions:
    """Three-class predictions; ``lift`` is added to the true class's logit."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(3, size=size)
    logits = generator.normal(size=(size, 3)) + lift * np.eye(3)[labels]
    return Predictions.from_logits(logits, labels)


def gaussian_scores(mu: float, size: int = 20_000, seed: int = 0) -> MembershipScores:
    """The best attack on a Gaussian mechanism: unit normals, mu apart."""
    generator = np.random.default_rng(seed)
    return MembershipScores(
        attack="Gaussian", members=generator.normal(size=size) + mu, non_members=generator.normal(size=size)
    )


def limit(mu: float) -> AttackLimit:
    return AttackLimit(event=GaussianDpEvent(1 / mu), adjacency=Adjacency.ADD_REMOVE)


def test_models_that_fit_members_better_are_found_out_by_both_attacks() -> None:
    members, others = predictions(2000, lift=3.0, seed=0), predictions(2000, lift=1.0, seed=1)
    for attack in (loss_threshold, logistic_regression):
        assert membership_report(attack(members, others), None).area.low > 0.7


def test_without_a_difference_no_attack_beats_guessing() -> None:
    members, others = predictions(3000, lift=1.0, seed=0), predictions(3000, lift=1.0, seed=1)
    for attack in (loss_threshold, logistic_regression):
        area = membership_report(attack(members, others), None).area
        assert area.low < 0.5 < area.high


def test_the_regression_is_never_judged_on_records_it_was_fitted_to() -> None:
    # More features than records: a fit judged on its own records would look perfect.
    generator = np.random.default_rng(0)
    members, others = (
        Predictions.from_logits(generator.normal(size=(60, 100)), generator.integers(100, size=60)) for _ in range(2)
    )
    report = membership_report(logistic_regression(members, others, weight_decay=1e-6), None)
    assert report.area.low < 0.5 < report.area.high


def test_the_area_and_its_limit_are_those_of_the_gaussian_mechanism() -> None:
    from scipy.special import ndtr

    report = membership_report(gaussian_scores(1.0), limit(1.0))
    exact = float(ndtr(1 / np.sqrt(2)))
    assert report.area.low < exact < report.area.high
    assert report.area.high - report.area.low < 0.012
    assert exact <= report.area_limit < exact + 0.002


def test_the_best_attack_reaches_its_limit_and_does_not_exceed_it() -> None:
    report = membership_report(gaussian_scores(1.0), limit(1.0))
    for point in report.points:
        assert point.true_positives.low < point.limit < point.true_positives.high * 1.2
        assert not point.exceeds_limit
    assert [point.level for point in report.points] == [0.001, 0.01]


def test_an_attack_that_does_better_than_allowed_is_flagged() -> None:
    report = membership_report(gaussian_scores(2.0), limit(0.5))
    assert all(point.exceeds_limit for point in report.points)
    assert report.area.low > report.area_limit


def test_few_records_are_never_enough_to_flag_a_correct_mechanism() -> None:
    allowed = limit(1.0)
    flagged = sum(
        point.exceeds_limit
        for seed in range(20)
        for point in membership_report(gaussian_scores(1.0, size=150, seed=seed), allowed).points
    )
    assert flagged <= 1  # 40 looks, each wrong only if two ends of 2.5 % fail together


def test_without_a_guarantee_everything_is_allowed() -> None:
    report = membership_report(gaussian_scores(3.0), None)
    assert report.area_limit == 1.0
    assert not any(point.exceeds_limit for point in report.points)


def test_the_curve_runs_from_rare_alarms_to_all_and_never_falls() -> None:
    curve = np.array(membership_report(gaussian_scores(1.0, size=5000), None).roc)
    assert curve[0, 0] == pytest.approx(1 / 5000)
    assert tuple(curve[-1, :1]) == (1.0,)
    assert (np.diff(curve, axis=0) >= 0).all()
    assert len(curve) <= 300


def test_equal_scores_count_half() -> None:
    scores = MembershipScores(attack="none", members=np.zeros(50), non_members=np.zeros(70))
    report = membership_report(scores, None)
    assert report.area.value == 0.5
    assert report.points[1].true_positives.value == 0.0


def _shadow_world(num_records: int = 300, gain: float = 2.0) -> tuple[np.ndarray, object]:
    """Records of very different difficulty; a model that trained on one raises its log-odds by ``gain``."""
    generator = np.random.default_rng(5)
    difficulty = generator.normal(size=num_records) * 6

    def fit(rows: NDArray[np.int64]) -> Predictions:
        margins = difficulty + generator.normal(size=num_records)
        margins[rows] += gain
        return Predictions.from_logits(
            np.stack([margins, np.zeros(num_records)], 1), np.zeros(num_records, dtype=np.int64)
        )

    return difficulty, fit


def test_shadow_models_find_members_that_the_loss_alone_does_not() -> None:
    _, fit = _shadow_world()
    shadows = train_shadows(fit, num_records=300, num_models=16)
    inside = np.arange(300) < 150
    target = fit(np.flatnonzero(inside))
    ratio = membership_report(likelihood_ratio(target, inside, shadows), None)
    losses = membership_report(
        MembershipScores(attack="loss", members=-target.losses[inside], non_members=-target.losses[~inside]), None
    )
    assert ratio.area.value > 0.85
    assert losses.area.value < 0.7


def test_every_record_is_inside_half_of_the_shadow_models() -> None:
    _, fit = _shadow_world()
    shadows = train_shadows(fit, num_records=300, num_models=6)
    assert (shadows.was_member.sum(0) == 3).all()
    assert len(np.unique(shadows.was_member, axis=0)) == 6


def test_own_and_shared_variances_agree_when_all_records_vary_alike() -> None:
    _, fit = _shadow_world()
    shadows = train_shadows(fit, num_records=300, num_models=80)
    inside = np.arange(300) < 150
    target = fit(np.flatnonzero(inside))
    areas = [
        membership_report(likelihood_ratio(target, inside, shadows, shares_variance=shared), None).area.value
        for shared in (True, False)
    ]
    assert areas[0] == pytest.approx(areas[1], abs=0.03)


def test_what_cannot_be_attacked_is_refused() -> None:
    _, fit = _shadow_world()
    target = fit(np.arange(150))
    alone = Shadows(margins=np.zeros((4, 300)), was_member=np.ones((4, 300), dtype=bool))
    with pytest.raises(DataError, match="at least two shadow models"):
        likelihood_ratio(target, np.arange(300) < 150, alone)
    with pytest.raises(DataError, match="same records"):
        likelihood_ratio(target, np.arange(200) < 150, alone)
    with pytest.raises(ArgumentError, match="even"):
        train_shadows(fit, num_records=300, num_models=5)
    with pytest.raises(DataError, match="not numbers"):
        MembershipScores(attack="x", members=np.array([np.nan]), non_members=np.zeros(1))
    with pytest.raises(ArgumentError, match="num_folds"):
        logistic_regression(predictions(3, lift=1, seed=0), predictions(9, lift=1, seed=1))


def test_a_report_survives_being_written_down() -> None:
    report = membership_report(gaussian_scores(1.0, size=500), limit(1.0))
    assert MembershipReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report


@pytest.mark.parametrize("data", [None, {}, {"area": 3}, []], ids=["none", "empty", "number", "list"])
def test_what_is_no_report_is_refused(data: object) -> None:
    with pytest.raises(ArgumentError):
        MembershipReport.from_dict(data)
