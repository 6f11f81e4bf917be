"""Recorded physical batches of persons, and steps with correlated noise: the same weights as in the ordinary way."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from privet import Performance, PersonRecords, Plan, Poisson, Unit, privatize
from privet.mechanism.correlated_noise import BandedGaussian, BandedInverseGaussian
from privet.mechanism.cyclic_poisson import CyclicPoisson
from privet.mechanism.epoch_sampling import Cyclic
from privet.mechanism.persons import BoundedPersons, SampledPersons
from privet.training.launch.replay import CudaGraph, Eager
from privet.vocabulary import Adjacency
from tests.training.launch.test_replay import EXAMPLES, _assert_same, _data, _model, _Plain, _PlainLaunch, _plan

# persons with one to four records
OWNERS = [place % 40 if place < 80 else place % 8 for place in range(EXAMPLES)]
DRAWN = Poisson(rate=0.2, steps=6, expected_batch_size=8)
WAYS = {
    "persons": SampledPersons(sampling=DRAWN, max_records=3),
    "records": BoundedPersons(sampling=DRAWN, max_records=2),
    "bands": SampledPersons(sampling=CyclicPoisson(groups=3, rate=0.6, cycles=2, expected_batch_size=8), max_records=3),
}


def person_plan(way: str) -> Plan:
    noise = BandedGaussian.square_root(bands=3).with_multiplier(0.1) if way == "bands" else _plan().noise
    return replace(_plan(), sampling=WAYS[way], unit=Unit.PERSON, noise=noise)


def correlated_plan(kind: str) -> Plan:
    banded = BandedGaussian.square_root(bands=3).with_multiplier(0.1)
    if kind == "banded":
        sampling = CyclicPoisson(groups=3, rate=0.6, cycles=2, expected_batch_size=20)
        return replace(_plan(), sampling=sampling, noise=banded)
    noise = BandedInverseGaussian.square_root(bands=3, batches=4, epochs=2).with_multiplier(0.1)
    sampling = Cyclic(batches=4, epochs=2, expected_batch_size=20.0)
    return replace(_plan(), sampling=sampling, noise=noise, adjacency=Adjacency.ZERO_OUT)


def trained(launch: Any, plan: Plan, device: str = "cpu") -> dict[str, Tensor]:
    model, data = _model(device), _data(device)
    owned = PersonRecords(dataset=data, persons=OWNERS) if plan.unit is Unit.PERSON else data
    session = privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        owned,
        plan,
        performance=Performance(physical_batch_size=9, launch=launch),
        seed=3,
    )
    with session:
        for step in session.steps():
            step.accumulate(lambda x, y: functional.cross_entropy(model(x), y, reduction="none"))
            step.update()
    return model.state_dict()


@pytest.mark.parametrize("way", WAYS)
def test_padded_replays_of_persons_train_the_same_weights(way: str) -> None:
    recorder = _Plain()
    found = trained(_PlainLaunch(recorder), person_plan(way))
    _assert_same(found, trained(Eager(), person_plan(way)))
    assert recorder.runs > 3


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
def test_recorded_persons_on_a_device_train_the_same_weights(way: str, caplog: pytest.LogCaptureFixture) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    plan = person_plan(way)
    with caplog.at_level(logging.WARNING, logger="privet"):
        _assert_same(trained(CudaGraph(), plan, "cuda"), trained(Eager(), plan, "cuda"), tolerance=1e-4)
    assert not [record for record in caplog.records if record.name == "privet"], "the recording must have been used"


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["banded", "inverse"])
def test_correlated_noise_on_a_device_is_the_same_whether_batches_are_recorded(kind: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    plan = correlated_plan(kind)
    _assert_same(trained(CudaGraph(), plan, "cuda"), trained(Eager(), plan, "cuda"), tolerance=1e-4)


@pytest.mark.parametrize("kind", ["banded", "inverse"])
def test_correlated_noise_is_the_same_whether_batches_are_replayed(kind: str) -> None:
    recorder = _Plain()
    found = trained(_PlainLaunch(recorder), correlated_plan(kind))
    _assert_same(found, trained(Eager(), correlated_plan(kind)))
    assert recorder.runs > 3
