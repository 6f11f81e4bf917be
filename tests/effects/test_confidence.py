from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.effects.confidence import calibration_report, reliability
from privet.effects.reliability import Binning, CalibrationReport, Reliability, ReliabilityBin
from privet.errors import ArgumentError, DataError
from privet.training.predictions import Predictions


def random_predictions(seed: int, size: int = 500, classes: int = 5, scale: float = 2.0) -> Predictions:
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(size, classes)) * scale
    labels = np.where(generator.random(size) < 0.6, logits.argmax(1), generator.integers(classes, size=size))
    return Predictions.from_logits(logits, labels)


def with_confidences(confidences: list[float], right: list[bool]) -> Predictions:
    """Two-class predictions of given confidence, right or wrong."""
    top = np.array(confidences)
    logits = np.log(np.stack([top, 1 - top], 1))
    return Predictions.from_logits(logits, np.where(right, 0, 1))


def test_errors_of_a_small_example_are_those_computed_by_hand() -> None:
    found = reliability(with_confidences([0.6, 0.62, 0.95, 0.91], [True, False, True, True]), num_bins=10)
    # Bins (0.6, 0.7], (0.5, 0.6] and (0.9, 1]; 0.6 itself lies in (0.5, 0.6].
    assert found.expected_error == pytest.approx(0.25 * 0.4 + 0.25 * 0.62 + 0.5 * 0.07)
    assert found.largest_error == pytest.approx(0.62)
    assert found.over_confidence == pytest.approx(0.25 * 0.62)
    assert found.under_confidence == pytest.approx(0.25 * 0.4 + 0.5 * 0.07)


@pytest.mark.parametrize("num_bins", [10, 15])
def test_errors_equal_those_of_torchmetrics(num_bins: int) -> None:
    metrics = pytest.importorskip("torchmetrics.functional.classification")
    for seed in range(5):
        predictions = random_predictions(seed)
        probabilities = torch.from_numpy(np.exp(predictions.log_probabilities))
        labels = torch.from_numpy(predictions.labels)
        found = reliability(predictions, num_bins=num_bins)
        for norm, ours in (("l1", found.expected_error), ("max", found.largest_error)):
            theirs = metrics.multiclass_calibration_error(probabilities, labels, 5, n_bins=num_bins, norm=norm)
            assert ours == pytest.approx(float(theirs), abs=1e-6)


@given(
    seed=st.integers(0, 1000), num_bins=st.integers(1, 40), binning=st.sampled_from(Binning), scale=st.floats(0.01, 30)
)
@settings(max_examples=60)
def test_every_prediction_is_in_one_bin_and_the_errors_bound_each_other(
    seed: int, num_bins: int, binning: Binning, scale: float
) -> None:
    predictions = random_predictions(seed, size=80, scale=scale)
    found = reliability(predictions, num_bins=num_bins, binning=binning)
    assert found.num_examples == 80
    assert len(found.bins) == num_bins
    assert 0 <= found.expected_error <= found.largest_error + 1e-12 <= 1 + 1e-9
    assert found.over_confidence + found.under_confidence == pytest.approx(found.expected_error)
    gap = abs(predictions.confidences.mean() - predictions.is_right.mean())
    assert found.expected_error >= gap - 1e-9  # the triangle inequality; equal for a single bin
    for entry in found.bins:
        if entry.num_examples:
            assert entry.low - 1e-12 <= entry.confidence <= entry.high + 1e-9


def test_equal_mass_bins_hold_equally_many_predictions() -> None:
    found = reliability(random_predictions(0, size=600), num_bins=15, binning=Binning.EQUAL_MASS)
    assert {entry.num_examples for entry in found.bins} == {40}


def test_equal_confidences_are_never_separated() -> None:
    found = reliability(with_confidences([0.7] * 10, [True] * 7 + [False] * 3), num_bins=4, binning=Binning.EQUAL_MASS)
    assert found.expected_error == pytest.approx(0.0, abs=1e-12)


def test_a_calibrated_classifier_has_almost_no_error_and_a_sharpened_one_is_over_confident() -> None:
    generator = np.random.default_rng(1)
    logits = generator.normal(size=(40_000, 3)) * 1.5
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (probabilities.cumsum(1) < generator.random((40_000, 1))).sum(1)
    assert reliability(Predictions.from_logits(logits, labels)).expected_error < 0.01
    sharpened = reliability(Predictions.from_logits(3 * logits, labels))
    assert sharpened.over_confidence > 0.15
    assert sharpened.under_confidence < 0.005


