"""Nothing but a private step moves the weights: every other way is found, and nothing is promised afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim import SGD, Adam, Optimizer

from privet.accounting.ledger import Ledger
from privet.errors import LedgerMismatch, UnsupportedModel, WeightsChanged
from privet.federated.party_sums import PartySums, Records
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.engine import Engine
from privet.gradients.engines.functional import Functional
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout
from privet.runs.ledger_check import check_ledger
from privet.training.classifier import PrivateClassifier
from privet.training.performance import Performance
from privet.training.session import Session, Step
from privet.training.start import privatize
from privet.training.weight_watch import device_pages, fingerprints
from privet.training.weight_watch.device_pages import DeviceComparison
from privet.vocabulary import Adjacency, Unit
from tests.training.tools import CPU, examples, full_batch, losses_of, network, plain_sgd, run, walk

ENGINES = pytest.mark.parametrize("engine", [BookKeeping(), Functional()], ids=["book-keeping", "functional"])


def accumulate(step: Step, model: nn.Module) -> None:
    step.accumulate(losses_of(model))


LOOPS = pytest.mark.parametrize("pass_over", [walk, accumulate], ids=["microbatches", "accumulate"])


class Net(nn.Module):
    """A network with a buffer, a frozen layer and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.middle.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.register_buffer("scale", torch.full((4,), 0.5))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.frozen(torch.tanh(self.first(inputs))) * self.scale
        found: Tensor = self.last(self.tied(self.middle(hidden)))
        return found


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [value for value in model.parameters() if value.requires_grad]


def begin(
    model: nn.Module, optimizer: Optimizer | None = None, *, steps: int = 7, engine: Engine | None = None, **more: Any
) -> Session:
    chosen = optimizer or SGD(trained(model), lr=0.5, momentum=0.9)
    performance = Performance(physical_batch_size=5, engine=engine or BookKeeping())
    return privatize(model, chosen, examples(), full_batch(steps), performance=performance, **more)


def by_another_optimizer(model: Net) -> None:
    other = Adam(trained(model), lr=0.1)
    losses_of(model)(*examples().tensors).mean().backward()
    other.step()
    other.zero_grad()


def by_data(model: Net) -> None:
    model.last.weight.data[0, 0] += 1.0


def by_a_numpy_alias(model: Net) -> None:
    model.last.weight.detach().numpy()[0, 0] += 1.0


def by_its_last_bit(model: Net) -> None:
    model.first.weight.data.view(torch.int32)[0, 0] ^= 1


def by_a_permutation(model: Net) -> None:
    model.first.weight.data.copy_(model.first.weight.data.flip(0))


def by_signs(model: Net) -> None:
    model.first.weight.data[0, :2].neg_()


def by_changes_that_cancel(model: Net) -> None:
    model.first.bias.data[0] += 1.0
    model.first.bias.data[1] -= 1.0


def by_foreach(model: Net) -> None:
    torch._foreach_mul_([value.data for value in model.parameters()], 0.5)


def by_set(model: Net) -> None:
    model.last.weight.data.set_(model.last.weight.data.clone().t().contiguous().t() + 1.0)
    model.last.weight.data = torch.ones_like(model.last.weight)


def by_its_storage(model: Net) -> None:
    model.last.weight.untyped_storage().copy_(torch.ones(8).untyped_storage())


def by_a_transposed_view(model: Net) -> None:
    model.middle.weight.data = model.middle.weight.data.t()


def by_a_negative_view(model: Net) -> None:
    model.middle.weight.data = torch._neg_view(model.middle.weight.data)


def by_load_state_dict(model: Net) -> None:
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})


def by_assignment(model: Net) -> None:
    model.last.weight = nn.Parameter(torch.ones(2, 4))


def by_a_new_module(model: Net) -> None:
    model.last = nn.Linear(4, 2)


def by_an_added_buffer(model: Net) -> None:
    model.register_buffer("rows", torch.zeros(3, 3))


def by_parametrizing(model: Net) -> None:
    parametrize.register_parametrization(model.last, "weight", nn.Identity())


def by_a_frozen_weight(model: Net) -> None:
    with torch.no_grad():
        model.frozen.weight[0] = examples()[0][0][0]


def by_a_buffer(model: Net) -> None:
    model.scale.data[1] = examples()[0][0][0]


def by_swapped_tensors(model: Net) -> None:
    torch.utils.swap_tensors(model.last.bias, nn.Parameter(torch.ones_like(model.last.bias)))


