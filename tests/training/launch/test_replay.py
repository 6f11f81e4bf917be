"""Recorded physical batches against the ordinary way: the same sums, other launches."""

from __future__ import annotations

import copy
import logging
from collections import UserDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset, default_collate

from privet import Adjacency, Gaussian, Performance, Plan, Poisson, Threshold, Unit, privatize
from privet.errors import ArgumentError
from privet.gradients.capture.recorded import mark_batch
from privet.gradients.engines.bookkeeping import BookKeeping
from privet.gradients.engines.clipper import Clipper
from privet.gradients.engines.engine import ReplayableEngine
from privet.gradients.engines.functional import Functional
from privet.mechanism.grouping import OneGroup
from privet.mechanism.layout import Layout
from privet.mechanism.mask_rates import GradualCooling
from privet.mechanism.masking import RandomMask
from privet.mechanism.sampling import FixedSize, Sampling
from privet.mechanism.sums import ClippedSum
from privet.mechanism.truncated import TruncatedPoisson
from privet.training.augmentation import Views, mean_over_views
from privet.training.launch.dry_run import _has_own_length
from privet.training.launch.launcher import Replay
from privet.training.launch.memory import Wanted
from privet.training.launch.recording import Graph, Outcome, Recorder, zeros_like
from privet.training.launch.replay import (
    Automatic,
    Compiled,
    CudaGraph,
    Eager,
    EagerLauncher,
    Launch,
    _can_record_graphs,
)
from privet.training.summing import usual_size

EXAMPLES, WIDTH, CLASSES = 96, 6, 3


def _plan(steps: int = 6) -> Plan:
    return Plan(
        sampling=Poisson(rate=0.2, steps=steps, expected_batch_size=20),
        clipping=Threshold(norm=0.5),
        noise=Gaussian(noise_multiplier=0.1),
        delta=1e-5,
        adjacency=Adjacency.ADD_REMOVE,
        unit=Unit.RECORD,
    )


def _data(device: str = "cpu") -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(EXAMPLES, WIDTH, generator=generator)
    inputs[7, 0] = float("nan")
    labels = torch.randint(0, CLASSES, (EXAMPLES,), generator=generator)
    return TensorDataset(inputs.to(device), labels.to(device))


def _model(device: str = "cpu") -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES)).to(device)


@dataclass(frozen=True)
class _Packed:
    inputs: Tensor
    rest: UserDict[str, Tensor]


def _pack(items: list[tuple[Tensor, Tensor]]) -> _Packed:
    inputs, labels = default_collate(items)
    return _Packed(inputs, UserDict(labels=labels))


def _trained(
    launch: Launch | None, device: str = "cpu", plan: Plan | None = None, *, packs: bool = False
) -> dict[str, Tensor]:
    model = _model(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def losses(*batch: Any) -> Tensor:
        inputs, labels = (batch[0].inputs, batch[0].rest["labels"]) if packs else batch
        return functional.cross_entropy(model(inputs), labels, reduction="none")

    session = privatize(
        model,
        optimizer,
        _data(device),
        plan or _plan(),
        performance=Performance(physical_batch_size=9, launch=launch or Eager()),
        collate=_pack if packs else None,
        seed=3,
    )
    with session:
        for step in session.steps():
            step.accumulate(losses)
            step.update()
    return model.state_dict()


class _Plain:
    """Records nothing and runs the program itself: the bookkeeping around recorders can be tested on any machine."""

    makes_graphs = False

    def __init__(self) -> None:
        self.runs = 0

    def record(self, program, places, present, leaves, engine):  # type: ignore[no-untyped-def]
        def run() -> Outcome:
            self.runs += 1
            return Outcome(*program(places, present, *leaves))

        return run


class _PlainLaunch:
    must_replay = True

    def __init__(self, recorder: Recorder, *, warm_up: int = 1, max_recordings: int = 4) -> None:
        self.recorder, self.warm_up, self.max_recordings = recorder, warm_up, max_recordings

    def start(self, engine, device):  # type: ignore[no-untyped-def]
        self.replay = _replay(engine, self.recorder, warm_up=self.warm_up, max_recordings=self.max_recordings)
        return self.replay


def _replay(engine: ReplayableEngine, recorder: Recorder, *, warm_up: int = 1, max_recordings: int = 2) -> Replay:
    return Replay(
        engine=engine, recorder=recorder, device=torch.device("cpu"),
        warm_up=warm_up, max_recordings=max_recordings, level=logging.WARNING,
    )  # fmt: skip


class _Refusing:
    makes_graphs = False

    def record(self, program, places, present, leaves, engine):  # type: ignore[no-untyped-def]
        raise RuntimeError("this device records nothing")


LAUNCHES: Mapping[type, Sequence[Launch]] = {
    Eager: [Eager()],
    Automatic: [Automatic()],
    CudaGraph: [CudaGraph()],
    Compiled: [Compiled(), Compiled(graph=True)],
}


def _assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = 1e-6) -> None:
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance)


