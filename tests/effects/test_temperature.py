from __future__ import annotations

import numpy as np
import pytest

from privet.effects.temperature import fit_temperature, fit_temperature_privately
from privet.mechanism.clipping import Threshold
from privet.mechanism.noise import Gaussian
from privet.mechanism.sampling import FullBatch
from privet.plan import Plan
from privet.training.predictions import Predictions
from privet.vocabulary import Adjacency, Unit


def sharpened(temperature: float, size: int = 4000) -> Predictions:
    """Predictions of a calibrated classifier whose logits were multiplied by a temperature."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(size, 4)) * 1.5
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (probabilities.cumsum(1) < generator.random((size, 1))).sum(1)
    return Predictions.from_logits(temperature * logits, labels)


def plan(clipping_norm: float = 10.0) -> Plan:
    return Plan(
        sampling=FullBatch(steps=30, expected_batch_size=4000),
        clipping=Threshold(norm=clipping_norm),
        noise=Gaussian(noise_multiplier=3.0),
        delta=1e-5,
        adjacency=Adjacency.ADD_REMOVE,
        unit=Unit.RECORD,
    )


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_fit_undoes_a_known_temperature(temperature: float) -> None:
    assert fit_temperature(sharpened(temperature)) == pytest.approx(temperature, rel=0.05)


def test_a_fit_never_raises_the_loss_on_its_own_examples() -> None:
    predictions = sharpened(3.0)
    assert predictions.at_temperature(fit_temperature(predictions)).losses.mean() < predictions.losses.mean()


def test_predictions_that_are_all_right_end_at_the_edge_of_the_range() -> None:
    predictions = sharpened(1.0)
    right = Predictions(log_probabilities=predictions.log_probabilities, labels=predictions.log_probabilities.argmax(1))
    assert 0 < fit_temperature(right) < 0.01


def test_the_private_fit_comes_close_and_says_what_it_cost() -> None:
    found = fit_temperature_privately(sharpened(3.0), plan(), seed=0)
    assert found.temperature == pytest.approx(3.0, rel=0.15)
    assert found.guarantee.epsilon == plan().guarantee().epsilon
    assert found.guarantee.not_private_because
    assert not fit_temperature_privately(sharpened(3.0), plan()).guarantee.not_private_because


def test_a_tight_clipping_norm_leaves_the_classifier_over_confident() -> None:
    loose, tight = (fit_temperature_privately(sharpened(3.0), plan(norm), seed=0).temperature for norm in (10.0, 0.5))
    assert tight < loose - 0.5


def test_the_private_fit_is_random() -> None:
    first, second = (fit_temperature_privately(sharpened(3.0), plan()).temperature for _ in range(2))
    assert first != second
