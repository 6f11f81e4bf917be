"""Laws of tasks: what a model predicts, its loss, and the figures that measure it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from privet.datasets.tasks import Classes, Count, Number, PlainNumber, Several, Task
from privet.errors import ArgumentError

CLASSES = Classes(name="ill", class_names=("no", "yes"))
WEIGHTED = Classes(name="ill", class_names=("no", "yes"), weights=(0.5, 1.0), threshold=0.25)
NUMBER = Number(name="days", low=0.0, high=30.0)
COUNT = Count(name="visits", high=16.0)
SEVERAL = Several(parts=(CLASSES, NUMBER, COUNT))
TASKS: tuple[Task, ...] = (CLASSES, WEIGHTED, NUMBER, COUNT, SEVERAL, PlainNumber())


def outputs_for(task: Task, rows: int = 7) -> torch.Tensor:
    return torch.randn((rows, task.num_outputs), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)
def test_every_task_gives_one_loss_one_score_and_one_decision_per_example(task: Task) -> None:
    outputs, targets = outputs_for(task), task.made_up(7, torch.Generator().manual_seed(0))
    assert task.losses(outputs, targets).shape == (7,)
    assert all(values.shape == (7,) for values in task.scores(outputs, targets).values())
    assert all(len(values) == 7 for values in task.decisions(outputs).values())
    both = task.losses(outputs[[2, 5]], targets[[2, 5]])
    torch.testing.assert_close(both, task.losses(outputs, targets)[[2, 5]])


@pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)
def test_encoded_columns_have_the_shape_of_made_up_targets(task: Task) -> None:
    columns = [np.zeros(4) for _ in task.names]
    made_up = task.made_up(4, torch.Generator())
    assert task.encoded(columns).shape == made_up.shape
    assert task.encoded(columns).dtype == made_up.dtype


def test_weights_scale_the_loss_and_leave_the_figures() -> None:
    outputs, targets = outputs_for(CLASSES), torch.tensor([0, 1, 0, 1, 1, 0, 0])
    expected = functional.cross_entropy(outputs, targets, reduction="none") * torch.tensor([0.5, 1.0])[targets]
    torch.testing.assert_close(WEIGHTED.losses(outputs, targets), expected)
    torch.testing.assert_close(
        WEIGHTED.scores(outputs, targets)["cross entropy"], CLASSES.scores(outputs, targets)["cross entropy"]
    )


def test_a_threshold_decides_for_the_second_class_from_its_probability() -> None:
    outputs = torch.log(torch.tensor([[0.7, 0.3], [0.8, 0.2]]))
    assert list(WEIGHTED.decisions(outputs)["class"]) == ["yes", "no"]
    assert list(CLASSES.decisions(outputs)["class"]) == ["no", "no"]
    assert WEIGHTED.scores(outputs, torch.tensor([1, 0]))["accuracy"].tolist() == [True, True]


def test_numbers_are_learned_on_one_scale_and_told_in_their_own_units() -> None:
    wide, narrow = Number(name="x", low=0.0, high=30.0), Number(name="x", low=-1.0, high=1.0)
    outputs = torch.tensor([[0.5], [4.0]])
    torch.testing.assert_close(
        wide.losses(outputs, torch.tensor([[15.0], [30.0]])), narrow.losses(outputs, torch.tensor([[0.0], [1.0]]))
    )
    assert wide.decisions(outputs)["x"].tolist() == [22.5, 30.0]
    assert wide.scores(outputs, torch.tensor([[20.0], [10.0]]))["absolute error"].tolist() == [2.5, 20.0]


def test_the_poisson_loss_is_least_at_the_count_and_stays_finite() -> None:
    outputs = torch.linspace(-6, 6, 2_001).reshape(-1, 1)
    for count in (1.0, 5.0, 15.0):
        losses = COUNT.losses(outputs, torch.full_like(outputs, count))
        best = outputs[losses.argmin()].reshape(1, 1)
        assert COUNT.decisions(best)["visits"][0] == pytest.approx(count, rel=0.01)
        assert bool((losses[2:] - 2 * losses[1:-1] + losses[:-2] > -1e-4).all())  # convex
    assert bool(COUNT.losses(torch.tensor([[1e4]]), torch.tensor([[3.0]])).isfinite().all())


def test_several_targets_are_learned_with_equal_weight() -> None:
    outputs, targets = outputs_for(SEVERAL), SEVERAL.made_up(7, torch.Generator().manual_seed(0))
    each = [
        CLASSES.losses(outputs[:, :2], targets[:, 0]),
        NUMBER.losses(outputs[:, 2:3], targets[:, 1]),
        COUNT.losses(outputs[:, 3:], targets[:, 2]),
    ]
    torch.testing.assert_close(SEVERAL.losses(outputs, targets), torch.stack(each).mean(0))
    assert set(SEVERAL.decisions(outputs)) == {
        "ill: class", "ill: probability of no", "ill: probability of yes", "days", "visits",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Classes(class_names=("one",)), "two classes"),
        (lambda: Classes(class_names=("a", "b"), weights=(1.0,)), "one weight per class"),
        (lambda: Classes(class_names=("a", "b"), weights=(2.0, 1.0)), "weight of a class"),
        (lambda: Classes(class_names=("a", "b", "c"), threshold=0.2), "threshold decides between two"),
        (lambda: Number(name="x", low=1.0, high=1.0), "low < high"),
        (lambda: Count(name="x", high=float("inf")), "bound"),
        (lambda: Several(parts=(NUMBER,)), "at least two"),
    ],
)
def test_a_task_that_contradicts_itself_is_refused(build: object, words: str) -> None:
    assert callable(build)
    with pytest.raises(ArgumentError, match=words):
        build()