def test_batches_of_any_class_are_recorded_and_give_the_sums_of_plain_ones() -> None:
    recorder = _Plain()
    found = _trained(_PlainLaunch(recorder), packs=True)
    assert recorder.runs > 4
    for name, value in _trained(_PlainLaunch(_Plain())).items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("launch", ["recorded", "one by one"])
def test_several_views_of_an_example_are_recorded_and_give_the_loop_over_single_examples(launch: str) -> None:
    recorder, model = _Plain(), _model()
    inputs, labels = (tensor[8:40] for tensor in _data().tensors)
    views = Views(dataset=TensorDataset(inputs, labels), transform=lambda rows: rows.cos(), num_views=3)
    losses = mean_over_views(lambda x, y: functional.cross_entropy(model(x), y, reduction="none"))
    chosen = _PlainLaunch(recorder) if launch == "recorded" else Eager()
    session = privatize(
        model, torch.optim.SGD(model.parameters(), lr=0.5), views,
        Plan(
            sampling=Poisson(rate=1.0, steps=5, expected_batch_size=32), clipping=Threshold(norm=0.5),
            noise=Gaussian(noise_multiplier=0.1), delta=1e-5, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD,
        ),
        performance=Performance(physical_batch_size=9, launch=chosen),
        seed=3,
    )  # fmt: skip
    with session:
        for step in session.steps():
            wanted = torch.zeros(sum(value.numel() for value in model.parameters()))
            for x, y in zip(inputs, labels, strict=True):
                loss = functional.cross_entropy(model(x.cos().unsqueeze(0)), y.unsqueeze(0))
                found = torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(model.parameters()))])
                wanted += found * min(1.0, 0.5 / float(found.norm()))
            step.accumulate(losses)
            torch.testing.assert_close(step._clipped.flat, wanted, rtol=1e-5, atol=1e-6)
            step.update()
    assert (recorder.runs > 8) == (launch == "recorded")


def test_times_that_a_tensor_says_are_not_recorded() -> None:
    """As many rows as its numbers say: neither a stand-in nor a recording knows how many."""
    rows, times = torch.randn(3, 2), torch.tensor([1, 2, 1])
    assert not _has_own_length(torch.repeat_interleave, (rows, 2, 0), {})
    assert not _has_own_length(Tensor.repeat_interleave, (rows,), {"repeats": 2, "dim": 0})
    assert _has_own_length(torch.repeat_interleave, (rows, times, 0), {})
    assert _has_own_length(Tensor.repeat_interleave, (rows,), {"repeats": times})
    assert _has_own_length(torch.repeat_interleave, (times,), {})


def test_padded_replays_train_the_same_weights_even_with_an_example_that_is_not_a_number() -> None:
    recorder = _Plain()
    _assert_same(_trained(_PlainLaunch(recorder)), _trained(None))
    assert recorder.runs > 3


