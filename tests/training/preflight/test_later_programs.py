"""What a model does after its first batch is not taken on trust either: other programs, other orders, other weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import TensorDataset

from privet.errors import LoopError, UnsupportedModel, WeightsChanged
from privet.isolation.watch import Check, Waiver
from privet.training.performance import Performance
from privet.training.session import Step
from privet.training.start import privatize
from tests.gradients.zoo import HardGate, SelfConditioned
from tests.training.tools import examples, full_batch, losses_of, network, plain_sgd

Losses = Callable[..., Tensor]


def walked(step: Step, losses: Losses) -> None:
    for batch in step.microbatches():
        step.backward(losses(*batch))


def accumulated(step: Step, losses: Losses) -> None:
    step.accumulate(losses)


either_way = pytest.mark.parametrize("way", [walked, accumulated])


def train(
    model: nn.Module,
    losses: Losses,
    data: TensorDataset,
    way: Callable[[Step, Losses], None],
    *,
    size: int = 4,
    num_steps: int = 3,
    before: Callable[[int], None] = lambda index: None,
    waive: Sequence[Waiver] = (),
) -> None:
    plan, optimizer = full_batch(num_steps), plain_sgd(model)
    with privatize(
        model, optimizer, data, plan, performance=Performance(physical_batch_size=size), waive=waive
    ) as session:
        for step in session.steps():
            before(step.index)
            way(step, losses)
            step.update()


class Sorted(nn.Module):
    """Sorts its rows, computes, and sorts them back: right for every example, and read wrongly row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        order = lengths.argsort(descending=True, stable=True)
        found: Tensor = self.outer(self.inner(inputs[order]).tanh()[order.argsort()])
        return found


@either_way
def test_rows_that_are_sorted_by_their_data_and_back_are_followed(way: Any) -> None:
    torch.manual_seed(0)
    model = Sorted()
    lengths = torch.tensor([4, 3, 2, 1, 1, 4, 2, 3])  # the first batch comes in order, the second does not
    data = TensorDataset(torch.randn(8, 3), lengths)
    train(model, lambda x, n: model(x, n).square().sum(1), data, way)


class Selecting(nn.Module):
    """Computes on the tokens that count, and puts them back."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, inputs: Tensor, counts: Tensor) -> Tensor:
        out = torch.zeros(*inputs.shape[:2], 2)
        return out.masked_scatter(counts.unsqueeze(2), self.inner(inputs[counts])).square().sum((1, 2))


def test_tokens_selected_by_their_data_are_looked_at_in_every_batch() -> None:
    torch.manual_seed(0)
    model, counts = Selecting(), torch.ones(8, 2, dtype=torch.bool)
    counts[:4, 1] = False  # one token of each of the first four examples
    counts[4], counts[5, 0], counts[6, 0] = False, False, False  # as many tokens of the others, not one of each
    with pytest.raises(UnsupportedModel):
        train(model, model, TensorDataset(torch.randn(8, 2, 3), counts), walked)


class OnPackedRows(nn.Module):
    """A linear layer on the rows of a packed sequence, which lie in no fixed order."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
        rows = packed._replace(data=self.inner(packed.data))
        return pad_packed_sequence(rows, batch_first=True, total_length=inputs.shape[1])[0].square().sum((1, 2))


def test_rows_of_packed_sequences_are_looked_at_in_every_batch() -> None:
    torch.manual_seed(0)
    model = OnPackedRows()
    lengths = torch.tensor([2, 2, 2, 2, 3, 1, 3, 1])  # as many rows for each of the first four, not for the others
    with pytest.raises(UnsupportedModel):
        train(model, model, TensorDataset(torch.randn(8, 3, 3), lengths), walked)


@either_way
@pytest.mark.parametrize("weight", [1.0, 1e-4])
def test_a_gradient_that_is_part_of_the_loss_is_refused_by_name_however_small(weight: float, way: Any) -> None:
    model = network()

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        inputs = inputs.detach().clone().requires_grad_()
        found = losses_of(model)(inputs, labels)
        (slope,) = torch.autograd.grad(found.sum(), inputs, create_graph=True)
        return found + weight * slope.square().sum(1)

    with pytest.raises(UnsupportedModel, match="gradient is part of the loss"):
        train(model, losses, examples(), way)


@either_way
def test_a_term_that_mixes_examples_and_begins_later_is_refused(way: Any) -> None:
    model, started = network(), []

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        out = model(inputs)
        found = functional.cross_entropy(out, labels, reduction="none")
        return found + (out @ out.T).mean(1) if started else found

    with pytest.raises(UnsupportedModel, match="mixes"):
        train(model, losses, examples(), way, before=lambda index: started.extend([1] * index))
    assert started, "the first step passed"


