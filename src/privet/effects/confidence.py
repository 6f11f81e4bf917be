"""Calibration of a classifier's confidence: calibration errors, reliability, proper scores, temperature.

A prediction's confidence is the largest probability it gives. A classifier is calibrated if, of the predictions made
with confidence 0.8, eight in ten are right. The errors are those of Naeini et al. (2015) and Guo et al. (2017).

Not private: everything here is an exact function of the examples it is given. Measure on public or held-out data, and
fit a temperature on public data or pay for the data it is fitted on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privet import checks
from privet.effects.reliability import Binning, CalibrationReport, Interval, Reliability, ReliabilityBin
from privet.training.predictions import Predictions

Array = NDArray[np.float64]


def reliability(predictions: Predictions, *, num_bins: int = 15, binning: Binning = Binning.EQUAL_WIDTH) -> Reliability:
    """Sort predictions by confidence.

    Equal width cuts [0, 1] into equal parts, each with its upper end. Equal mass puts the same number of predictions
    into every bin, up to one and up to equal confidences, which are never separated.
    """
    count = checks.count("num_bins", num_bins)
    return _sorted_into_bins(predictions.confidences, predictions.is_right, count, binning)


def _sorted_into_bins(confidences: Array, right: NDArray[np.bool_], count: int, binning: Binning) -> Reliability:
    edges = np.linspace(0.0, 1.0, count + 1)
    if binning is Binning.EQUAL_MASS:
        edges[1:-1] = np.quantile(confidences, edges[1:-1], method="inverted_cdf")
    # A largest probability is never zero, so nothing lies at the open lower end; rounding may lift one above 1.
    places = np.minimum(np.searchsorted(edges[1:], confidences, side="left"), count - 1)
    sizes = np.bincount(places, minlength=count)
    shared = np.maximum(sizes, 1)
    means = np.bincount(places, weights=confidences, minlength=count) / shared
    shares = np.bincount(places, weights=right, minlength=count) / shared
    return Reliability(
        binning=binning,
        bins=tuple(
            ReliabilityBin(
                low=float(edges[index]),
                high=float(edges[index + 1]),
                num_examples=int(sizes[index]),
                confidence=float(means[index]),
                accuracy=float(shares[index]),
            )
            for index in range(count)
        ),
    )


def calibration_report(
    predictions: Predictions,
    *,
    num_bins: int = 15,
    binning: Binning = Binning.EQUAL_WIDTH,
    num_resamples: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
) -> CalibrationReport:
    """Measure calibration, with bootstrap intervals over the choice of test examples.

    Binned errors are biased upwards in small samples, and so are their resampled values: an interval may lie wholly
    above the value. It does not cover the spread between training runs.

    Args:
        predictions: What to measure.
        num_bins: Bins of the reliability diagram.
        binning: How they are cut.
        num_resamples: Bootstrap samples.
        confidence: Level of the intervals.
        seed: Of the resampling alone.
    """
    generator = np.random.default_rng(checks.count("seed", seed, minimum=0))
    tail = (1 - checks.probability("confidence", confidence)) / 2
    bins, size = checks.count("num_bins", num_bins), predictions.num_examples
    confidences, right = predictions.confidences, predictions.is_right
    squares, losses = predictions.squared_errors, predictions.losses

    def measured(rows: NDArray[np.int64] | slice) -> tuple[float, ...]:
        found = _sorted_into_bins(confidences[rows], right[rows], bins, binning)
        means = (float(right[rows].mean()), float(squares[rows].mean()), float(losses[rows].mean()))
        return (*means, found.expected_error, found.largest_error, found.over_confidence, found.under_confidence)

    resampled = [
        measured(generator.integers(size, size=size)) for _ in range(checks.count("num_resamples", num_resamples))
    ]
    lows, highs = np.quantile(np.array(resampled), [tail, 1 - tail], axis=0)
    accuracy, brier, likelihood, expected, largest, over, under = (
        Interval(value=value, low=float(low), high=float(high))
        for value, low, high in zip(measured(slice(None)), lows, highs, strict=True)
    )
    return CalibrationReport(
        num_examples=size,
        accuracy=accuracy,
        expected_error=expected,
        largest_error=largest,
        brier_score=brier,
        negative_log_likelihood=likelihood,
        over_confidence=over,
        under_confidence=under,
        reliability=_sorted_into_bins(confidences, right, bins, binning),
    )