@pytest.mark.parametrize(
    ("sampling", "size"),
    [
        (Poisson(rate=0.2, steps=1, expected_batch_size=100), 136),
        (Poisson(rate=1.0, steps=1, expected_batch_size=96), 96),
        (FixedSize(dataset_size=96, batch_size=12, steps=1), 12),
        (TruncatedPoisson(rate=0.1, steps=1, dataset_size=1000, max_batch_size=110), 110),
    ],
    ids=lambda value: type(value).__name__,
)
def test_batches_are_filled_up_to_the_size_that_the_plan_makes_usual(sampling: Sampling, size: int) -> None:
    assert usual_size(sampling) == size


def test_batches_are_not_filled_up_to_a_physical_batch_size_that_is_never_reached() -> None:
    launch = _PlainLaunch(_Plain())
    model = _model()
    plan, performance = _plan(12), Performance(physical_batch_size=5000, launch=launch)
    session = privatize(
        model, torch.optim.SGD(model.parameters(), lr=0.5), _data(), plan, performance=performance, seed=3
    )
    with session:
        for step in session.steps():
            step.accumulate(lambda x, y: functional.cross_entropy(model(x), y, reduction="none"))
            step.update()
    assert {len(form.memory.present) for form in launch.replay._forms.values()} == {usual_size(plan.sampling)}


def _masked_plan(refresh_every: int) -> Plan:
    mask = RandomMask(schedule=GradualCooling(final=0.8), refresh_every=refresh_every)
    return replace(_plan(steps=9), mask=mask)


@pytest.mark.parametrize("refresh_every", [1, 3])
def test_one_recording_serves_all_masks_of_coordinates(refresh_every: int, caplog: pytest.LogCaptureFixture) -> None:
    recorder, plan = _Plain(), _masked_plan(refresh_every)
    launch = _PlainLaunch(recorder, max_recordings=2)
    with caplog.at_level(logging.WARNING, logger="privet"):
        _assert_same(_trained(launch, plan=plan), _trained(None, plan=plan))
    assert 1 <= launch.replay._num_recordings <= 2, "one without a mask, while the rate is zero, and one with"
    assert recorder.runs > 12
    assert not caplog.records


@pytest.mark.parametrize("limit", [4, 5, 12])
def test_padding_adds_exactly_zero(limit: int) -> None:
    model = _model()
    layout = Layout.of([(name, tuple(value.shape)) for name, value in model.named_parameters()], OneGroup())
    rule = Threshold(norm=0.5).for_groups(1)
    engine = BookKeeping().start(model, list(model.parameters()), layout)
    replay = _replay(engine, _Plain())

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(model(inputs), labels, reduction="none")

    def openly(size: int) -> Tensor:
        into = ClippedSum(flat=torch.zeros(layout.num_coordinates), layout=layout, sensitivity=rule.sensitivity)
        batch = [tensor[10 : 10 + size].clone() for tensor in _data().tensors]
        mark_batch(batch)
        engine.begin(size)
        engine.add_clipped(losses(*batch), rule, into)
        return into.flat

    openly(limit)  # the trial of the program at that size
    into = ClippedSum(flat=torch.zeros(layout.num_coordinates), layout=layout, sensitivity=rule.sensitivity)
    batch = [tensor[10:14] for tensor in _data().tensors]
    assert replay.add(batch, 4, limit, losses, rule, into) is None
    outcome = replay.add(batch, 4, limit, losses, rule, into)
    assert outcome is not None
    assert outcome.losses.shape == (4,)
    assert outcome.norms.shape == (4, 1)
    torch.testing.assert_close(into.flat, openly(4), rtol=1e-6, atol=1e-7)


