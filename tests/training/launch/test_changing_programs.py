"""Loss functions whose Python changes from step to step train the same weights whether steps are recorded or not."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from privet import Adjacency, Gaussian, Performance, Plan, Threshold, Unit, privatize
from privet.sampling import FixedSize
from privet.training.launch.dry_run import DryRun
from privet.training.launch.replay import Automatic, Eager, Launch
from tests.training.launch.test_replay import _Plain, _PlainLaunch

EXAMPLES, WIDTH, CLASSES, BATCH, STEPS = 48, 6, 3, 8, 24
LossFunction = Callable[[Tensor, Tensor], Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 8), nn.Linear(8, 8)
        self.head, self.other_head = nn.Linear(8, CLASSES), nn.Linear(8, CLASSES)
        self.drop = nn.Dropout(0.2)
        self.factor = torch.ones(())
        self.last: Tensor | None = None

    def body(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.first(inputs))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(self.body(inputs)))) + 0 * self.other_head(self.body(inputs))


def losses_of(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits, labels, reduction="none")


Program = Callable[[Net, Callable[[], int], Counter[str]], LossFunction]
PROGRAMS: dict[str, Program] = {}


def program(build: Program) -> Program:
    PROGRAMS[build.__name__] = build
    return build


@program
def the_same(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    return lambda inputs, labels: losses_of(net(inputs), labels)


@program
def annealed_weight(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    return lambda inputs, labels: losses_of(net(inputs), labels) / (1 + step())


@program
def weight_of_a_schedule(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    return lambda inputs, labels: (0.5 ** (step() // 8)) * losses_of(net(inputs), labels)


@program
def heads_in_turn(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        counts["calls"] += 1
        head = net.head if step() % 2 else net.other_head
        return losses_of(head(net.second(net.body(inputs))) + 0 * net(inputs), labels)

    return losses


@program
def whole_number_that_grows(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        counts["calls"] += 1
        return losses_of(net(inputs) * (1 + step() // 9), labels)

    return losses


@program
def random_choice_of_layers(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        hidden = net.body(inputs)
        if random.random() < 0.5:
            hidden = torch.tanh(net.second(hidden))
        return losses_of(net.head(hidden) + 0 * net(inputs), labels)

    return losses


@program
def numpy_choice(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        head = (net.head, net.other_head)[np.random.choice(2)]
        return losses_of(head(net.body(inputs)) + 0 * net(inputs), labels)

    return losses


@program
def processor_choice(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        head = net.head if torch.rand(()).item() < 0.5 else net.other_head
        return losses_of(head(net.body(inputs)) + 0 * net(inputs), labels)

    return losses


@program
def dropout(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    return lambda inputs, labels: losses_of(net.head(net.drop(net.body(inputs))) + 0 * net(inputs), labels)


@program
def dropout_rate_that_changes(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        hidden = functional.dropout(net.body(inputs), 0.1 if step() < 9 else 0.4, training=True)
        return losses_of(net.head(hidden) + 0 * net(inputs), labels)

    return losses


@program
def evaluation_mode_from_some_step_on(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        hidden = functional.dropout(net.body(inputs), 0.2, training=step() < 9)
        return losses_of(net.head(hidden) + 0 * net(inputs), labels)

    return losses


@program
def label_smoothing(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        amount = 0.0 if step() < 10 else 0.1
        return functional.cross_entropy(net(inputs), labels, reduction="none", label_smoothing=amount)

    return losses


@program
def attribute_replaced(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        if step() in (6, 12):
            net.factor = torch.full((), 1.0 + step())
        return losses_of(net(inputs) * net.factor, labels)

    return losses


@program
def attribute_made_every_time(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    return lambda inputs, labels: losses_of(net(inputs) * torch.tensor(1.0 + (step() > 9)), labels)


@program
def hook_of_a_module(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        if step() == 7 and not net.first._forward_hooks:
            net.first.register_forward_hook(lambda module, args, output: 2 * output)
        return losses_of(net(inputs), labels)

    return losses


@program
def more_iterations(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        hidden = net.body(inputs)
        for _ in range(1 + step() // 8):
            hidden = torch.tanh(net.second(hidden))
        return losses_of(net.head(hidden) + 0 * net(inputs), labels)

    return losses


@program
def branch_without_gradients(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        with torch.set_grad_enabled(step() >= 9):
            hidden = net.second(net.body(inputs))
        return losses_of(net.head(hidden) + 0 * net(inputs), labels)

    return losses


@program
def detached_from_some_step_on(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        hidden = net.body(inputs)
        hidden = hidden.detach() if step() % 3 == 0 else hidden
        return losses_of(net.head(net.second(hidden)) + 0 * net(inputs), labels)

    return losses


@program
def autocast_from_some_step_on(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=step() >= 9):
            logits = net(inputs)
        return losses_of(logits.float(), labels)

    return losses


@program
def results_that_are_kept(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        logits = net(inputs)
        net.last = logits.detach()
        return losses_of(logits, labels)

    return losses


@program
def checkpointed(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        hidden = checkpoint(net.body, inputs, use_reentrant=False)
        hidden = checkpoint(lambda given: torch.tanh(net.second(given)), hidden, use_reentrant=False)
        return losses_of(net.head(hidden) + 0 * net(inputs), labels)

    return losses


@program
def checkpointed_from_some_step_on(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        hidden = net.body(inputs)
        if step() >= 9:
            hidden = checkpoint(lambda given: torch.tanh(net.second(given)), hidden, use_reentrant=False)
        return losses_of(net.head(hidden) + 0 * net(inputs), labels)

    return losses


@program
def written_in_place(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        hidden = net.first(inputs)
        hidden.mul_(1.0 if step() < 9 else 0.5).tanh_()
        return losses_of(net.head(net.second(hidden)) + 0 * net(inputs), labels)

    return losses


@program
def rows_chosen_by_their_numbers(net: Net, step: Callable[[], int], counts: Counter[str]) -> LossFunction:
    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        hidden = net.body(inputs)
        chosen = hidden[:, 0] > 0
        update = torch.zeros_like(hidden)
        update[chosen] = torch.tanh(net.second(hidden[chosen]))
        return losses_of(net.head(hidden + update) + 0 * net(inputs), labels)

    return losses


# Their programs never stay the same for long, or hold something that a recording cannot repeat.
NEVER_RECORDED = {
    "annealed_weight", "results_that_are_kept", "processor_choice", "rows_chosen_by_their_numbers",
}  # fmt: skip


@contextmanager
def _equal_draws() -> Iterator[None]:
    state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)
        try:
            yield
        finally:
            random.setstate(state)
            np.random.set_state(numpy_state)


def trained(build: Program, launch: Launch, device: str = "cpu") -> tuple[dict[str, Tensor], Net, Counter[str]]:
    with _equal_draws():
        net = Net().to(device)
        net.factor = net.factor.to(device)
        generator = torch.Generator().manual_seed(0)
        data = TensorDataset(
            torch.randn(EXAMPLES, WIDTH, generator=generator).to(device),
            torch.randint(0, CLASSES, (EXAMPLES,), generator=generator).to(device),
        )
        plan = Plan(
            sampling=FixedSize(batch_size=BATCH, steps=STEPS, dataset_size=EXAMPLES),
            clipping=Threshold(norm=0.5),
            noise=Gaussian(noise_multiplier=0.1),
            delta=1e-5,
            adjacency=Adjacency.REPLACE_ONE,
            unit=Unit.RECORD,
        )
        performance = Performance(physical_batch_size=BATCH, launch=launch)
        session = privatize(net, torch.optim.SGD(net.parameters(), lr=0.5), data, plan, performance=performance, seed=3)
        index = 0
        counts = Counter[str]()
        losses = build(net, lambda: index, counts)
        with session:
            for step in session.steps():
                index = step.index
                step.accumulate(losses)
                step.update()
        return net.state_dict(), net, counts


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loss_function_whose_python_changes_trains_the_same_weights(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = _Plain()
    with caplog.at_level(logging.WARNING, logger="privet"):
        found, net, counts = trained(PROGRAMS[name], _PlainLaunch(recorder, warm_up=2, max_recordings=8))
    wanted, other, other_counts = trained(PROGRAMS[name], Eager())
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-6)
    assert counts == other_counts, "the Python of a loss function runs once for each batch"
    if net.last is not None and other.last is not None:
        torch.testing.assert_close(net.last, other.last, rtol=1e-5, atol=1e-6)
    assert (recorder.runs > 0) == (name not in NEVER_RECORDED), caplog.text


@pytest.mark.parametrize(
    "name", ["the_same", "attribute_replaced", "attribute_made_every_time", "processor_choice", "numpy_choice"]
)
def test_small_tensors_of_another_device_are_compared_by_value(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # numbers without an axis play those of a processor beside a device
    monkeypatch.setattr(DryRun, "_is_on_device", lambda self, value: isinstance(value, Tensor) and value.dim() > 0)
    recorder = _Plain()
    found, _, _ = trained(PROGRAMS[name], _PlainLaunch(recorder, warm_up=2, max_recordings=8))
    wanted, _, _ = trained(PROGRAMS[name], Eager())
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-6)
    assert recorder.runs > 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_a_device_the_default_launch_trains_the_same_weights(name: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    found, _, counts = trained(PROGRAMS[name], Automatic(), "cuda")
    wanted, _, other_counts = trained(PROGRAMS[name], Eager(), "cuda")
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-4)
    assert counts == other_counts
