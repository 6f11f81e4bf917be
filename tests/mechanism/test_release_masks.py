from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from privet.errors import ArgumentError, PlanError
from privet.mechanism import codec
from privet.mechanism.clipping import Threshold
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.masking import Mask
from privet.mechanism.noise import Gaussian
from privet.mechanism.release_masks import ChosenMask
from privet.mechanism.sampling import Poisson
from privet.plan import Plan
from privet.training.fitting import fit_privately
from privet.training.performance import Performance
from privet.vocabulary import Adjacency, Unit


@given(flags=st.lists(st.booleans(), min_size=1, max_size=70).filter(lambda flags: not all(flags)))
@settings(max_examples=40, deadline=None)
def test_a_mask_survives_being_written_and_read(flags: list[bool]) -> None:
    mask = ChosenMask.freezing(np.array(flags))
    assert mask.frozen.tolist() == flags
    plain = codec.encode_piece(mask, codec.MASK, where="mask")
    assert codec.decode_piece(plain, codec.MASK, where="mask") == mask
    assert isinstance(mask, Mask)


def test_frozen_coordinates_keep_their_values_and_the_others_move() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    before = torch.cat([value.detach().flatten() for value in model.parameters()])
    frozen = np.arange(21) % 3 == 0
    plan = Plan(
        sampling=Poisson.for_dataset(dataset_size=40, batch_size=10, steps=3),
        clipping=Threshold(norm=1.0),
        noise=Gaussian(noise_multiplier=1.0),
        mask=ChosenMask.freezing(frozen),
        delta=1e-3,
        adjacency=Adjacency.ADD_REMOVE,
        unit=Unit.RECORD,
    )
    fit_privately(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        TensorDataset(torch.randn(40, 6), torch.randint(3, (40,))),
        plan,
        lambda outputs, labels: functional.cross_entropy(outputs, labels, reduction="none"),
        performance=Performance(physical_batch_size=40),
        seed=1,
    )
    after = torch.cat([value.detach().flatten() for value in model.parameters()])
    assert ((before == after).numpy() == frozen).all()


def test_a_mask_of_nothing_is_none_and_bits_that_do_not_fit_are_refused() -> None:
    run = ChosenMask.freezing(np.zeros(4, dtype=bool)).start(
        layout=Layout.of([("w", (4,))], OneGroup()), num_steps=1, steps_per_epoch=1
    )
    assert run.begin(0, np.random.default_rng(0), torch.zeros(4)) is None
    with pytest.raises(ArgumentError, match="nothing to train"):
        ChosenMask.freezing(np.ones(3, dtype=bool))
    with pytest.raises(ArgumentError, match="one bit for each"):
        ChosenMask(num_coordinates=40, frozen_bits="AA==")
    with pytest.raises(ArgumentError, match="base64"):
        ChosenMask(num_coordinates=4, frozen_bits="not base64!")
    with pytest.raises(PlanError, match="lists 3 coordinates, but the model has 4"):
        ChosenMask.freezing(np.array([True, False, False])).start(
            layout=Layout.of([("w", (4,))], OneGroup()), num_steps=1, steps_per_epoch=1
        )