def test_a_batch_that_is_as_long_as_a_layer_is_wide_can_be_padded() -> None:
    model = nn.Linear(WIDTH, 5)
    layout = Layout.of([(name, tuple(value.shape)) for name, value in model.named_parameters()], OneGroup())
    rule = Threshold(norm=0.5).for_groups(1)
    engine = BookKeeping().start(model, list(model.parameters()), layout)
    replay = _replay(engine, _Plain())

    def losses(inputs: Tensor) -> Tensor:
        return model(inputs).square().sum(1)

    def openly(inputs: Tensor) -> Tensor:
        into = ClippedSum(flat=torch.zeros(layout.num_coordinates), layout=layout, sensitivity=rule.sensitivity)
        mark_batch([inputs])
        engine.begin(len(inputs))
        engine.add_clipped(losses(inputs), rule, into)
        return into.flat

    batch = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(2))
    expected = openly(batch)
    into = ClippedSum(flat=torch.zeros(layout.num_coordinates), layout=layout, sensitivity=rule.sensitivity)
    assert replay.add(batch, 5, 7, losses, rule, into) is None
    assert replay.add(batch, 5, 7, losses, rule, into) is not None
    torch.testing.assert_close(into.flat, expected, rtol=1e-6, atol=1e-7)


class _Forgetful(_Plain):
    """Freezes what it computed while recording, as a tracer does with an operation it does not see."""

    def record(self, program, places, present, leaves, engine):  # type: ignore[no-untyped-def]
        frozen = zeros_like(places)
        outcome = Outcome(*program(frozen, present, *leaves))

        def run() -> Outcome:
            torch._foreach_add_(places, frozen)
            return outcome

        return run


def test_the_program_is_run_for_the_comparison_before_its_recording_takes_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []

    class Noting(_Plain):
        def record(self, program, places, present, leaves, engine):  # type: ignore[no-untyped-def]
            order.append("recorded")
            return super().record(program, places, present, leaves, engine)

    ask = Wanted.of

    def noted(program: Any, memory: Any, places: Any) -> Wanted:
        order.append("run")
        return ask(program, memory, places)

    monkeypatch.setattr(Wanted, "of", noted)
    recorder = Noting()
    _trained(_PlainLaunch(recorder))
    assert order == ["run", "recorded"]
    assert recorder.runs > 4


def test_a_recording_that_froze_its_examples_is_caught_and_leaves_no_trace(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="privet"):
        _assert_same(_trained(_PlainLaunch(_Forgetful())), _trained(None), tolerance=1e-6)
    assert "gives other losses than the program" in caplog.text


class _Rounding(_Plain):
    """Rounds sums to bfloat16, as another order of the operations of a bfloat16 program would."""

    def record(self, program, places, present, leaves, engine):  # type: ignore[no-untyped-def]
        def run() -> Outcome:
            self.runs += 1
            sums = zeros_like(places)
            outcome = Outcome(*program(sums, present, *leaves))
            torch._foreach_add_(places, [total.bfloat16().to(total.dtype) for total in sums])
            return outcome

        return run


@pytest.mark.parametrize("is_half", [False, True], ids=["float32", "bfloat16"])
def test_a_recording_is_compared_in_the_precision_of_its_program(
    is_half: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model, recorder = _model(), _Rounding()

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_half):
            logits = model(inputs)
        return functional.cross_entropy(logits.float(), labels, reduction="none")

    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    performance = Performance(physical_batch_size=9, launch=_PlainLaunch(recorder))
    clean = TensorDataset(*(tensor[8:] for tensor in _data().tensors))
    session = privatize(model, optimizer, clean, _plan(), performance=performance, seed=3)
    with caplog.at_level(logging.WARNING, logger="privet"), session:
        for step in session.steps():
            step.accumulate(losses)
            step.update()
    assert (recorder.runs > 3) == is_half
    assert ("gives other sums than the program" in caplog.text) == (not is_half)


