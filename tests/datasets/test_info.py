"""Public facts are constants, consistent and known without torch."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from privet.datasets import KNOWN_DATASETS, DatasetInfo, Normalisation, describe
from privet.datasets.known import loader_of
from privet.errors import ArgumentError, DataError


def test_facts_are_known_without_importing_torch() -> None:
    code = "import sys; from privet.datasets import describe; describe('mnist'); sys.exit('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, env={"PYTHONPATH": ":".join(sys.path)}).returncode
        == 0
    )


def test_every_known_data_set_can_be_loaded_and_no_other() -> None:
    assert all(callable(loader_of(name)) for name in KNOWN_DATASETS)
    with pytest.raises(KeyError):
        loader_of("of_no_name")


@pytest.mark.parametrize("info", KNOWN_DATASETS.values(), ids=list(KNOWN_DATASETS))
def test_constants_fit_the_shape_of_an_example(info: DatasetInfo) -> None:
    for normalisation in info.normalisations:
        colours = info.input_shape[0] // 81 if info.name.endswith("_scattering") else info.input_shape[0]
        assert len(normalisation.shift) in (1, colours)
        assert all(math.isfinite(value) for value in (*normalisation.shift, *normalisation.scale))
    assert info.normalisation().name == ("as_stored" if info.name == "sst2" else "unit_interval")
    assert info.licence
    assert info.source


def test_normalisation_subtracts_and_divides_per_channel_in_place() -> None:
    features = torch.ones(2, 3, 1, 1)
    normalisation = Normalisation(name="n", shift=(1.0, 0.0, -1.0), scale=(1.0, 2.0, 4.0))
    assert normalisation.apply_(features) is features
    assert features[1].flatten().tolist() == [0.0, 0.5, 0.5]


def test_bounds_hold_whatever_comes_in() -> None:
    normalisation = Normalisation(name="n", shift=(0.0,), scale=(2.0,), bounds=(0.0, 1.0))
    values = torch.tensor([[-5.0, 1.0], [math.inf, -math.inf]])
    assert normalisation.apply_(values).tolist() == [[0.0, 0.5], [1.0, 0.0]]


def test_constants_for_another_number_of_channels_are_refused() -> None:
    with pytest.raises(ArgumentError, match="3 channels, the features have 1"):
        Normalisation(name="n", shift=(0.0,) * 3, scale=(1.0,) * 3).apply_(torch.zeros(2, 1, 4, 4))


@pytest.mark.parametrize(("shift", "scale"), [((), ()), ((0.0,), (0.0,)), ((0.0,), (-1.0,)), ((0.0,), (1.0, 1.0))])
def test_normalisations_that_cannot_be_applied_are_refused(shift: tuple[float, ...], scale: tuple[float, ...]) -> None:
    with pytest.raises(ArgumentError):
        Normalisation(name="n", shift=shift, scale=scale)


def test_an_unknown_normalisation_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match="Known: unit_interval, standardized"):
        describe("mnist").normalisation("whitened")


def test_an_unknown_data_set_is_answered_with_the_nearest() -> None:
    with pytest.raises(DataError, match="Did you mean 'fashion_mnist'"):
        describe("fashion-mnist")


def test_facts_that_contradict_each_other_are_refused() -> None:
    mnist = describe("mnist")
    with pytest.raises(ArgumentError, match="one name per class"):
        replace(mnist, num_classes=11)
    with pytest.raises(ArgumentError, match="train_size"):
        replace(mnist, train_size=-1)
    with pytest.raises(ArgumentError, match="feature name"):
        replace(mnist, feature_names=("a",))
