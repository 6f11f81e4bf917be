"""Programs that keep examples apart are called proven, in both ways to write a loop, and train."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from privet.training.performance import Performance
from privet.training.session import Step
from privet.training.start import privatize
from tests.isolation.legitimate import LEGITIMATE, Legitimate
from tests.isolation.mixer import Scene
from tests.isolation.test_hostile import accumulated, walked
from tests.training.tools import full_batch


def test_there_are_many_different_legitimate_programs() -> None:
    assert len({one.program.__name__ for one in LEGITIMATE}) == len(LEGITIMATE) >= 20


@pytest.mark.parametrize("way", [walked, accumulated])
@pytest.mark.parametrize("one", LEGITIMATE, ids=lambda one: one.program.__name__)
def test_a_program_that_only_looks_like_mixing_is_proven(
    one: Legitimate, way: Callable[[Step, Callable[..., Tensor]], None]
) -> None:
    torch.manual_seed(0)
    scene = Scene(model=one.build())
    optimizer = SGD(scene.model.parameters(), lr=0.01)
    performance = Performance(physical_batch_size=16)
    with privatize(scene.model, optimizer, one.data, full_batch(3), performance=performance) as session:
        for step in session.steps():
            scene.step = step.index
            way(step, partial(one.program, scene))
            step.update()
        assert session.guarantee().tried == ()