def test_a_tensor_that_is_given_other_memory_is_read_there() -> None:
    model, scale, launch = _model(), torch.ones(()), _PlainLaunch(_Plain())

    def losses(inputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(model(inputs) * scale, labels, reduction="none")

    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    performance = Performance(physical_batch_size=40, launch=launch)
    with privatize(model, optimizer, _data(), _plan(12), performance=performance, seed=3) as session:
        for step in session.steps():
            step.accumulate(losses)
            step.update()
    (end,) = [end for end in launch.replay._num_seen if end.recording is not None]
    assert end.is_where_it_was(lambda tensor: False)
    assert not end.is_where_it_was(lambda tensor: tensor is scale), "examples were written into it"
    scale.data = torch.full((), 3.0)
    assert not end.is_where_it_was(lambda tensor: False)


def test_an_example_that_spoils_a_sum_that_is_too_large_to_clean_is_left_out_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Clipper, "_SELECTED", 0)
    recorder = _Plain()
    _assert_same(_trained(_PlainLaunch(recorder)), _trained(None))
    assert recorder.runs > 3


def test_a_program_that_cannot_be_recorded_trains_in_the_ordinary_way_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="privet"):
        _assert_same(_trained(_PlainLaunch(_Refusing())), _trained(None), tolerance=0)
    assert caplog.text.count("this device records nothing") == 1


def test_a_new_loss_function_at_every_step_is_never_answered_with_an_old_recording() -> None:
    def trained(launch: Launch | None) -> dict[str, Tensor]:
        model = _model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with privatize(
            model,
            optimizer,
            _data(),
            _plan(30),
            performance=Performance(physical_batch_size=50, launch=launch or Eager()),
            seed=3,
        ) as session:
            for step in session.steps():
                weight = 1.0 + step.index
                step.accumulate(
                    lambda inputs, labels, weight=weight: (
                        weight * functional.cross_entropy(model(inputs), labels, reduction="none")
                    )
                )
                step.update()
        return model.state_dict()

    recorder = _Plain()
    _assert_same(trained(_PlainLaunch(recorder, warm_up=2)), trained(None))
    assert not recorder.runs


def test_graphs_on_a_processor_and_engines_without_replay_fall_back_and_say_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="privet"):
        _assert_same(_trained(CudaGraph()), _trained(None), tolerance=0)
        model = _model()
        layout = Layout.of([(name, tuple(value.shape)) for name, value in model.named_parameters()], OneGroup())
        running = Functional().start(model, list(model.parameters()), layout)
        assert isinstance(Compiled().start(running, torch.device("cpu")), EagerLauncher)
        running.close()
    assert "the model is on cpu" in caplog.text
    assert "RunningFunctional cannot be replayed" in caplog.text


def test_graphs_are_recorded_on_torchs_current_device_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with caplog.at_level(logging.WARNING, logger="privet"):
        assert _can_record_graphs(torch.device("cuda"), logging.WARNING)
        assert _can_record_graphs(torch.device("cuda:0"), logging.WARNING)
        assert not caplog.text
        assert not _can_record_graphs(torch.device("cuda:1"), logging.WARNING)
    assert "torch.cuda.set_device('cuda:1')" in caplog.text


