"""Calibration of a classifier's confidence: calibration errors, reliability diagram, proper scores.

The confidence of a prediction is its largest probability. A classifier is calibrated if 80 % of its predictions with
confidence 0.8 are correct. The errors are those of Naeini et al. (2015) and Guo et al. (2017).

Not private: all results are exact functions of the examples. Measure on public or held-out data.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privet import checks
from privet.effects.reliability import Binning, CalibrationReport, Interval, Reliability, ReliabilityBin
from privet.training.predictions import Predictions

Array = NDArray[np.float64]

_MEASURES = (
    "accuracy", "brier_score", "negative_log_likelihood",
    "expected_error", "largest_error", "over_confidence", "under_confidence",
)  # fmt: skip


def reliability(predictions: Predictions, *, num_bins: int = 15, binning: Binning = Binning.EQUAL_WIDTH) -> Reliability:
    """Group predictions into bins by confidence.

    Equal width divides [0, 1] into intervals of equal length, open on the left. Equal mass puts the same number of
    predictions into every bin, up to one; equal confidences always share a bin.
    """
    count = checks.count("num_bins", num_bins)
    return _binned(predictions.confidences, predictions.is_right, count, binning)


def _binned(confidences: Array, right: NDArray[np.bool_], count: int, binning: Binning) -> Reliability:
    edges = np.linspace(0.0, 1.0, count + 1)
    if binning is Binning.EQUAL_MASS:
        edges[1:-1] = np.quantile(confidences, edges[1:-1], method="inverted_cdf")
    # A confidence is never zero, the open lower end; by rounding it may exceed 1.
    places = np.minimum(np.searchsorted(edges[1:], confidences, side="left"), count - 1)
    sizes = np.bincount(places, minlength=count)
    divisors = np.maximum(sizes, 1)
    means = np.bincount(places, weights=confidences, minlength=count) / divisors
    shares = np.bincount(places, weights=right, minlength=count) / divisors
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

    Binned errors are biased upwards in small samples, and resampled ones even more: an interval may lie entirely above
    the value. It does not cover the variation between training runs.

    Args:
        predictions: Predictions on test data.
        num_bins: Number of bins of the reliability diagram.
        binning: Rule that defines the bins.
        num_resamples: Number of bootstrap samples.
        confidence: Confidence level of the intervals.
        seed: Seed of the resampling.
    """
    generator = np.random.default_rng(checks.count("seed", seed, minimum=0))
    tail = (1 - checks.probability("confidence", confidence)) / 2
    bins, size = checks.count("num_bins", num_bins), predictions.num_examples
    confidences, right = predictions.confidences, predictions.is_right
    squares, losses = predictions.squared_errors, predictions.losses

    def measured(rows: NDArray[np.int64] | slice) -> tuple[float, ...]:
        found = _binned(confidences[rows], right[rows], bins, binning)
        means = (float(right[rows].mean()), float(squares[rows].mean()), float(losses[rows].mean()))
        return (*means, found.expected_error, found.largest_error, found.over_confidence, found.under_confidence)

    resampled = [
        measured(generator.integers(size, size=size)) for _ in range(checks.count("num_resamples", num_resamples))
    ]
    lows, highs = np.quantile(np.array(resampled), [tail, 1 - tail], axis=0)
    intervals = {
        name: Interval(value=value, low=float(low), high=float(high))
        for name, value, low, high in zip(_MEASURES, measured(slice(None)), lows, highs, strict=True)
    }
    return CalibrationReport(num_examples=size, reliability=_binned(confidences, right, bins, binning), **intervals)
