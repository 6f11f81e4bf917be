"""What would train past the noise is refused: optimizers, loaders, buffers and gradients left lying about."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, SparseAdam
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

from privet.errors import ArgumentError, DataError, LoopError, PlanError, UnsupportedModel
from privet.training.performance import Performance
from privet.training.session import Step
from privet.training.start import privatize
from privet.training.trained import check_optimizer
from tests.training.tools import (
    examples,
    flat,
    flat_gradient,
    full_batch,
    losses_of,
    network,
    plain_sgd,
    run,
    take_steps,
    walk,
)


class Stream(IterableDataset[Tensor]):
    def __iter__(self):  # type: ignore[no-untyped-def]
        yield torch.zeros(3)


@pytest.mark.parametrize(
    "dataset",
    [
        DataLoader(examples(), batch_size=2),
        DataLoader(examples(), sampler=WeightedRandomSampler([1.0] * 8, 8)),
        Stream(),
        iter([torch.zeros(3)]),
        None,
    ],
    ids=["loader", "loader with its own sampler", "stream", "iterator", "none"],
)
def test_data_that_cannot_be_sampled_by_index_is_refused_with_advice(dataset: object) -> None:
    model = network()
    with pytest.raises(DataError, match="Pass "):
        privatize(model, plain_sgd(model), dataset, full_batch())  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, -1, 2.0, True, None])
def test_a_physical_batch_size_that_is_no_count_is_refused(size: object) -> None:
    model = network()
    with pytest.raises(ArgumentError, match="physical_batch_size"):
        privatize(model, plain_sgd(model), examples(), full_batch(), performance=Performance(physical_batch_size=size))  # type: ignore[arg-type]


def test_an_optimizer_for_sparse_gradients_is_refused() -> None:
    model = network()
    with pytest.raises(PlanError, match=r"SparseAdam.*Use Adam"):
        privatize(model, SparseAdam(list(model.parameters())), examples(), full_batch())


def test_lbfgs_is_refused() -> None:
    model = network()
    with pytest.raises(PlanError, match="LBFGS"):
        privatize(model, LBFGS(model.parameters()), examples(), full_batch())


def test_an_optimizer_that_lacks_a_parameter_is_refused_by_name() -> None:
    model = network()
    optimizer = SGD([model[0].weight, model[2].weight, model[2].bias], lr=0.1)
    with pytest.raises(PlanError, match=r"'0\.bias'"):
        privatize(model, optimizer, examples(), full_batch())


def test_an_optimizer_with_foreign_parameters_is_refused() -> None:
    model, other = network(), nn.Linear(2, 2)
    with pytest.raises(PlanError, match="2 parameter"):
        privatize(model, SGD([*model.parameters(), *other.parameters()], lr=0.1), examples(), full_batch())


def test_frozen_parameters_may_be_in_or_out_of_the_optimizer_and_never_move() -> None:
    for held in (True, False):
        model = network()
        model[0].requires_grad_(False)
        before = [value.clone() for value in model[0].parameters()]
        optimizer = SGD(model.parameters() if held else model[2].parameters(), lr=0.5)
        check_optimizer(model, optimizer)
        with privatize(model, optimizer, examples(), full_batch()) as session:
            run(session, model)
        assert all(torch.equal(old, new) for old, new in zip(before, model[0].parameters(), strict=True))


def test_a_model_without_trainable_parameters_is_refused() -> None:
    model = network()
    optimizer = plain_sgd(model)
    model.requires_grad_(False)
    with pytest.raises(PlanError, match="no trainable parameter"):
        privatize(model, optimizer, examples(), full_batch())


def test_a_step_of_the_optimizer_outside_an_update_is_refused() -> None:
    model = network()
    optimizer = plain_sgd(model)
    before = flat(model)
    with privatize(model, optimizer, examples(), full_batch()) as session:
        with pytest.raises(LoopError, match="outside a private step"):
            optimizer.step()
        step = next(session.steps())
        for inputs, labels in step.microbatches():
            step.backward(losses_of(model)(inputs, labels))
            with pytest.raises(LoopError, match="outside a private step"):
                optimizer.step()
        assert torch.equal(flat(model), before)
        step.update()
        after = flat(model)
        with pytest.raises(LoopError, match="outside a private step"):
            optimizer.step()
        assert torch.equal(flat(model), after)


def test_a_step_with_a_closure_is_refused_before_the_closure_runs() -> None:
    model = network()
    optimizer = plain_sgd(model)
    with privatize(model, optimizer, examples(), full_batch()), pytest.raises(LoopError):
        optimizer.step(lambda: pytest.fail("the closure ran"))


def test_a_gradient_scaler_cannot_step_the_optimizer() -> None:
    model = network()
    optimizer, scaler = plain_sgd(model), torch.amp.GradScaler("cpu")
    before = flat(model)
    with privatize(model, optimizer, examples(), full_batch()):
        inputs, labels = examples().tensors
        scaler.scale(losses_of(model)(inputs, labels).mean()).backward()
        with pytest.raises(LoopError, match=r"[Gg]radient scalers"):
            scaler.step(optimizer)
    assert torch.equal(flat(model), before)


def test_an_ordinary_backward_pass_inside_the_loop_changes_nothing() -> None:
    model, same = network(), network()
    for network_, disturbed in ((model, True), (same, False)):
        with privatize(network_, plain_sgd(network_), examples(), full_batch(), seed=3) as session:
            for step in session.steps():
                for inputs, labels in step.microbatches():
                    losses = losses_of(network_)(inputs, labels)
                    if disturbed:
                        losses.sum().backward(retain_graph=True)
                    step.backward(losses)
                step.update()
    assert torch.equal(flat(model), flat(same))


def test_the_optimizer_is_free_again_after_the_session() -> None:
    model = network()
    optimizer = plain_sgd(model)
    with pytest.raises(RuntimeError, match="stop"), privatize(model, optimizer, examples(), full_batch()):
        raise RuntimeError("stop")
    assert not optimizer._optimizer_step_pre_hooks
    optimizer.step()


def test_the_optimizer_is_free_again_when_entering_fails() -> None:
    class Failing:
        def start(self, model: object, parameters: object, layout: object, watch: object) -> None:
            raise UnsupportedModel("not today")

    model = network()
    optimizer = plain_sgd(model)
    session = privatize(model, optimizer, examples(), full_batch(), performance=Performance(engine=Failing()))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModel, match="not today"), session:
        pass
    assert not optimizer._optimizer_step_pre_hooks


def test_the_model_keeps_its_class_keys_and_hooks() -> None:
    model = network()
    kind, keys, attributes = type(model), list(model.state_dict()), set(vars(model))
    with privatize(model, plain_sgd(model), examples(), full_batch()) as session:
        run(session, model)
    assert (type(model), list(model.state_dict()), set(vars(model))) == (kind, keys, attributes)
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._backward_hooks
    assert all(not value._backward_hooks for value in model.parameters())


def test_no_gradient_is_there_before_the_first_update() -> None:
    model = network()
    losses_of(model)(*examples().tensors).sum().backward()
    with privatize(model, plain_sgd(model), examples(), full_batch()) as session:
        assert all(value.grad is None for value in model.parameters())
        step = next(session.steps())
        walk(step, model)
        assert all(value.grad is None for value in model.parameters())
        step.update()
        assert all(value.grad is not None for value in model.parameters())


def test_a_gradient_never_holds_a_sum_without_noise() -> None:
    """After the first update a gradient is set; what the next step sums up must not show through it."""
    model = network()
    with privatize(
        model, plain_sgd(model), examples(), full_batch(), performance=Performance(physical_batch_size=3)
    ) as session:
        run(session, model, at_most=1)
        released = flat_gradient(model).clone()
        for step in session.steps():
            for inputs, labels in step.microbatches():
                step.backward(losses_of(model)(inputs, labels))
                seen = flat_gradient(model)
                assert len(seen) == 0 or torch.equal(seen, released)
            break


def test_after_a_broken_step_the_optimizer_has_no_secret_gradient_to_apply() -> None:
    model = network()
    optimizer = plain_sgd(model)
    with privatize(model, optimizer, examples(), full_batch()) as session:
        run(session, model, at_most=1)
        released, before = flat_gradient(model).clone(), flat(model)
        walk(next(session.steps()), model)
    optimizer.step()
    moved = before - flat(model)
    assert torch.equal(moved, torch.zeros_like(moved)) or torch.allclose(moved, 0.5 * released, atol=1e-7)


class Averaging(nn.Module):
    """Keeps an average of what it has seen, in one of the ways people write that."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.layer, self.in_place = nn.Linear(3, 2), in_place
        self.register_buffer("average", torch.zeros(3))

    def forward(self, inputs: Tensor) -> Tensor:
        fresh = inputs.detach().mean(0)
        if self.in_place:
            self.average.mul_(0.9).add_(fresh, alpha=0.1)
        else:
            self.average = 0.9 * self.average + 0.1 * fresh
        return self.layer(inputs)


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "by assignment"])
def test_a_forward_pass_that_changes_a_buffer_is_refused_by_name(in_place: bool) -> None:
    model = Averaging(in_place=in_place)
    with (
        pytest.raises(UnsupportedModel, match="average"),
        privatize(model, plain_sgd(model), examples(), full_batch()) as session,
    ):
        run(session, model)