@torch.library.custom_op("privet_tests::centred", mutates_args=(), schema="(Tensor rows) -> Tensor")
def centred(rows: Tensor) -> Tensor:
    """An operator of the user's own: it mixes examples, and no rule can tell."""
    return rows - rows.mean(0)


@torch.library.custom_op("privet_tests::unmoved", mutates_args=(), schema="(Tensor rows) -> Tensor")
def unmoved(rows: Tensor) -> Tensor:
    """One that does nothing."""
    return rows.clone()


unmoved.register_autograd(lambda ctx, grad: grad)


NO_EXPERIMENTS = Waiver(check=Check.EXPERIMENTS, because="the batch itself must show it")


@torch.library.custom_op("privet_tests::met", mutates_args=(), schema="(Tensor rows) -> Tensor")
def met(rows: Tensor) -> Tensor:
    """Another one, in the place of a product of all examples with all."""
    return rows @ rows.T @ rows


met.register_autograd(lambda ctx, grad: grad.mean(0, keepdim=True).expand_as(grad).contiguous())


def test_a_term_that_no_rule_knows_and_that_begins_later_is_refused_by_trial() -> None:
    model, started = network(), []

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        out = unmoved(model(inputs))
        found = functional.cross_entropy(out, labels, reduction="none")
        return found + met(out).mean(1) if started else found

    with pytest.raises(UnsupportedModel, match="mixes"):
        train(
            model, losses, examples(), walked, before=lambda index: started.extend([1] * index), waive=[NO_EXPERIMENTS]
        )
    assert started, "the first step passed"


centred.register_autograd(lambda ctx, grad: grad - grad.mean(0))
centring = pytest.mark.parametrize("centre", [lambda rows: rows - rows.mean(0), centred], ids=["by rule", "by trial"])


@centring
def test_examples_that_are_centred_later_are_refused_before_anything_is_added(
    centre: Callable[[Tensor], Tensor],
) -> None:
    """Mixing before the first parameter shows only at the examples themselves, so the batch is done again as leaves."""
    model, started, begun = network(), [], []

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        return losses_of(model)(centre(inputs) if started else inputs, labels)

    def note(index: int) -> None:
        begun.append(index)
        started.extend([True] * index)

    with pytest.raises(UnsupportedModel, match="mixes"):
        train(model, losses, examples(), accumulated, size=8, before=note, waive=[NO_EXPERIMENTS])
    assert begun == [0, 1]


def test_a_loop_of_ones_own_whose_examples_are_centred_later_is_refused_at_once() -> None:
    model, calls = network(), []

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        calls.append(1)
        return losses_of(model)(inputs - inputs.mean(0) if len(calls) > 2 else inputs, labels)

    with pytest.raises(UnsupportedModel, match="mixes"):
        train(model, losses, examples(), walked)
    assert len(calls) == 3


@centring
def test_a_head_of_zeros_does_not_pass_a_trial_for_good(centre: Callable[[Tensor], Tensor]) -> None:
    """No gradient flows below it, so nothing is found out; the noise of the first step wakes it."""
    model = network()
    with torch.no_grad():
        for value in model[2].parameters():
            value.zero_()

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        hidden = model[1](model[0](inputs))
        return functional.cross_entropy(model[2](centre(hidden)), labels, reduction="none")

    taken: list[int] = []
    with pytest.raises(UnsupportedModel, match="mixes"):
        train(model, losses, examples(), walked, size=8, before=taken.append, waive=[NO_EXPERIMENTS])
    assert max(taken) <= 1