def by_swapped_frozen_tensors(model: Net) -> None:
    weight = nn.Parameter(torch.ones_like(model.frozen.weight), requires_grad=False)
    torch.utils.swap_tensors(model.frozen.weight, weight)
    torch.utils.swap_tensors(model.scale, torch.full_like(model.scale, 2.0))


WAYS = [
    by_another_optimizer,
    by_data,
    by_a_numpy_alias,
    by_its_last_bit,
    by_a_permutation,
    by_signs,
    by_changes_that_cancel,
    by_foreach,
    by_set,
    by_its_storage,
    by_a_transposed_view,
    by_a_negative_view,
    by_load_state_dict,
    by_assignment,
    by_a_new_module,
    by_an_added_buffer,
    by_parametrizing,
    by_a_frozen_weight,
    by_a_buffer,
    by_swapped_tensors,
    by_swapped_frozen_tensors,
]
each_way = pytest.mark.parametrize("change", WAYS, ids=lambda way: way.__name__)


def train(session: Session, pass_over: Callable[..., None], between: Callable[[int], None]) -> None:
    with session:
        for step in session.steps():
            pass_over(step, session.model)
            step.update()
            between(session.steps_taken)


def inside(session: Session, body: Callable[[], None]) -> None:
    with session:
        body()


def after(number: int, change: Callable[[Net], None], model: Net) -> Callable[[int], None]:
    return lambda taken: change(model) if taken == number else None


@each_way
def test_a_change_between_two_steps_is_refused_and_nothing_is_promised(change: Callable[[Net], None]) -> None:
    model = Net()
    session = begin(model)
    with pytest.raises(WeightsChanged, match=r"public_change"):
        train(session, walk, after(3, change, model))
    assert session.steps_taken == 3
    found = session.guarantee()
    assert any("no private step" in reason for reason in found.not_private_because)
    assert "NOT PRIVATE" in str(found)


@ENGINES
@LOOPS
@pytest.mark.parametrize(("number", "change"), [(1, by_data), (5, by_another_optimizer), (7, by_data)])
def test_a_change_is_found_after_every_step_in_both_loops_and_with_both_engines(
    engine: Engine, pass_over: Callable[..., None], number: int, change: Callable[[Net], None]
) -> None:
    model = Net()
    session = begin(model, engine=engine)
    with pytest.raises(WeightsChanged):
        train(session, pass_over, after(number, change, model))
    assert session.guarantee().not_private_because


@each_way
def test_a_session_in_which_another_optimizer_does_all_the_training_promises_nothing(
    change: Callable[[Net], None],
) -> None:
    """As trainers do that make an optimizer of their own."""
    model = Net()
    session = begin(model)
    with pytest.raises(WeightsChanged), session:
        change(model)
    assert session.guarantee().not_private_because


def test_a_guarantee_that_is_asked_for_within_the_session_looks_first() -> None:
    model = Net()
    session = begin(model)

    def ask() -> None:
        run(session, model, at_most=3)
        assert not session.guarantee().not_private_because
        by_another_optimizer(model)
        with pytest.raises(WeightsChanged, match=r"another optimizer"):
            session.guarantee()
        assert session.guarantee().not_private_because

    with pytest.raises(LedgerMismatch):
        inside(session, ask)


def test_the_error_names_the_tensor_and_what_usually_does_it() -> None:
    expected = {
        by_another_optimizer: "first.weight.*another optimizer",
        by_data: r"\['last\.weight'\].*\.data",
        by_set: r"\['last\.weight'\].*p\.data",
        by_assignment: r"\['last\.weight'\].*assigning",
        by_a_buffer: r"\['scale'\].*\.data",
        by_load_state_dict: r"load_state_dict",
    }
    for change, words in expected.items():
        model = Net()
        with pytest.raises(WeightsChanged, match=words):
            train(begin(model), walk, after(3, change, model))


def test_the_other_optimizers_state_may_not_be_written_either() -> None:
    """Momentum is carried into the weights by the next step."""
    for write in (lambda kept: kept.add_(1.0), lambda kept: kept.data.add_(1.0)):
        model = Net()
        session = begin(model)

        def disturb(taken: int, session: Session = session, write: Any = write, model: Net = model) -> None:
            if taken == 3:
                write(session.optimizer.state[model.last.weight]["momentum_buffer"])

        with pytest.raises(WeightsChanged, match=r"optimizer's state of last\.weight"):
            train(session, walk, disturb)


