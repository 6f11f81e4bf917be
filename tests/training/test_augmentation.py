"""Several views of a record: one record still, in every engine and whatever the physical batch size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from privet.datasets.arrays import ArrayDataset
from privet.errors import ArgumentError, DataError, UnsupportedModel
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.clipper import Clipper
from privet.gradients.engines.engine import Engine
from privet.gradients.engines.functional import Functional
from privet.gradients.forms.per_example import PerExample
from privet.training.augmentation import ShiftAndFlip, Views, mean_over_views
from privet.training.performance import Performance
from privet.training.start import privatize
from tests.gradients.reference import trainable
from tests.training.tools import flat_gradient, full_batch

ENGINES: dict[str, Engine] = {
    "book-keeping": BookKeeping(),
    "functional": Functional(),
    "functional in chunks": Functional(chunk_size=2),
}
each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
NORM = 0.5


def images(num: int = 6) -> ArrayDataset:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(num, 3, 8, 8, generator=generator, dtype=torch.float64)
    return ArrayDataset(features=features, labels=torch.randint(0, 4, (num,), generator=generator))


def convolutions() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 4)).double()


def spread(inputs: Tensor) -> Tensor:
    """Transform every row in its own way, the same at every call."""
    size = (1 + torch.arange(len(inputs)) % 7).view(-1, 1, 1, 1).to(inputs.dtype)
    return inputs * size + torch.sin(size)


def clipped_sum(views: Views, engine: Engine, physical_batch_size: int, *, scale: float = 1.0) -> Tensor:
    """The gradient that a session writes, times its divisor, with noise far below rounding."""
    model = convolutions()
    plan = full_batch(1, norm=NORM, noise_multiplier=1e-13)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with privatize(
        model, optimizer, views, plan, performance=Performance(engine=engine, physical_batch_size=physical_batch_size)
    ) as session:
        for step in session.steps():
            step.accumulate(
                mean_over_views(lambda x, y: scale * functional.cross_entropy(model(x), y, reduction="none"))
            )
            step.update()
    return flat_gradient(model) * plan.sampling.expected_batch_size


def by_hand(views: Views) -> Tensor:
    """Average the gradients of a record's views, clip the average, add up."""
    model = convolutions()
    parameters = [value for _, value in trainable(model)]
    inputs, labels = views.take(torch.arange(len(views)))
    total = torch.zeros(sum(value.numel() for value in parameters), dtype=torch.float64)
    for record, label in zip(inputs, labels, strict=True):
        mean = torch.zeros_like(total)
        for view in record:
            loss = functional.cross_entropy(model(view.unsqueeze(0)), label.unsqueeze(0))
            mean += torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, parameters)]) / len(record)
        total += mean * min(1.0, NORM / float(mean.norm()))
    return total


@each_engine
@pytest.mark.parametrize("num_views", [1, 3, 6])
def test_views_are_averaged_before_clipping(engine: Engine, num_views: int) -> None:
    # the views of a record, not of its place in a batch, so that physical batches can be compared
    views = Views(dataset=images(), transform=lambda x: x, num_views=num_views)
    shifted = Views(dataset=images(), transform=_by_view(num_views), num_views=num_views)
    for one in (views, shifted):
        expected = by_hand(one)
        for physical_batch_size in (1, 2, 4, 6):
            found = clipped_sum(one, engine, physical_batch_size)
            assert torch.allclose(found, expected, rtol=1e-8, atol=1e-9), physical_batch_size


def _by_view(num_views: int):  # type: ignore[no-untyped-def]
    def transform(inputs: Tensor) -> Tensor:
        which = (torch.arange(len(inputs)) % num_views).view(-1, 1, 1, 1).to(inputs.dtype)
        return inputs * (1 + which) + torch.sin(which)

    return transform