class TimeFirst:
    """Items of ``[time, 3]`` that are joined as ``[time, batch, 3]``."""

    def __init__(self, num_steps: int) -> None:
        self.rows = torch.randn(8, num_steps, 3, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        return self.rows[index]


@pytest.mark.parametrize(
    ("num_steps", "way"),
    [(2, walked), (4, walked), (2, accumulated)],
    ids=["own loop", "own loop, as many steps as examples", "accumulated"],
)
@pytest.mark.parametrize("centres", [False, True])
def test_examples_that_come_second_may_not_mix_either(centres: bool, num_steps: int, way: Any) -> None:
    """A batch with as many rows as examples has its examples as rows: adding up steps of time then mixes them."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)

    def losses(*steps: Tensor) -> Tensor:
        inputs = steps[0] if len(steps) == 1 else torch.stack(list(steps))
        return model(inputs - inputs.mean(1, keepdim=True) if centres else inputs).square().sum((0, 2))

    def go() -> None:
        data, plan = TimeFirst(num_steps), full_batch(3)
        collate = lambda items: (torch.stack(items, 1),)  # noqa: E731
        # batches whose rows are steps of time cannot be made up
        vouched = [Waiver(check=Check.EXPERIMENTS, because="the trial on real batches does")]
        with privatize(
            model,
            plain_sgd(model),
            data,
            plan,
            performance=Performance(physical_batch_size=4),
            collate=collate,
            waive=vouched,
        ) as session:
            for step in session.steps():
                way(step, losses)
                step.update()

    if centres or num_steps == 4:
        with pytest.raises(UnsupportedModel, match="mixes"):
            go()
    else:
        go()


@either_way
def test_a_model_that_skips_layers_at_random_is_proven_and_its_steps_are_soon_done_once(way: Any) -> None:
    torch.manual_seed(0)
    layers, head, calls = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)]), nn.Linear(3, 2), []
    model = nn.ModuleList([layers, head])

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        calls.append(len(inputs))
        hidden = inputs
        for layer in layers:
            # a skipped layer still takes part, or training would only add noise to it
            hidden = layer(hidden).tanh() if torch.rand(()) < 0.5 else hidden + 0.01 * layer(hidden)
        return functional.cross_entropy(head(hidden), labels, reduction="none")

    with privatize(
        model, plain_sgd(model), examples(), full_batch(14), performance=Performance(physical_batch_size=8)
    ) as session:
        for step in session.steps():
            before = len(calls)
            way(step, losses)
            step.update()
            if step.index >= 10:
                assert sum(calls[before:]) == 8, "every example once, and nothing is repeated"
        assert not session.guarantee().tried


@either_way
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("build", [SelfConditioned, HardGate])
def test_what_is_detached_on_the_way_hides_no_layer(build: Callable[[], nn.Module], size: int, way: Any) -> None:
    """The examples are leaves during a trial, and what was computed from them and then detached is not."""
    torch.manual_seed(0)
    model = build()
    data = TensorDataset(torch.randn(8, 6), torch.arange(8) % 3)
    train(model, losses_of(model), data, way, size=size)


class Scaled(torch.autograd.Function):
    """A weight's own function, which no rule can look into."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return inputs @ weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        inputs, weight = ctx.saved_tensors
        return grad @ weight.T, 3.0 * inputs.T @ grad


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = Scaled.apply(inputs, self.weight)  # type: ignore[no-untyped-call]
        return found


@pytest.mark.parametrize("size", [1, 4])
def test_what_no_rule_can_observe_is_refused_also_one_example_at_a_time(size: int) -> None:
    torch.manual_seed(0)
    model = Custom()
    with pytest.raises(UnsupportedModel):
        train(model, losses_of(model), examples(), walked, size=size)


def test_one_example_at_a_time_may_leave_parts_of_a_model_idle() -> None:
    torch.manual_seed(0)
    experts = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)])

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(experts[int(labels[0])](inputs), labels, reduction="none")

    with pytest.raises(UnsupportedModel, match="reads numbers of the examples into Python"):
        train(experts, losses, examples(), walked, size=1)
    waiver = Waiver(check=Check.READS, because="a label chooses the expert of its own example and is not kept")
    train(experts, losses, examples(), walked, size=1, waive=[waiver])