class Writing(nn.Module):
    """Writes what it sees into a buffer from some step on, past torch's counters."""

    def __init__(self, *, uses: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.writes, self.uses = nn.Linear(3, 2), False, uses
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.writes:
            self.seen.data.copy_(inputs.detach()[0])
        if self.uses:
            inputs = inputs + 0.1 * self.seen
        found: Tensor = self.inner(inputs)
        return found


@LOOPS
@pytest.mark.parametrize("number", [1, 3, 4, 6])
@pytest.mark.parametrize(
    ("uses", "pattern"),
    [
        (False, "seen|mixes the examples of a batch"),
        (True, r"seen|'add' \(test_weights\.py:\d+, in forward\) mixes the examples|mixes the examples of a batch"),
    ],
)
def test_a_forward_pass_that_writes_through_data_at_a_later_step_is_refused(
    pass_over: Callable[..., None], number: int, uses: bool, pattern: str
) -> None:
    """The rules see what the losses depend on; the watch of the weights sees what is merely written."""
    model = Writing(uses=uses)
    session = begin(model, plain_sgd(model))

    def wake(taken: int) -> None:
        object.__setattr__(model, "writes", taken == number)

    with pytest.raises((UnsupportedModel, WeightsChanged), match=pattern):
        train(session, pass_over, wake)
    assert session.steps_taken == number
    assert session.guarantee().not_private_because


class WritingThroughNumpy(nn.Module):
    """Writes a record that it holds into a buffer from some step on, by no operation of torch."""

    def __init__(self, record: Tensor) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.writes, self.record = nn.Linear(3, 2), False, record.numpy()
        self.register_buffer("seen", torch.zeros(3))
        self.memory = self.seen.numpy()

    def forward(self, inputs: Tensor) -> Tensor:
        if self.writes:
            self.memory[:] = self.record
        found: Tensor = self.inner(inputs)
        return found


@LOOPS
@pytest.mark.parametrize("number", [1, 3, 4, 6])
def test_a_forward_pass_that_writes_by_no_operation_of_torch_is_refused_before_its_update(
    pass_over: Callable[..., None], number: int
) -> None:
    model = WritingThroughNumpy(torch.ones(3))
    session = begin(model, plain_sgd(model))

    def wake(taken: int) -> None:
        object.__setattr__(model, "writes", taken == number)

    with pytest.raises((UnsupportedModel, WeightsChanged), match="seen"):
        train(session, pass_over, wake)
    assert session.steps_taken == number
    assert session.guarantee().not_private_because


def test_a_party_whose_forward_pass_writes_into_the_model_is_refused() -> None:
    model = Net()
    layout = Layout.of(
        [(name, tuple(value.shape)) for name, value in model.named_parameters() if value.requires_grad], OneGroup()
    )
    plain, writes = losses_of(model), False
    model.register_buffer("seen", torch.zeros(3))

    def writing(inputs: Tensor, labels: Tensor) -> Tensor:
        if writes:
            model.get_buffer("seen").add_(inputs.detach().sum(0))
        return plain(inputs, labels)

    records = Records(dataset=examples(), losses=writing, physical_batch_size=4)
    sums = PartySums(model, records, engine=BookKeeping(), layout=layout, device=CPU)
    plan, ledger = full_batch(), Ledger.in_memory("0" * 64)

    def round_of(number: int) -> None:
        rule = plan.clipping.for_groups(1)
        sums.clipped_sum(np.arange(8), rule=rule, kept=None, noise=plan.noise, ledger=ledger, number=number)

    round_of(0)
    round_of(2)  # no experiments are due before round 4
    writes = True
    with pytest.raises(UnsupportedModel, match="seen"):
        round_of(3)
    assert ledger.why_not_private


class Late:
    """A device that has never finished by itself."""

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        pass


@pytest.mark.parametrize(("number", "found_after"), [(3, 4), (5, 7)])
def test_a_device_that_reports_late_is_waited_for_at_powers_of_two_and_at_the_exit(
    monkeypatch: pytest.MonkeyPatch, number: int, found_after: int
) -> None:
    def late(segments: Sequence[str], differs: Tensor, event: None) -> DeviceComparison:
        return DeviceComparison(segments=segments, differs=differs, event=Late())  # type: ignore[arg-type]

    monkeypatch.setattr(fingerprints, "_KINDS", {})  # the processor's memory is read as a device's
    monkeypatch.setattr(device_pages, "DeviceComparison", late)
    model = Net()
    session = begin(model)
    with pytest.raises(WeightsChanged, match=r"last\.weight"):
        train(session, walk, after(number, by_data, model))
    assert session.steps_taken == found_after
    assert session.guarantee().not_private_because


@pytest.mark.gpu
@pytest.mark.parametrize("number", [1, 3, 5, 7])
@pytest.mark.parametrize("change", [by_data, by_another_optimizer, by_a_buffer])
def test_a_change_on_a_device_is_found_by_the_exit_at_the_latest(change: Callable[[Net], None], number: int) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    model = Net().cuda()
    session = begin(model)

    def body(taken: int) -> None:
        if taken == number:
            change(model) if change is not by_another_optimizer else model.first.weight.data.mul_(2.0)

    with pytest.raises((WeightsChanged, UnsupportedModel)):
        train(session, walk, body)
    assert session.guarantee().not_private_because


def test_an_estimator_whose_model_is_trained_elsewhere_is_refused() -> None:
    model = network()
    other = SGD(model.parameters(), lr=0.1)

    class Meddling(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            losses_of(model)(*examples().tensors).mean().backward()
            other.step()
            return examples()[index]

    classifier = PrivateClassifier(
        model, epsilon=8.0, delta=1e-3, dataset_size=8, epochs=3, batch_size=4, adjacency=Adjacency.ADD_REMOVE,
        unit=Unit.RECORD,
    )  # fmt: skip
    with pytest.raises((WeightsChanged, UnsupportedModel)):
        classifier.fit(Meddling())


def test_an_error_that_was_caught_does_not_let_the_session_go_on() -> None:
    model = Net()
    session = begin(model)

    def go_on() -> None:
        run(session, model, at_most=1)
        by_data(model)
        with pytest.raises(WeightsChanged):
            session.guarantee()
        with pytest.raises(WeightsChanged, match="cannot go on"):
            run(session, model)

    with pytest.raises(LedgerMismatch, match="no private step"):
        inside(session, go_on)


def test_the_ledger_keeps_it_and_whoever_reads_it_is_told(tmp_path: Path) -> None:
    model = Net()
    with pytest.raises(WeightsChanged):
        train(begin(model, folder=tmp_path), walk, after(3, by_data, model))
    read = check_ledger(tmp_path)
    assert read.mismatch is not None
    assert "no private step" in read.mismatch
    assert read.spent.not_private_because
    with pytest.raises(LedgerMismatch, match="new folder"), begin(Net(), folder=tmp_path):
        pass


def test_changed_weights_do_not_get_into_a_checkpoint(tmp_path: Path) -> None:
    model = Net()
    with pytest.raises(WeightsChanged):
        train(begin(model, folder=tmp_path, checkpoint_every=1), walk, after(2, by_data, model))
    assert check_ledger(tmp_path).steps_kept == 1


def test_when_another_error_ends_the_session_the_change_is_kept_all_the_same(tmp_path: Path) -> None:
    model = Net()

    def stop() -> None:
        by_another_optimizer(model)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        inside(begin(model, folder=tmp_path), stop)
    assert Ledger.read(tmp_path / "ledger.jsonl").why_not_private


class Wide(nn.Module):
    """More numbers than are looked at in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.table = nn.Embedding(6_000_000, 1, _freeze=True)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.inner(inputs)
        return found


def test_a_large_model_is_looked_into_as_a_whole_at_powers_of_two_and_at_the_end() -> None:
    for number in (1, 4, 7):
        model = Wide()
        model.table.weight.data.zero_()
        session = begin(model, SGD(model.inner.parameters(), lr=0.1))
        with pytest.raises(WeightsChanged, match=r"table\.weight"):
            train(
                session, accumulate, lambda taken, n=number, m=model: taken == n and m.table.weight.data[5].fill_(1.0)
            )


def test_a_part_of_a_large_model_is_looked_into_at_every_step_and_all_of_it_counted() -> None:
    for write in (lambda table: table.data.add_(1.0), lambda table: table[7].fill_(1.0)):
        model = Wide()
        session = begin(model, SGD(model.inner.parameters(), lr=0.1))
        with pytest.raises(WeightsChanged, match=r"table\.weight"):
            train(session, walk, lambda taken, w=write, m=model: w(m.table.weight) if taken == 3 else None)
        assert session.steps_taken == 3
