"""A promise about persons needs a data set that knows its persons; whoever declares it finds it in the guarantee."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

from privet.convex.estimator import ConvexReluClassifier
from privet.convex.features import RandomFourier
from privet.convex.statistics import SufficientStatistics
from privet.errors import DataError, PlanError, RecipeError
from privet.federated.agreement import Agreement
from privet.federated.contributions import ClientUpdates, ClippedSums, Contribution, Sessions
from privet.federated.federation_recipe import FederatedRecipe
from privet.federated.party import Party
from privet.plan import Plan
from privet.training.augmentation import Views
from privet.training.batching import MapDataset
from privet.training.classifier import PrivateClassifier
from privet.training.data_seal import DataSeal
from privet.training.start import privatize
from privet.training.units import OneItemPerPerson
from privet.vocabulary import Adjacency, OneItem, Unit, one_item_of
from tests.training.tools import examples, losses_of, network, plain_sgd, poisson, run

ASSUMED = "one item of the data set holds everything about one person, and nobody is in two items"
SETTINGS: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-3, "dataset_size": 8, "epochs": 1, "batch_size": 4}


def of_unit(unit: Unit) -> Plan:
    return replace(poisson(), unit=unit)


def trained(dataset: MapDataset, unit: Unit) -> tuple[str, ...]:
    model = network()
    with privatize(model, plain_sgd(model), dataset, of_unit(unit)) as session:
        run(session, model)
    return session.guarantee().assumptions


# --------------------------------------------------------------------------------------------------- loops of one's own

PLAIN: dict[str, Callable[[], MapDataset]] = {
    "tensors": examples,
    "list": lambda: list(examples()),
    "part of a data set of persons": lambda: Subset(OneItemPerPerson(dataset=examples()), range(4)),
    "views of records": lambda: Views(dataset=examples(), transform=lambda rows: rows, num_views=2),
}


@pytest.mark.parametrize("unit", [Unit.PERSON, Unit.CLIENT])
@pytest.mark.parametrize("kind", PLAIN)
def test_a_data_set_that_says_nothing_holds_records(kind: str, unit: Unit, tmp_path: Path) -> None:
    model = network()
    with pytest.raises(DataError, match=f"protects one {unit.value}, and one item .* is one record.*OneItemPerPerson"):
        privatize(model, plain_sgd(model), PLAIN[kind](), of_unit(unit), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    privatize(model, plain_sgd(model), PLAIN[kind](), of_unit(Unit.RECORD))


def test_what_is_declared_stands_among_the_assumptions() -> None:
    assert ASSUMED in trained(OneItemPerPerson(dataset=examples()), Unit.PERSON)
    assert ASSUMED in of_unit(Unit.PERSON).guarantee().assumptions
    assert ASSUMED not in trained(examples(), Unit.RECORD)


def test_a_declaration_changes_nothing_that_is_trained(tmp_path: Path) -> None:
    def weights(dataset: MapDataset, unit: Unit) -> torch.Tensor:
        model = network()
        with privatize(model, plain_sgd(model), dataset, of_unit(unit), seed=3) as session:
            run(session, model)
        return torch.cat([value.flatten() for value in model.parameters()])

    assert torch.equal(weights(examples(), Unit.RECORD), weights(OneItemPerPerson(dataset=examples()), Unit.PERSON))
    seal = DataSeal(path=tmp_path / "seal.json")
    seal.check(OneItemPerPerson(dataset=examples(seed=1)))
    with pytest.raises(DataError, match="not those this run began with"):
        seal.check(OneItemPerPerson(dataset=examples(seed=2)))


def test_items_that_are_persons_are_not_records() -> None:
    model = network()
    with pytest.raises(DataError, match=r"protects one record, and one item .* is one person\. That is what"):
        privatize(model, plain_sgd(model), OneItemPerPerson(dataset=examples()), of_unit(Unit.RECORD))


def test_views_of_persons_are_persons() -> None:
    views = Views(dataset=OneItemPerPerson(dataset=examples()), transform=lambda rows: rows, num_views=2)
    assert one_item_of(views).units == (Unit.PERSON,)
    assert views[0][0].shape == (2, 3)


def test_a_data_set_that_hands_on_what_it_is_asked_for_says_nothing_about_its_own_items() -> None:
    class Windows:
        """Two items of each person."""

        def __init__(self, inner: OneItemPerPerson) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    assert one_item_of(Windows(OneItemPerPerson(dataset=examples()))) == OneItem()
    assert one_item_of({0: "a dictionary has items"}) == OneItem()


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([*range(7), 3], "Somebody has several items"),
        (np.array([*range(7), 3]), "Somebody has several items"),
        (["secret", *"abcdef", "secret"], "Somebody has several items"),
        (["secret", *range(7)], "one person may have two names"),
        ([*range(7), None], "names no person"),
        ([*range(7), float("nan")], "names no person"),
        ([*range(7), " "], "names no person"),
        (range(7), "one name per item"),
    ],
    ids=["twice", "twice in an array", "words", "two types", "none", "not a number", "blank", "too few"],
)
def test_names_of_persons_must_bear_the_declaration_out(names: Any, told: str) -> None:
    with pytest.raises(DataError, match=told) as caught:
        OneItemPerPerson(dataset=examples(), persons=names)
    assert "secret" not in str(caught.value)
    OneItemPerPerson(dataset=examples(), persons=np.arange(8))


# ----------------------------------------------------------------------------------------------------------- estimators


def classified(unit: Unit, declared: bool) -> object:
    data = examples()
    estimator = PrivateClassifier(network(), **SETTINGS, adjacency=Adjacency.ADD_REMOVE, unit=unit)
    if declared:
        return estimator.fit(OneItemPerPerson(dataset=data)).guarantee_
    return estimator.fit(*data.tensors).guarantee_


def convex(unit: Unit, declared: bool) -> object:
    estimator = ConvexReluClassifier(**SETTINGS, num_classes=2, num_gates=2, adjacency=Adjacency.REPLACE_ONE, unit=unit)
    return estimator.fit(*examples().tensors, one_record_per_person=declared).guarantee_


def statistics(unit: Unit, declared: bool) -> object:
    release = SufficientStatistics(
        features=RandomFourier(size=4), num_classes=2, delta=1e-3, adjacency=Adjacency.ADD_REMOVE, unit=unit,
        noise_multiplier=1.0,
    )  # fmt: skip
    return release.fit(*examples().tensors, one_record_per_person=declared).guarantee_


@pytest.mark.parametrize("fit", [classified, convex, statistics], ids=["classifier", "convex", "statistics"])
def test_an_estimator_promises_nothing_about_persons_that_nobody_declared(fit: Callable[[Unit, bool], Any]) -> None:
    with pytest.raises(DataError, match=r"protects one person, and one item .* is one record"):
        fit(Unit.PERSON, False)
    assert ASSUMED in fit(Unit.PERSON, True).assumptions
    assert ASSUMED not in fit(Unit.RECORD, False).assumptions


# ---------------------------------------------------------------------------------------------------------- federations


def party(dataset: MapDataset, unit: Unit, way: Contribution, folder: Path) -> Party:
    model: nn.Module = network()
    agreement = Agreement(plan=of_unit(unit), contribution=way, learning_rate=0.1, max_records=8)
    return Party(agreement=agreement, model=model, dataset=dataset, losses=losses_of(model), folder=folder)


@pytest.mark.parametrize("way", [ClippedSums(), Sessions(local_steps=1, learning_rate=0.1)], ids=["sums", "sessions"])
def test_a_party_of_records_takes_no_part_in_a_promise_about_persons(way: Contribution, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="protects one person"):
        party(examples(), Unit.PERSON, way, tmp_path)
    agreement = party(OneItemPerPerson(dataset=examples()), Unit.PERSON, way, tmp_path).agreement
    assert {ASSUMED, "nobody's data lie with two parties"} <= set(agreement.guarantee().assumptions)
    assert party(examples(), Unit.RECORD, way, tmp_path).agreement.guarantee().unit is Unit.RECORD


def test_a_party_that_is_the_unit_may_hold_items_of_any_kind(tmp_path: Path) -> None:
    way = ClientUpdates(local_epochs=1, local_batch_size=4, learning_rate=0.1)
    for dataset in (examples(), OneItemPerPerson(dataset=examples())):
        party(dataset, Unit.CLIENT, way, tmp_path)
    with pytest.raises(PlanError, match="protects"):
        party(TensorDataset(torch.zeros(1)), Unit.PERSON, way, tmp_path)


def test_a_federated_recipe_names_units_that_its_records_or_parties_are() -> None:
    source = dict(FederatedRecipe.load("fashion_mnist").source)
    for unit, told in (("person", "nothing says that a record"), ("client", r"ClippedSums protects Unit\.RECORD")):
        with pytest.raises(RecipeError, match=told):
            FederatedRecipe.from_dict({**source, "privacy": {**source["privacy"], "unit": unit}})
    updates = {**source["federation"], "contribution": {"kind": "client_updates", "learning_rate": 0.1}}
    privacy = {**source["privacy"], "unit": "client"}
    found = FederatedRecipe.from_dict({**source, "federation": updates, "privacy": privacy})
    assert found.agreement.plan.unit is Unit.CLIENT