class Writing(nn.Module):
    """Writes what it sees into itself, in one of many ways."""

    def __init__(self, write: Callable[[Writing, Tensor], None]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.write = nn.Linear(3, 2), write
        self.code = nn.Parameter(torch.zeros(3), requires_grad=False)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            self.write(self, inputs)
        found: Tensor = self.inner(inputs)
        return found


def into_a_buffers_data(model: Writing, inputs: Tensor) -> None:
    model.seen.data.copy_(inputs[0])


def into_a_frozen_parameter(model: Writing, inputs: Tensor) -> None:
    model.code.copy_(inputs[0])


def into_a_frozen_parameters_data(model: Writing, inputs: Tensor) -> None:
    model.code.data.copy_(inputs[0])


def into_a_weights_data(model: Writing, inputs: Tensor) -> None:
    model.inner.weight.data[0].copy_(inputs[0])


@either_way
@pytest.mark.parametrize(
    "write", [into_a_buffers_data, into_a_frozen_parameter, into_a_frozen_parameters_data, into_a_weights_data]
)
def test_a_forward_pass_that_writes_into_the_model_is_refused(write: Callable[..., None], way: Any) -> None:
    model = Writing(write)
    with pytest.raises(UnsupportedModel, match=r"changed|earlier batch|mixes"):
        train(model, losses_of(model), examples(), way)


@either_way
@pytest.mark.parametrize("first", [1, 2, 3, 4])
@pytest.mark.parametrize("write", [into_a_buffers_data, into_a_frozen_parameters_data, into_a_weights_data])
def test_a_forward_pass_that_begins_to_write_past_the_version_counters_is_refused_before_long(
    write: Callable[..., None], first: int, way: Any
) -> None:
    """Contents are compared at powers of two, so whoever begins after three steps is found after four at the latest."""
    steps, model = list[int](), Writing(lambda model, inputs: write(model, inputs) if steps[-1] >= first else None)
    steps.append(0)
    with pytest.raises((UnsupportedModel, WeightsChanged), match=r"changed|earlier batch|mixes"):
        train(model, losses_of(model), examples(), way, num_steps=9, before=steps.append)
    assert steps[-1] <= (first if first & (first - 1) == 0 else 4)


def unfrozen(model: nn.Sequential) -> Callable[[int], None]:
    def change(index: int) -> None:
        if index == 1:
            model[0].requires_grad_(True)

    return change


def test_a_layer_that_is_unfrozen_during_a_session_is_refused() -> None:
    """The optimizer would apply whatever gradient a user's own backward() left there, without noise."""
    model = network()
    model[0].requires_grad_(False)
    with pytest.raises(LoopError, match=r"0\.weight.*frozen or unfrozen"):
        train(model, losses_of(model), examples(), walked, before=unfrozen(model))


def test_a_layer_that_is_frozen_during_a_session_is_refused() -> None:
    model = network()
    with pytest.raises(LoopError, match="frozen or unfrozen"):
        train(
            model,
            losses_of(model),
            examples(),
            walked,
            before=lambda index: model[0].requires_grad_(index < 1) and None,
        )


def test_a_gradient_of_a_frozen_parameter_that_the_optimizer_holds_is_not_applied() -> None:
    model = network()
    model[0].requires_grad_(False)

    def leave_a_gradient(index: int) -> None:
        model[0].weight.grad = torch.ones_like(model[0].weight)

    with pytest.raises(LoopError, match="applied without noise"):
        train(model, losses_of(model), examples(), walked, before=leave_a_gradient)


def test_a_program_that_runs_on_no_made_up_batch_needs_the_users_word() -> None:
    model = network()

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        if not bool((inputs == inputs.round()).all()):
            raise ValueError("whole numbers only")
        return losses_of(model)(inputs, labels)

    data = TensorDataset(torch.randn(8, 3).mul(3).round(), examples().tensors[1])
    reads = Waiver(check=Check.READS, because="it only looks for fractions")
    with pytest.raises(UnsupportedModel, match="whole numbers only"):
        train(model, losses, data, accumulated, waive=[reads])
    experiments = Waiver(check=Check.EXPERIMENTS, because="made-up numbers have fractions")
    train(model, losses, data, accumulated, waive=[reads, experiments])


def _raise(*batch: Tensor) -> Tensor:
    raise ZeroDivisionError


@pytest.mark.parametrize("num_before", [0, 1, 4], ids=["first step", "second step", "fifth step"])
def test_a_step_that_was_given_up_is_no_verdict_on_the_program_of_the_next(num_before: int) -> None:
    model = network()
    losses = losses_of(model)
    data = examples()
    with privatize(model, plain_sgd(model), data, full_batch(num_before + 2)) as private:
        walk = private.steps()
        for _ in range(num_before):
            step = next(walk)
            step.accumulate(losses)
            step.update()
        step = next(walk)
        with pytest.raises(ZeroDivisionError):
            step.accumulate(_raise)
        private.give_up_step()
        for step in private.steps():
            step.accumulate(losses)
            step.update()
        assert private.steps_taken == num_before + 1


def test_experiments_that_a_given_up_step_failed_are_made_with_the_program_of_the_next() -> None:
    model = network()
    losses = losses_of(model)
    calls: list[int] = []

    def noted(x: Tensor, y: Tensor) -> Tensor:
        calls[-1] += 1
        return losses(x, y)

    with privatize(model, plain_sgd(model), examples(), full_batch(7)) as private:
        for step in private.steps():
            if step.index == 4:  # experiments are due at powers of two
                with pytest.raises(ZeroDivisionError):
                    step.accumulate(_raise)
                private.give_up_step()
                break
            step.accumulate(losses)
            step.update()
        for step in private.steps():
            calls.append(0)
            step.accumulate(noted)
            step.update()
    assert len(calls) == 2
    assert calls[0] > calls[1]
