"""Estimators keep scikit-learn's contract, and refuse what would cost more than they say."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import privet as pv
from privet.errors import DataError, LoopError
from tests.training.tools import flat

pytest.importorskip("sklearn")
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator

SETTINGS: dict[str, Any] = {
    "epsilon": 50.0,
    "delta": 1e-3,
    "dataset_size": 100,
    "epochs": 4,
    "batch_size": 50,
    "adjacency": pv.Adjacency.ADD_REMOVE,
    "unit": pv.Unit.RECORD,
    "optimizer": pv.optim.sgd(learning_rate=0.3),
}
APART = {"seed": 0, "repeats": pv.estimators.Repeats.APART}
# Checks of scikit-learn that a private estimator fails on purpose, and why.
EXCEPTIONS = {
    "check_parameters_default_constructible": "epsilon, delta, the public size of the data, adjacency and unit have no "
    "default: only the owner of the data knows them",
    "check_do_not_raise_errors_in_init_or_set_params": "a mistake is told where it is made, before data is read",
    "check_supervised_y_2d": "labels as a column are refused: no shape is guessed",
}
EXCEPTIONS_OF = {"classifier": set(EXCEPTIONS), "regressor": set(EXCEPTIONS) - {"check_supervised_y_2d"}}


def network(num_features: int, num_outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(num_features, num_outputs).double()


def classifier(**changes: Any) -> pv.PrivateClassifier:
    return pv.PrivateClassifier(network, **(SETTINGS | {"classes": ["no", "yes"]} | changes))


def checks() -> Iterator[Any]:
    estimators = {
        "classifier": classifier(classes=pv.estimators.ClassesOfLabels(), **APART),
        "regressor": pv.PrivateRegressor(network, **SETTINGS, **APART),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that estimators do not derive from scikit-learn's, which stays optional
        for kind, estimator in estimators.items():
            for number, (made, check) in enumerate(estimator_checks_generator(estimator, legacy=True)):
                name = getattr(check, "func", check).__name__
                # both kinds, and both forms of sparse matrices, share the code that these checks try: one can wait
                is_repeat = kind == "regressor" or name == "check_estimator_sparse_matrix"
                marks = [pytest.mark.slow] if is_repeat else []
                yield pytest.param(kind, name, made, check, id=f"{kind}-{number}-{name}", marks=marks)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "name", "estimator", "check"), list(checks()))
def test_checks_of_scikit_learn_pass_unless_the_table_says_why_not(
    kind: str, name: str, estimator: Any, check: Any
) -> None:
    if name in EXCEPTIONS_OF[kind]:
        with pytest.raises((AssertionError, ValueError)):
            check(estimator)
    else:
        check(estimator)


def data(num: int = 100) -> tuple[Any, Any]:
    inputs = np.random.default_rng(0).normal(size=(num, 3))
    return inputs, np.where(inputs[:, 0] > 0, "yes", "no")


def forms() -> dict[str, Any]:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    names = ["age", "height", "weight"]
    return {
        "array": lambda x, y: (x, y),
        "lists": lambda x, y: (x.tolist(), y.tolist()),
        "pandas": lambda x, y: (pandas.DataFrame(x, columns=names), pandas.Series(y)),
        "polars": lambda x, y: (polars.DataFrame(x, schema=names), polars.Series(y)),
        "csr": lambda x, y: (sparse.csr_matrix(x), y),
        "coo": lambda x, y: (sparse.coo_array(x), y),
    }


@pytest.mark.parametrize("form", ["array", "lists", "pandas", "polars", "csr", "coo"])
def test_every_form_of_the_same_data_gives_the_same_model_with_words_as_labels(form: str) -> None:
    inputs, labels = forms()[form](*data())
    fitted = classifier(seed=0).fit(inputs, labels)
    plain = classifier(seed=0).fit(*data())
    assert torch.allclose(flat(fitted.model_), flat(plain.model_), atol=1e-12)
    assert set(fitted.predict(inputs)) <= {"no", "yes"}
    assert fitted.score(inputs, labels) == plain.score(*data()) > 0.7


def test_a_fit_ends_with_the_weights_of_the_own_loop_bit_for_bit_and_its_ledger_equals_the_plan() -> None:
    inputs, labels = data()
    fitted = classifier(seed=3).fit(inputs, labels)
    model = network(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    own = TensorDataset(torch.tensor(inputs), torch.tensor(labels == "yes").long())
    with pv.privatize(model, optimizer, own, fitted.plan(), seed=3) as private:
        for step in private.steps():
            step.accumulate(lambda x, y: functional.cross_entropy(model(x), y, reduction="none"))
            step.update()
    assert torch.equal(flat(model), flat(fitted.model_))
    assert fitted.guarantee_.epsilon == fitted.plan().guarantee().epsilon == private.guarantee().epsilon


def test_frames_with_other_columns_are_refused() -> None:
    pandas = pytest.importorskip("pandas")
    inputs, labels = data()
    fitted = classifier().fit(pandas.DataFrame(inputs, columns=["a", "b", "c"]), labels)
    assert list(fitted.feature_names_in_) == ["a", "b", "c"]
    with pytest.raises(DataError, match="same order"):
        fitted.predict(pandas.DataFrame(inputs, columns=["b", "a", "c"]))


def test_a_label_outside_the_public_list_is_refused_and_not_shown() -> None:
    inputs, labels = data()
    with pytest.raises(DataError, match="none of the 2 classes") as refused:
        classifier().fit(inputs, np.where(labels == "yes", "secret", labels))
    assert "secret" not in str(refused.value)


def test_a_list_of_classes_that_was_read_off_the_labels_stands_in_the_guarantee() -> None:
    fitted = classifier(classes=pv.estimators.ClassesOfLabels()).fit(*data())
    assert "the list of classes, which was read off the labels, is public" in fitted.guarantee_.assumptions
    with pytest.raises(DataError, match="number of classes"):
        classifier(classes=None).fit(*data())


def test_a_pipeline_fits_a_private_estimator_once() -> None:
    inputs, labels = data()
    pipeline = make_pipeline(FunctionTransformer(np.tanh), classifier()).fit(inputs, labels)
    assert pipeline.score(inputs, labels) > 0.7
    assert pipeline[-1].guarantee_.epsilon <= 50
    with pytest.raises(LoopError, match="fitted again"):
        pipeline.fit(inputs, labels)


def test_a_search_and_a_cross_validation_are_refused_and_name_the_accounted_search() -> None:
    inputs, labels = data()
    for ask in (
        lambda: GridSearchCV(classifier(), {"clipping_norm": [0.1, 1.0]}, cv=2, error_score="raise").fit(
            inputs, labels
        ),
        lambda: cross_val_score(classifier(), inputs, labels, cv=2, error_score="raise"),
        lambda: clone(make_pipeline(FunctionTransformer(), classifier())).fit(inputs, labels),
    ):
        with pytest.raises(LoopError, match="PrivateSearch"):
            ask()


def test_a_search_on_public_records_works_and_its_guarantee_says_on_what_it_rests() -> None:
    inputs, labels = data()
    search = GridSearchCV(classifier(**APART), {"clipping_norm": [0.1, 1.0]}, cv=2).fit(inputs, labels)
    assert search.best_params_["clipping_norm"] in {0.1, 1.0}
    assert any("added up apart" in words for words in search.best_estimator_.guarantee_.assumptions)


def test_a_clone_never_copies_trained_weights() -> None:
    estimator = pv.PrivateClassifier(nn.Linear(3, 2), **SETTINGS)
    assert torch.equal(flat(clone(estimator).model), flat(estimator.model))
    estimator.fit(data()[0], np.zeros(100, dtype=int))
    with pytest.raises(LoopError, match="must begin untrained"):
        clone(estimator)
    fitted = classifier(**APART).fit(*data())
    assert not hasattr(clone(fitted), "model_")


def test_scikit_learn_knows_an_untrained_estimator() -> None:
    with pytest.raises(NotFittedError, match="not been trained"):
        classifier().predict(data()[0])


def test_whole_numbers_stay_whole_for_a_model_that_takes_them() -> None:
    words = np.random.default_rng(0).integers(0, 9, size=(100, 4))
    model = nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(12, 2))
    fitted = pv.PrivateClassifier(model, **SETTINGS).fit(words, words[:, 0] % 2)
    assert fitted.predict(words).shape == (100,)
    numbers = pv.PrivateClassifier(nn.Linear(4, 2), **SETTINGS).fit(words, words[:, 0] % 2)
    assert numbers.predict(words).shape == (100,)