@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_counts_below_one_are_refused(count: float) -> None:
    with pytest.raises(ArgumentError):
        CudaGraph(warm_up=count)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_compiled_batch_trains_the_same_weights() -> None:
    _assert_same(_trained(Compiled()), _trained(None), tolerance=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("launch", [launch for launches in LAUNCHES.values() for launch in launches], ids=repr)
def test_a_recorded_batch_on_a_device_trains_the_same_weights(launch: Launch, caplog: pytest.LogCaptureFixture) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    with caplog.at_level(logging.WARNING, logger="privet"):
        _assert_same(_trained(launch, "cuda"), _trained(None, "cuda"), tolerance=1e-4)
    assert not [record for record in caplog.records if record.name == "privet"], "the recording must have been used"


@pytest.mark.gpu
def test_a_recorded_batch_on_a_device_follows_the_mask(caplog: pytest.LogCaptureFixture) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    plan = _masked_plan(1)
    with caplog.at_level(logging.WARNING, logger="privet"):
        found = _trained(CudaGraph(), "cuda", plan)
        _assert_same(found, _trained(None, "cuda", plan), tolerance=1e-4)
    assert not [record for record in caplog.records if record.name == "privet"], "the recording must have been used"


def test_a_loop_over_microbatches_says_once_that_nothing_is_recorded(caplog: pytest.LogCaptureFixture) -> None:
    model, recorder = _model(), _Plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with (
        caplog.at_level(logging.WARNING, logger="privet"),
        privatize(
            model, optimizer, _data(), _plan(), seed=3, performance=Performance(launch=_PlainLaunch(recorder))
        ) as session,
    ):
        for step in session.steps():
            for inputs, labels in step.microbatches():
                step.backward(functional.cross_entropy(model(inputs), labels, reduction="none"))
            step.update()
    assert caplog.text.count("only step.accumulate(loss_function) can record") == 1
    assert recorder.runs == 0


class _Standardised(nn.Module):
    """Its weight is computed from a parameter at every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(5, 4)), nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        weight = (self.weight - self.weight.mean(1, keepdim=True)) / self.weight.std(1, keepdim=True)
        return self.head(torch.tanh(functional.linear(inputs, weight)))  # type: ignore[no-any-return]


class _Looking(_Plain):
    """Looks whether a backward pass of earlier steps is still there: its nodes belong to a stream of their own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.kept = model, list[str]()

    def record(self, program, places, present, leaves, engine):  # type: ignore[no-untyped-def]
        for name, value in self.model.named_parameters():
            for _ in range(2):  # a node that nobody holds is made anew
                node = value.view_as(value).grad_fn.next_functions[0][0]
                if node.metadata.pop("seen", False):
                    self.kept.append(name)
                node.metadata["seen"] = True
                del node
        return super().record(program, places, present, leaves, engine)


def _trained_standardised(model: nn.Module, launch: Launch, device: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(24, 4, generator=generator), torch.randint(0, 3, (24,), generator=generator)
    plan = replace(
        _plan(6), sampling=FixedSize(dataset_size=24, batch_size=8, steps=6), adjacency=Adjacency.REPLACE_ONE
    )
    performance = Performance(physical_batch_size=8, launch=launch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(inputs.to(device), labels.to(device))
    with privatize(model, optimizer, data, plan, performance=performance, seed=3) as session:
        for step in session.steps():
            step.accumulate(lambda x, y: functional.cross_entropy(model(x), y, reduction="none"))
            step.update()
    return model.state_dict()


def test_no_graph_of_an_earlier_pass_is_held_when_a_program_is_recorded() -> None:
    model = _Standardised()
    recorder = _Looking(model)
    _trained_standardised(model, _PlainLaunch(recorder), "cpu")
    assert recorder.runs > 2
    assert recorder.kept == []


@pytest.mark.gpu
def test_weights_computed_from_parameters_are_recorded_on_a_device(caplog: pytest.LogCaptureFixture) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    torch.manual_seed(0)
    model = _Standardised().to("cuda")
    other = copy.deepcopy(model)
    with caplog.at_level(logging.WARNING, logger="privet"):
        found = _trained_standardised(model, CudaGraph(), "cuda")
    assert not [record for record in caplog.records if record.name == "privet"], "the recording must have been used"
    _assert_same(found, _trained_standardised(other, Eager(), "cuda"), tolerance=1e-4)


@pytest.mark.gpu
def test_random_layers_go_on_after_a_capture_that_failed() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")

    def program(places, present, values):  # type: ignore[no-untyped-def]
        dropped = functional.dropout(values, 0.5)
        return dropped, dropped.sum() if not torch.cuda.is_current_stream_capturing() else dropped[dropped > 0]

    values = torch.ones(64, device="cuda")
    with pytest.raises(RuntimeError):
        Graph().record(program, [], values, [values], None)  # type: ignore[arg-type]
    assert 0 < float(functional.dropout(values, 0.5).count_nonzero()) < 64