@each_engine
@pytest.mark.parametrize("num_views", [1, 4, 16])
def test_a_record_moves_the_sum_at_most_the_sensitivity_however_many_its_views(engine: Engine, num_views: int) -> None:
    # so steep that every gradient is clipped
    for size in (1, 2):
        views = Views(dataset=images(size), transform=spread, num_views=num_views)
        found = clipped_sum(views, engine, size, scale=1e3)
        assert float(found.norm()) <= size * NORM * (1 + 1e-9)
    alone = clipped_sum(Views(dataset=images(1), transform=spread, num_views=num_views), engine, 1, scale=1e3)
    assert float(alone.norm()) == pytest.approx(NORM)


@each_engine
def test_no_gradient_of_a_single_view_is_kept(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    take = Clipper.take

    def noted(self: Clipper, position: int, part: PerExample, *, is_foreseen: bool = False) -> None:
        lengths.append(len(part))
        take(self, position, part, is_foreseen=is_foreseen)

    monkeypatch.setattr(Clipper, "take", noted)
    clipped_sum(Views(dataset=images(), transform=spread, num_views=5), engine, 6)
    assert set(lengths) == {4, 2}, "the records of both parts that a first batch is cut in, not their views"


def test_views_cost_nothing_more_and_leave_the_number_of_records() -> None:
    views = Views(dataset=images(), transform=spread, num_views=5)
    assert len(views) == 6
    inputs, label = views[2]
    assert inputs.shape == (5, 3, 8, 8)
    assert int(label) == int(images()[2][1])


def test_data_sets_without_batched_reading_give_the_same_views() -> None:
    arrays = images()
    indices = torch.tensor([4, 1])
    batched = Views(dataset=arrays, transform=spread, num_views=3).take(indices)
    plain = Views(dataset=TensorDataset(arrays.features, arrays.labels), transform=spread, num_views=3).take(indices)
    assert all(torch.equal(one, other) for one, other in zip(batched, plain, strict=True))


def test_a_loss_that_mixes_the_views_of_two_records_is_refused() -> None:
    views = Views(dataset=images(), transform=spread, num_views=2)
    for engine in (BookKeeping(), Functional()):
        model = convolutions()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with privatize(model, optimizer, views, full_batch(1), performance=Performance(engine=engine)) as session:
            step = next(session.steps())
            for inputs, labels in step.microbatches():
                losses = functional.cross_entropy(
                    model(inputs.flatten(0, 1)), labels.repeat_interleave(2), reduction="none"
                )
                with pytest.raises(UnsupportedModel, match="mixes"):
                    step.backward(losses.roll(1).view(-1, 2).mean(1))
                break


def test_shifts_are_shifts_and_flips_are_flips() -> None:
    torch.manual_seed(0)
    picture = torch.arange(64.0).view(1, 1, 8, 8)
    padded = functional.pad(picture, (2,) * 4, mode="reflect")[0, 0]
    allowed = [padded[y : y + 8, x : x + 8] for y in range(5) for x in range(5)]
    allowed += [view.flip(1) for view in allowed]
    seen: set[int] = set()
    for view in ShiftAndFlip(max_shift=2)(picture.expand(400, 1, 8, 8)):
        matches = [place for place, one in enumerate(allowed) if torch.equal(one, view[0])]
        assert len(matches) == 1
        seen.update(matches)
    assert seen == set(range(50))


def test_no_shift_and_no_flip_change_nothing() -> None:
    picture = torch.randn(3, 2, 5, 7)
    assert torch.equal(ShiftAndFlip(max_shift=0, flip=False)(picture), picture)


def test_what_cannot_be_viewed_is_refused() -> None:
    with pytest.raises(ArgumentError, match="num_views"):
        Views(dataset=images(), transform=spread, num_views=0)
    with pytest.raises(ArgumentError, match="transform"):
        Views(dataset=images(), transform=None, num_views=2)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="images"):
        ShiftAndFlip()(torch.zeros(3, 4))
    with pytest.raises(ArgumentError, match="max_shift"):
        ShiftAndFlip(max_shift=-1)
    with pytest.raises(DataError, match="first entry is a tensor"):
        Views(dataset=[1.0, 2.0], transform=spread, num_views=2)[0]
    with pytest.raises(DataError, match="one for each"):
        Views(dataset=images(), transform=lambda x: x[:1], num_views=2)[0]
