"""Estimators: the familiar shape, with a guarantee that is known before fitting and true after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam
from torch.utils.data import TensorDataset

from privet.errors import ArgumentError, DataError, LoopError, UnsupportedModel
from privet.mechanism.changing_clipping import AdaptiveQuantile, Scheduled
from privet.mechanism.clipping import Automatic, Clipping, KeepOrDrop, PerSampleAdaptive, Threshold
from privet.training.averaging import ExponentialAverage
from privet.training.classifier import PrivateClassifier, PrivateRegressor
from privet.training.fitting import sgd
from privet.training.performance import Performance
from privet.training.schedules import CosineDecay
from privet.vocabulary import Adjacency, Unit
from tests.training.tools import flat

SETTINGS: dict[str, Any] = {
    "epsilon": 50.0,
    "delta": 1e-3,
    "dataset_size": 256,
    "epochs": 8,
    "batch_size": 64,
    "adjacency": Adjacency.ADD_REMOVE,
    "unit": Unit.RECORD,
}


def two_classes(num: int = 256) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(num) % 2
    centres = torch.tensor([[-2.0, 0.0], [2.0, 1.0]])
    return centres[labels] + 0.5 * torch.randn(num, 2, generator=generator), labels


def a_plane(num: int = 256) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(num, 2, generator=generator)
    return inputs, inputs @ torch.tensor([1.0, -0.5]) + 0.3


def classifier(**changes: Any) -> PrivateClassifier:
    torch.manual_seed(0)
    return PrivateClassifier(nn.Linear(2, 2), **(SETTINGS | changes))


def regressor(**changes: Any) -> PrivateRegressor:
    torch.manual_seed(0)
    return PrivateRegressor(nn.Linear(2, 1), **(SETTINGS | changes))


FORMS: dict[str, Callable[[Tensor, Tensor], tuple[Any, Any]]] = {
    "tensors": lambda x, y: (x, y),
    "arrays": lambda x, y: (x.numpy(), y.numpy()),
    "double arrays": lambda x, y: (x.double().numpy(), y.numpy()),
    "double tensors": lambda x, y: (x.double(), y),
    "plain list of pairs": lambda x, y: (list(zip(x, y, strict=True)), None),
    "data set": lambda x, y: (TensorDataset(x, y), None),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_classifier_learns_two_separate_classes_from_every_form_of_data(form: str) -> None:
    data = FORMS[form](*two_classes())
    fitted = classifier(seed=0).fit(*data)
    assert fitted.score(*data) > 0.95
    inputs = data[0]
    predicted, shares = fitted.predict(inputs), fitted.predict_proba(inputs)
    assert predicted.shape == (256,)
    assert shares.shape == (256, 2)
    assert np.allclose(shares.sum(1), 1, atol=1e-6)
    assert np.array_equal(shares.argmax(1), predicted)


@pytest.mark.parametrize("form", FORMS)
def test_a_regressor_learns_a_plane_from_every_form_of_data(form: str) -> None:
    data = FORMS[form](*a_plane())
    fitted = regressor(seed=0).fit(*data)
    assert fitted.predict(data[0]).shape == (256,)
    assert fitted.score(*data) > 0.9


def test_targets_as_a_column_give_the_same_score_as_flat_ones() -> None:
    inputs, targets = a_plane()
    fitted = regressor(seed=0).fit(inputs, targets.unsqueeze(1))
    assert fitted.score(inputs, targets.unsqueeze(1)) == pytest.approx(fitted.score(inputs, targets))


def test_a_regressor_of_several_targets_predicts_them_all() -> None:
    inputs, targets = a_plane()
    both = torch.stack([targets, -targets], 1)
    torch.manual_seed(0)
    fitted = PrivateRegressor(nn.Linear(2, 2), **SETTINGS, seed=0).fit(inputs, both)
    assert fitted.predict(inputs).shape == (256, 2)
    assert fitted.score(inputs, both) > 0.9


def test_a_score_is_the_share_of_right_answers_and_r_squared() -> None:
    inputs, labels = two_classes(8)
    one = classifier().fit(inputs, labels)
    expected = float((one.predict(inputs) == labels.numpy()).mean())
    assert one.score(inputs, labels) == expected
    x, y = a_plane(16)
    other = regressor().fit(x, y)
    residual = ((other.predict(x) - y.numpy()) ** 2).sum()
    assert other.score(x, y) == pytest.approx(1 - residual / ((y - y.mean()) ** 2).sum().item(), rel=1e-5)


@pytest.mark.parametrize("make", [classifier, regressor], ids=["classifier", "regressor"])
def test_the_guarantee_is_known_before_fitting_and_kept(make: Callable[..., Any]) -> None:
    data = two_classes() if make is classifier else a_plane()
    estimator = make(epsilon=2.0)
    planned = estimator.plan().guarantee()
    assert planned.epsilon <= 2.0
    found = estimator.fit(*data).guarantee_
    assert found.epsilon == planned.epsilon
    assert (found.delta, found.adjacency, found.unit) == (1e-3, Adjacency.ADD_REMOVE, Unit.RECORD)
    assert found.not_private_because == ()


@pytest.mark.parametrize("make", [classifier, regressor], ids=["classifier", "regressor"])
def test_there_is_no_guarantee_and_no_prediction_before_fitting(make: Callable[..., Any]) -> None:
    with pytest.raises(LoopError, match=r"fit\("):
        _ = make().guarantee_
    with pytest.raises(LoopError, match=r"fit\("):
        make().predict(two_classes(8)[0])


def test_the_real_size_of_the_data_changes_nothing_in_the_plan() -> None:
    found = [classifier(epsilon=2.0).fit(*two_classes(num)).guarantee_ for num in (100, 257)]
    assert found[0] == found[1]


def test_a_seeded_fit_is_repeatable_and_stamped() -> None:
    models = []
    for _ in range(2):
        fitted = classifier(seed=3).fit(*two_classes())
        models.append(flat(fitted.model))
        assert str(fitted.guarantee_).startswith("NOT PRIVATE")
    assert torch.equal(*models)


def test_a_second_fit_does_not_hide_the_first() -> None:
    """The model keeps what it learnt, so either the second fit is refused or its guarantee covers both."""
    data = two_classes()
    estimator = classifier(epsilon=2.0).fit(*data)
    once = estimator.guarantee_.epsilon
    try:
        twice = estimator.fit(*data).guarantee_.epsilon
    except LoopError:
        return
    assert twice > once


class Stopping(TensorDataset):
    """The user stops the run after so many records were read."""

    def __init__(self, after: int) -> None:
        super().__init__(*two_classes())
        self.left = after

    def __getitem__(self, index: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().__getitem__(index)


def test_a_fit_that_was_broken_off_is_not_hidden_by_the_next() -> None:
    estimator, data = classifier(), Stopping(after=300)
    before = flat(estimator.model)
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(data)
    assert not torch.equal(flat(estimator.model), before)
    whole = two_classes()
    for ask in (lambda: estimator.fit(*whole), lambda: estimator.guarantee_, lambda: estimator.predict(whole[0])):
        with pytest.raises(LoopError, match="broken off"):
            ask()


def test_a_fit_that_was_broken_off_goes_on_where_a_ledger_adds_both_up(tmp_path: Path) -> None:
    estimator, data = classifier(folder=tmp_path / "run"), Stopping(after=300)
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(data)
    data.left = 1_000_000
    assert estimator.fit(data).guarantee_.epsilon <= estimator.epsilon


def test_a_model_that_was_stopped_before_its_first_update_can_be_trained() -> None:
    estimator, data = classifier(), Stopping(after=1)
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(data)
    assert estimator.fit(*two_classes()).guarantee_.epsilon <= estimator.epsilon


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param(torch.full((8,), 2), id="too large"),
        pytest.param(torch.full((8,), -100), id="ignored by torch"),
        pytest.param(torch.zeros(8, 1), id="a column"),
        pytest.param(np.array(["cat"] * 8), id="words"),
    ],
)
def test_labels_that_are_not_numbers_of_classes_are_refused_before_training_and_not_shown(labels: Any) -> None:
    model = nn.Linear(2, 2)
    before = flat(model)
    with pytest.raises(DataError) as refused:
        PrivateClassifier(model, **SETTINGS).fit(two_classes(8)[0], labels)
    assert torch.equal(flat(model), before)
    assert "public list" in str(refused.value)
    assert not any(word in str(refused.value) for word in ("-100", "cat"))


def test_a_folder_is_kept_and_resumed(tmp_path: Path) -> None:
    data = two_classes()
    first = classifier(folder=tmp_path).fit(*data)
    again = classifier(folder=tmp_path).fit(*data)
    assert torch.equal(flat(first.model), flat(again.model))
    assert again.guarantee_.epsilon == first.guarantee_.epsilon


def test_any_optimizer_can_be_asked_for() -> None:
    made = []

    def adam(parameters: Any) -> Adam:
        made.append(Adam(parameters, lr=0.05))
        return made[-1]

    fitted = classifier(optimizer=adam, seed=0).fit(*two_classes())
    assert len(made) == 1
    assert fitted.score(*two_classes()) > 0.95
    assert sgd(learning_rate=0.2, momentum=0.1)([nn.Parameter(torch.zeros(1))]).defaults["momentum"] == 0.1


def test_frozen_layers_stay_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    before = flat(model[0])
    PrivateClassifier(model, **SETTINGS).fit(*two_classes())
    assert torch.equal(flat(model[0]), before)


def test_predicting_leaves_the_model_in_the_mode_it_was_in() -> None:
    inputs, labels = two_classes(8)
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.9))
    estimator = PrivateClassifier(model, **SETTINGS).fit(inputs, labels)
    for training in (True, False):
        model.train(training)
        first, second = estimator.predict_proba(inputs), estimator.predict_proba(inputs)
        assert np.array_equal(first, second)
        assert model.training is training


def test_predictions_do_not_depend_on_the_physical_batch_size() -> None:
    inputs, labels = two_classes(33)
    estimator = classifier().fit(inputs, labels)
    whole = estimator.predict_proba(inputs)
    estimator.performance = Performance(physical_batch_size=5)
    assert np.allclose(whole, estimator.predict_proba(inputs), atol=1e-6)


@pytest.mark.parametrize("make", [classifier, regressor], ids=["classifier", "regressor"])
def test_inputs_and_targets_must_be_pairs(make: Callable[..., Any]) -> None:
    inputs, labels = two_classes(8)
    with pytest.raises(DataError, match="8 inputs and 7 targets"):
        make().fit(inputs, labels[:7])
    with pytest.raises(DataError, match="without targets"):
        make().fit(inputs)


@pytest.mark.parametrize("make", [classifier, regressor], ids=["classifier", "regressor"])
def test_targets_beside_something_that_is_no_array_are_refused(make: Callable[..., Any]) -> None:
    inputs, labels = two_classes(8)
    with pytest.raises(DataError, match="beside a TensorDataset"):
        make().fit(TensorDataset(inputs, labels), labels)


def test_scoring_needs_targets() -> None:
    with pytest.raises(DataError, match="without targets"):
        classifier().fit(*two_classes(8)).score(two_classes(8)[0])


def test_a_number_in_the_place_of_the_list_of_classes_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"classes=range\(10\)"):
        classifier(classes=2).fit(*two_classes(8))


@pytest.mark.parametrize(
    ("name", "value"),
    [("epsilon", 0.0), ("epsilon", float("nan")), ("delta", 0.0), ("delta", 1.0), ("dataset_size", 0), ("epochs", 1.5)],
)
def test_settings_without_a_meaning_are_refused(name: str, value: object) -> None:
    with pytest.raises(ArgumentError, match=name):
        classifier(**{name: value}).plan()


def test_a_model_that_mixes_examples_is_refused_before_it_learns_anything() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UnsupportedModel):
        PrivateClassifier(model, **SETTINGS).fit(*two_classes())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    "clipping",
    [
        KeepOrDrop(norm=1.0, cutoff=4.0),
        Automatic(norm=1.0),
        PerSampleAdaptive(norm=1.0),
        AdaptiveQuantile(norm=1.0, count_noise_std=6.0),
        Scheduled(parts=(Threshold(norm=1.0), KeepOrDrop(norm=1.0, cutoff=4.0)), switches=(0.95,)),
    ],
    ids=lambda piece: type(piece).__name__,
)
def test_every_clipping_rule_learns_two_separate_classes(clipping: Clipping) -> None:
    inputs, labels = two_classes()
    fitted = classifier(seed=0, clipping=clipping).fit(inputs, labels)
    assert fitted.score(inputs, labels) > 0.95
    assert fitted.plan().clipping == clipping
    assert fitted.guarantee_.epsilon <= 50.0


def test_averaging_and_a_schedule_leave_the_averaged_weights_in_the_model() -> None:
    inputs, labels = two_classes()
    options: dict[str, Any] = {"seed": 0, "schedule": CosineDecay(warm_up=0.1)}
    last = classifier(**options).fit(inputs, labels)
    averaged = classifier(**options, averaging=ExponentialAverage(decay=0.9)).fit(inputs, labels)
    assert not torch.equal(flat(last.model), flat(averaged.model))
    assert averaged.score(inputs, labels) > 0.95
    plain = classifier(seed=0).fit(inputs, labels)
    assert not torch.equal(flat(last.model), flat(plain.model))
