"""Programs that mix examples are refused before an update is applied, and the refusal names the line."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privet.errors import UnsupportedModel, WeightsChanged
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.engine import Engine
from privet.gradients.engines.functional import Functional
from privet.training.performance import Performance
from privet.training.session import Step
from privet.training.start import privatize
from tests.isolation.mixer import CLASSES, NUM_EXAMPLES, WIDTH, Mixer, Scene
from tests.isolation.mixers import MIXERS
from tests.isolation.mixers_layers import sequences
from tests.training.tools import full_batch, plain_sgd

Losses = Callable[..., Tensor]


def walked(step: Step, losses: Losses) -> None:
    for batch in step.microbatches():
        step.backward(losses(*batch))


def accumulated(step: Step, losses: Losses) -> None:
    step.accumulate(losses)


ENGINES: dict[str, Engine] = {"book-keeping": BookKeeping(), "functional": Functional()}


def cases() -> list[Any]:
    found = []
    for mixer, way, engine in itertools.product(MIXERS, (walked, accumulated), ENGINES):
        if engine == "functional" and (mixer.in_backward or not mixer.calls_once):
            continue
        found.append(pytest.param(mixer, way, ENGINES[engine], id=f"{mixer.name}-{way.__name__}-{engine}"))
    return found


def train(
    mixer: Mixer, way: Callable[[Step, Losses], None], engine: Engine
) -> tuple[int, UnsupportedModel | WeightsChanged | None]:
    """Train until the program is refused; return how many updates were applied, and the refusal."""
    torch.manual_seed(0)
    scene, taken = Scene(model=mixer.build()), 0
    losses = partial(mixer.program, scene)
    plan, optimizer = full_batch(mixer.starts + 2), plain_sgd(scene.model)
    try:
        with privatize(
            scene.model,
            optimizer,
            mixer.data(),
            plan,
            performance=Performance(physical_batch_size=NUM_EXAMPLES, engine=engine),
        ) as session:
            for step in session.steps():
                scene.step = step.index
                way(step, losses)
                step.update()
                taken += 1
    except (UnsupportedModel, WeightsChanged) as error:
        return taken, error
    return taken, None


def is_experimental(refusal: Exception) -> bool:
    """Whether experiments or the comparison of sums came first, which know no line."""
    frames = traceback.walk_tb(refusal.__traceback__)
    return any(frame.f_code.co_filename.endswith(("preflight.py", "trial.py", "weights.py")) for frame, _ in frames)


def test_there_are_many_different_ways_to_mix_examples() -> None:
    names = [mixer.name for mixer in MIXERS]
    assert len(set(names)) == len(names) >= 100


@pytest.mark.parametrize(("mixer", "way", "engine"), cases())
def test_a_program_that_mixes_examples_is_refused_with_the_line_that_mixes(
    mixer: Mixer, way: Callable[[Step, Losses], None], engine: Engine
) -> None:
    taken, refusal = train(mixer, way, engine)
    assert refusal is not None, f"{mixer.name} was trained"
    assert taken == mixer.starts, str(refusal)
    if not is_experimental(refusal):
        assert mixer.says in str(refusal), str(refusal)
        assert any(line in str(refusal) for line in mixer.lines), str(refusal)


class SecondAxis(nn.Module):
    """A layer on ``[time, examples, width]``."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.inner(inputs.tanh())
        return found


@pytest.mark.parametrize("way", [walked, accumulated])
@pytest.mark.parametrize("time", [15, 40])
def test_examples_on_the_second_axis_are_no_rows_of_the_first_for_the_functional_engine(
    time: int, way: Callable[[Step, Losses], None]
) -> None:
    """Time is a multiple of the number of examples, so that the lengths alone would fit."""

    def losses(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = scene.model(x.transpose(0, 1)).square().sum((0, 2))
        return found

    program = Mixer(name="second axis", program=losses, build=SecondAxis, data=sequences(time), says="first axis")
    taken, refusal = train(program, way, Functional())
    assert taken == 0
    assert "first axis" in str(refusal)
    assert train(program, way, BookKeeping()) == (2, None)
