"""Programs written to break the bound: none moves the sum beyond it while it is called proven."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import TensorDataset

from privet.errors import UnsupportedModel
from privet.training.performance import Performance
from privet.training.session import Step
from privet.training.start import privatize
from tests.isolation.hostile import HOSTILE, LARGE, LAST, LATE, NUM_RECORDS, Hostile
from tests.isolation.hostile_backward import BACKWARD
from tests.isolation.hostile_doors import DOORS
from tests.isolation.hostile_draws import DRAWS
from tests.isolation.hostile_kinds import KINDS
from tests.isolation.hostile_late import LATELY
from tests.isolation.hostile_operations import OPERATIONS
from tests.isolation.hostile_places import PLACES
from tests.isolation.hostile_wider import WIDER
from tests.isolation.mixer import CLASSES, WIDTH, Scene, network
from tests.training.tools import full_batch

Losses = Callable[..., Tensor]
BOUND = 1.0


def walked(step: Step, losses: Losses) -> None:
    for batch in step.microbatches():
        step.backward(losses(*batch))


def accumulated(step: Step, losses: Losses) -> None:
    step.accumulate(losses)


def by_range(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return -scene.model(x).log_softmax(1)[range(len(y)), y]


def normalised_one_by_one(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    return scene.losses((x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True), y)


def measured_after_the_losses(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    scores = scene.model(x)
    losses = nn.functional.cross_entropy(scores, y, reduction="none")
    with torch.no_grad():
        scene.memory["share"] = (scores.argmax(1) == y).float().mean().item()
    return losses


def cases() -> list[Any]:
    found = []
    for program, way in itertools.product(HOSTILE, (walked, accumulated)):
        if program in (*OPERATIONS, *PLACES, *WIDER, *KINDS, *DRAWS) and way is accumulated:
            continue  # experiments come first there, and the rules are not asked
        found.append(pytest.param(program, way, id=f"{program.name}-{way.__name__}"))
    return found


def records(*, without: int | None = None) -> TensorDataset:
    """Nine records, of which the last is far from the others."""
    x = torch.randn(NUM_RECORDS, WIDTH, generator=torch.Generator().manual_seed(1)).clamp(-2, 2)
    x[LAST, 0] = 5 * LARGE
    kept = [place for place in range(NUM_RECORDS) if place != without]
    return TensorDataset(x[kept], (torch.arange(NUM_RECORDS) % CLASSES)[kept])


def largest_before(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    """Losses scaled by what the program has read from earlier batches of its own step."""
    largest = scene.memory.get("largest", 0.0)
    scene.memory["largest"] = max(largest, float(x.detach().max()))
    return scene.losses(x, y) * (1e-4 if largest > LARGE else 30.0)


def distinct_before(scene: Scene, x: Tensor, y: Tensor) -> Tensor:
    """The same with a length in the place of a number."""
    count = scene.memory.get("count", 0)
    scene.memory["count"] = count + len(x[x > LARGE])
    return scene.losses(x, y) * (1e-4 if count else 30.0)


def sums_of(
    program: Hostile, way: Callable[[Step, Losses], None], data: TensorDataset, *, physical_batch_size: int = 16
) -> tuple[list[Tensor], bool, str]:
    """Train without moving; return the noise-free sums, whether everything is called proven, and what is assumed."""
    torch.manual_seed(0)
    scene, sums = Scene(model=network(), memory={"data": data}), []
    optimizer, plan = SGD(scene.model.parameters(), lr=0.0), full_batch(LATE + 3)
    performance = Performance(physical_batch_size=physical_batch_size)
    with privatize(scene.model, optimizer, data, plan, performance=performance) as session:
        for step in session.steps():
            scene.step = step.index
            torch.manual_seed(100 + step.index)
            way(step, partial(program.program, scene))
            sums.append(step._clipped.flat.double())
            step.update()
        guarantee = session.guarantee()
    return sums, not guarantee.tried, "; ".join(guarantee.assumptions)


def test_there_are_many_different_hostile_programs() -> None:
    assert len({program.name for program in HOSTILE}) == len(HOSTILE)
    assert len(OPERATIONS) >= 70
    assert len(LATELY) >= 20
    assert len(DOORS) >= 27
    assert len(PLACES) >= 30
    assert len(WIDER) >= 20
    assert len(KINDS) >= 25
    assert len(DRAWS) >= 30
    assert len(BACKWARD) >= 20


@pytest.mark.filterwarnings(
    "ignore:Full backward hook is firing", "ignore:Anomaly Detection", "ignore:.torch.jit.script"
)
@pytest.mark.parametrize(("program", "way"), cases())
def test_a_program_that_is_called_proven_moves_the_sum_at_most_the_bound_for_one_record(
    program: Hostile, way: Callable[[Step, Losses], None]
) -> None:
    try:
        one, is_proven, assumed = sums_of(program, way, records())
        other, is_proven_too, _ = sums_of(program, way, records(without=program.removed))
    except UnsupportedModel:
        return
    if program.assumed:
        assert program.assumed in assumed
    elif is_proven and is_proven_too:
        moved = max(float((left - right).norm()) for left, right in zip(one, other, strict=True))
        assert moved <= BOUND * (1 + 1e-4), f"{moved:.2f} times the bound"


@pytest.mark.parametrize("way", [walked, accumulated])
@pytest.mark.parametrize("program", [largest_before, distinct_before])
def test_numbers_of_single_examples_do_not_reach_the_next_batch_through_python(
    program: Callable[..., Tensor], way: Callable[[Step, Losses], None]
) -> None:
    with pytest.raises(UnsupportedModel, match=f"reads numbers of the examples into Python .*in {program.__name__}"):
        sums_of(Hostile(program=program), way, records(), physical_batch_size=1)


@pytest.mark.parametrize("way", [walked, accumulated])
@pytest.mark.parametrize("program", [by_range, normalised_one_by_one, measured_after_the_losses])
def test_a_program_that_keeps_examples_apart_is_called_proven(
    program: Callable[..., Tensor], way: Callable[[Step, Losses], None]
) -> None:
    assert sums_of(Hostile(program=program), way, records())[1]