def test_a_second_forward_pass_that_changes_a_buffer_is_refused() -> None:
    class Switched(Averaging):
        learns = False

        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) if self.learns else self.layer(inputs)

    model = Switched(in_place=True)

    def look_again(step: Step) -> None:
        for inputs, labels in step.microbatches():
            step.backward(losses_of(model)(inputs, labels))
            model.learns = True
            model(inputs)
            model.learns = False
        step.update()

    session = privatize(
        model, plain_sgd(model), examples(), full_batch(), performance=Performance(physical_batch_size=4)
    )
    with pytest.raises(UnsupportedModel, match="average"):
        take_steps(session, look_again)


def test_a_buffer_that_stays_as_it_is_does_no_harm() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)
            self.register_buffer("scale", torch.full((3,), 0.5))

        def forward(self, inputs: Tensor) -> Tensor:
            return self.layer(inputs * self.scale)

    model = Scaled()
    with privatize(model, plain_sgd(model), examples(), full_batch()) as session:
        assert run(session, model) == 3


def test_a_data_set_of_plain_lists_can_be_sampled() -> None:
    items = list(zip(*examples().tensors, strict=True))
    model, same = network(), network()
    for network_, dataset in ((model, items), (same, TensorDataset(*examples().tensors))):
        with privatize(network_, plain_sgd(network_), dataset, full_batch(), seed=1) as session:
            run(session, network_)
    assert torch.equal(flat(model), flat(same))