def test_proper_scores_are_those_of_the_definition() -> None:
    predictions = with_confidences([0.8, 0.6], [True, False])
    report = calibration_report(predictions, num_resamples=2)
    assert report.negative_log_likelihood.value == pytest.approx(-(math.log(0.8) + math.log(0.4)) / 2)
    assert report.brier_score.value == pytest.approx((2 * 0.2**2 + 2 * 0.6**2) / 2)
    assert report.accuracy.value == 0.5


def test_intervals_hold_the_value_of_means_and_shrink_with_the_number_of_examples() -> None:
    few, many = (calibration_report(random_predictions(2, size=size)) for size in (200, 5000))
    for report in (few, many):
        for interval in (report.accuracy, report.brier_score, report.negative_log_likelihood):
            assert interval.low < interval.value < interval.high
    assert many.accuracy.high - many.accuracy.low < (few.accuracy.high - few.accuracy.low) / 3


def test_resampling_is_repeatable() -> None:
    predictions = random_predictions(3)
    assert calibration_report(predictions) == calibration_report(predictions)
    assert calibration_report(predictions) != calibration_report(predictions, seed=1)


def test_a_temperature_changes_no_prediction_and_one_changes_nothing() -> None:
    predictions = random_predictions(4)
    hot = predictions.at_temperature(3.0)
    assert (hot.is_right == predictions.is_right).all()
    assert (hot.confidences <= predictions.confidences + 1e-12).all()
    np.testing.assert_allclose(predictions.at_temperature(1.0).log_probabilities, predictions.log_probabilities)


@pytest.mark.parametrize(
    ("logits", "labels"),
    [
        (np.zeros((3, 1)), np.zeros(3, int)),
        (np.zeros((3, 2)), np.zeros(2, int)),
        (np.zeros((0, 2)), np.zeros(0, int)),
        (np.zeros((3, 2)), np.array([0, 1, 2])),
        (np.zeros((3, 2)), np.array([0, -1, 1])),
        (np.zeros((3, 2)), np.array([0.0, 1.0, 1.0])),
        (np.array([[0, np.nan]]), np.array([0])),
        (np.array([[0, np.inf]]), np.array([0])),
    ],
    ids=["one-class", "lengths", "empty", "high-label", "low-label", "real-label", "nan", "infinite"],
)
def test_what_is_no_classification_is_refused(logits: np.ndarray, labels: np.ndarray) -> None:
    with pytest.raises(DataError):
        Predictions.from_logits(logits, labels)


def test_bins_and_temperatures_must_be_positive() -> None:
    with pytest.raises(ArgumentError):
        reliability(random_predictions(0), num_bins=0)
    with pytest.raises(ArgumentError):
        random_predictions(0).at_temperature(0.0)


def test_margins_are_log_odds_of_the_true_class() -> None:
    predictions = with_confidences([0.8, 0.6], [True, False])
    np.testing.assert_allclose(predictions.margins, [math.log(0.8 / 0.2), math.log(0.4 / 0.6)])


def test_a_report_survives_being_written_down() -> None:
    report = calibration_report(random_predictions(0))
    assert CalibrationReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report


@pytest.mark.parametrize(
    "change",
    [{"num_examples": 0}, {"accuracy": 1}, {"reliability": {}}, {"reliability": {"binning": "none", "bins": []}}],
    ids=["empty", "no-interval", "no-bins", "no-binning"],
)
def test_what_is_no_report_is_refused(change: dict[str, object]) -> None:
    whole = calibration_report(random_predictions(0), num_resamples=2).to_dict()
    with pytest.raises(ArgumentError):
        CalibrationReport.from_dict(whole | change)


def test_the_largest_error_says_how_many_predictions_it_rests_on() -> None:
    lonely = ReliabilityBin(low=0.2, high=0.3, num_examples=1, confidence=0.27, accuracy=0.0)
    crowded = ReliabilityBin(low=0.9, high=1.0, num_examples=500, confidence=0.95, accuracy=0.94)
    found = Reliability(bins=(lonely, crowded), binning=Binning.EQUAL_WIDTH)
    assert found.worst_bin_size == 1
    assert found.largest_error == pytest.approx(0.27)


def test_the_two_parts_of_the_error_have_intervals_and_files_without_them_are_read() -> None:
    report = calibration_report(random_predictions(0), num_resamples=20)
    assert report.over_confidence is not None
    assert report.under_confidence is not None
    whole = report.over_confidence.value + report.under_confidence.value
    assert whole == pytest.approx(report.expected_error.value)
    older = {key: value for key, value in report.to_dict().items() if not key.endswith("_confidence")}
    assert CalibrationReport.from_dict(older).over_confidence is None
