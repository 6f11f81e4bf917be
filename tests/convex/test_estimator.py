"""The convex classifier learns, predicts, and promises what its plan promised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from privet.convex.descent import NoisyCGD
from privet.convex.estimator import ConvexReluClassifier
from privet.errors import ArgumentError, DataError, LoopError, PlanError
from privet.models.convex_losses import RadialSquared
from privet.models.convex_relu import ConvexRelu
from privet.vocabulary import Adjacency, Release, Unit


def classifier(**changes: Any) -> ConvexReluClassifier:
    options: dict[str, Any] = {
        "epsilon": 8.0,
        "delta": 1e-5,
        "dataset_size": 600,
        "num_classes": 2,
        "epochs": 15,
        "batch_size": 100,
        "adjacency": Adjacency.REPLACE_ONE,
        "unit": Unit.RECORD,
        "num_gates": 16,
        "learning_rate": 2.0,
        "ridge": 1e-3,
    }
    return ConvexReluClassifier(**(options | changes))


def crossed(num: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two classes that no linear classifier tells apart: the sign of a product."""
    inputs = np.random.default_rng(seed).standard_normal((num, 2))
    return inputs, (inputs[:, 0] * inputs[:, 1] > 0).astype(np.int64)


@pytest.mark.parametrize("loss", [None, RadialSquared()], ids=["softmax", "squared"])
def test_it_learns_what_is_not_linear(loss: Any) -> None:
    torch.manual_seed(0)
    made = classifier(seed=0, **({} if loss is None else {"loss": loss, "learning_rate": 1.0}))
    assert made.fit(*crossed()).score(*crossed(seed=1)) > 0.85


def test_the_guarantee_is_the_plans_and_covers_the_last_model() -> None:
    made = classifier(epochs=2)
    promised = made.plan().guarantee()
    found = made.fit(*crossed()).guarantee_
    assert found.epsilon == promised.epsilon <= 8.0
    assert found.released is Release.LAST_ITERATE
    assert made.predict(crossed()[0][:5]).shape == (5,)


def test_what_it_needs_is_said() -> None:
    made = classifier(epochs=1)
    with pytest.raises(LoopError, match="has not been trained"):
        made.predict(crossed()[0])
    with pytest.raises(LoopError, match="has not been trained"):
        _ = made.guarantee_
    with pytest.raises(DataError, match="dataset_size is 600"):
        made.fit(*crossed(599))
    made.fit(*crossed())
    with pytest.raises(LoopError, match="trained already"):
        made.fit(*crossed())


def test_adding_and_removing_records_has_no_proof() -> None:
    with pytest.raises(PlanError, match="adding or removing one record"):
        classifier(adjacency=Adjacency.ADD_REMOVE).plan()


def test_a_step_too_long_for_the_loss_is_refused() -> None:
    with pytest.raises(ArgumentError, match="need not bring two models closer"):
        classifier(learning_rate=4.5).plan()


def test_a_model_without_a_proven_loss_has_no_plan() -> None:
    descent = NoisyCGD(learning_rate=0.1, ridge=0.0, batch_size=10, epochs=1)
    with pytest.raises(ArgumentError, match="has no proven loss"):
        descent.plan(
            nn.Linear(2, 2),
            dataset_size=100,
            epsilon=1.0,
            delta=1e-5,
            adjacency=Adjacency.REPLACE_ONE,
            unit=Unit.RECORD,
        )


def test_the_features_are_never_written_out() -> None:
    model = ConvexRelu((50,), 10, num_gates=40)
    widest = 0

    def note(_: nn.Module, inputs: tuple[torch.Tensor, ...], outputs: torch.Tensor) -> None:
        nonlocal widest
        widest = max(widest, inputs[0][0].numel(), outputs[0].numel())

    model.linear.register_forward_hook(note)
    model(torch.randn(3, 50))
    assert widest == 40 * 10 < 40 * 50


@pytest.mark.parametrize(
    "labels", [np.arange(600) % 2 + 1, np.full(600, -1), np.array(["well", "ill"] * 300), np.zeros((600, 2))],
    ids=["from one", "negative", "words", "two columns"],
)  # fmt: skip
def test_labels_that_are_no_class_numbers_are_refused_without_showing_them(labels: np.ndarray) -> None:
    made = classifier(epochs=1)
    with pytest.raises(DataError, match="one class number from 0 to 1 per record"):
        made.fit(crossed()[0], labels)
    with pytest.raises(LoopError, match="not been trained"):
        _ = made.guarantee_


def test_probabilities_agree_with_predictions_and_add_up_to_one() -> None:
    made = classifier(epochs=1).fit(*crossed())
    found = made.predict_proba(crossed()[0])
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)
    np.testing.assert_array_equal(found.argmax(1), made.predict(crossed()[0]))
