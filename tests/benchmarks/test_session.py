from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from click.testing import CliRunner

from benchmarks import session
from benchmarks.check import judge, plain_error, true_clipped_sum
from benchmarks.contenders import NoClippedSum, Settings
from benchmarks.measure import make
from benchmarks.models import WORKLOADS, Scale, losses_of
from benchmarks.public import CASES
from benchmarks.records import Record, Row
from benchmarks.session_table import session_markdown
from benchmarks.session_worker import CONTENDERS, Measuring
from benchmarks.workers import WorkerFailed, WorkerLate
from privet.models import count_parameters

CPU = torch.device("cpu")
PUBLIC = [name for name in CASES if name not in WORKLOADS]
SIZES = {"bert": 109.5, "llama": 134.1, "lora": 1102.3, "resnet50": 25.6, "convnext_t": 28.6, "swin_t_bf16": 28.3}
OPTIONS = session.Options(
    device="cpu",
    scale=Scale.TINY,
    threads=1,
    contenders=("non_private", "session", "opacus_hooks"),
    rounds=2,
    seconds=0.01,
    warm_up=1,
    check_examples=5,
    limit=60.0,
    workers_ahead=0,
)


def needs_its_library(name: str) -> None:
    for library in ("transformers", "torchvision"):
        if f"of {library}" in CASES[name].workload.description or name in {"lora", "minilm_lora"}:
            pytest.importorskip(library)


@pytest.mark.parametrize("name", ["session", "session_eager"])
@pytest.mark.parametrize("model", ["mnist", "gpt2"])
def test_a_session_sums_what_the_loop_sums(model: str, name: str) -> None:
    built, batch = make(WORKLOADS[model].sizes[Scale.TINY], 5, device=CPU, seed=0)
    truth = true_clipped_sum(built, batch)
    verdict = judge(CONTENDERS[name], built, batch, truth)
    assert verdict.missing_parameters == 0
    assert verdict.relative_error <= max(1e-6, 4 * plain_error(built, batch, truth))


def test_a_session_of_random_batches_has_no_sum_of_a_given_batch() -> None:
    built, batch = make(WORKLOADS["mlp"].sizes[Scale.TINY], 5, device=CPU, seed=0)
    running = CONTENDERS["session_random"].setup(built, Settings(logical_batch=5))
    running.step([batch])
    with pytest.raises(NoClippedSum):
        running.clipped_sum(batch)
    with pytest.raises(ValueError, match="5 examples a step"):
        running.step([batch, batch])
    running.close()


def test_the_truth_stays_in_double_precision_where_a_model_asks_for_single() -> None:
    class Casts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = torch.nn.Linear(3, 2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            states: torch.Tensor = self.map(inputs).to(torch.float32).float()
            return torch.nn.functional.softmax(states, dim=-1, dtype=torch.float32)

    torch.manual_seed(0)
    model, batch = Casts(), (torch.randn(4, 3), torch.tensor([0, 1, 1, 0]))
    truth = true_clipped_sum(model, batch)
    double = model.double()
    total = torch.zeros(2, 3, dtype=torch.float64)
    for row, label, factor in zip(batch[0].double(), batch[1], truth.factors, strict=True):
        outputs = torch.softmax(double.map(row[None]), -1)
        (gradient,) = torch.autograd.grad(losses_of(outputs, label[None]).sum(), [double.map.weight])
        total += factor * gradient
    torch.testing.assert_close(truth.sums["map.weight"], total, rtol=1e-13, atol=1e-13)


def test_the_command_measures_checks_and_writes_both_tables(tmp_path: Path) -> None:
    json_file, markdown_file = tmp_path / "out.json", tmp_path / "out.md"
    arguments = ["--models", "mlp", "--contenders", "session,opake", "--scale", "tiny", "--device", "cpu"]
    arguments += ["--rounds", "2", "--seconds", "0.01", "--warm-up", "1", "--limit-s", "300"]
    arguments += ["--json", str(json_file), "--markdown", str(markdown_file)]
    result = CliRunner().invoke(session.session, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    record = Record.from_json(json_file.read_text(encoding="utf-8"))
    rows = {row.contender: row for row in record.rows}
    assert list(rows) == ["non_private", "session", "opake"]
    ours = rows["session"]
    assert ours.ran
    assert ours.ratio is not None
    assert ours.relative_error is not None
    assert ours.relative_error < 1e-5
    assert ours.plain_error is not None
    assert ours.cold_seconds is not None
    assert rows["non_private"].cold_seconds == rows["non_private"].first_step_seconds
    if importlib.util.find_spec("opake") is None:
        assert "No module named 'opake'" in rows["opake"].failure
    shown = CliRunner().invoke(session.session_table, [str(json_file)], catch_exceptions=False)
    assert shown.output.strip() == markdown_file.read_text(encoding="utf-8").strip()
    assert len([line for line in shown.output.splitlines() if line.startswith("| mlp")]) == 4


LATE = WorkerLate("No answer within 60 s")


class Scripted:
    """A worker that sends what it is given, then fails."""

    def __init__(self, answers: list[Mapping[str, Any]], error: WorkerFailed) -> None:
        self._answers, self._error = iter(answers), error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def wait(self) -> None:
        pass

    def tell(self, command: Mapping[str, Any]) -> None:
        pass

    def answer(self, seconds: float = 0.0) -> Mapping[str, Any]:
        for answer in self._answers:
            return answer
        raise self._error

    def ask(self, command: Mapping[str, Any], seconds: float = 0.0) -> Mapping[str, Any]:
        return self.answer()


class ScriptedWorkers:
    def __init__(
        self, check: list[Mapping[str, Any]], time: list[Mapping[str, Any]], error: WorkerFailed = LATE
    ) -> None:
        self._workers = {"check": Scripted(check, error), "time": Scripted(time, error)}

    def take(self, case: object, job: str) -> Scripted:
        return self._workers[job]


def rows_of(*seconds: tuple[float, ...]) -> list[Row]:
    empty = [session._empty(CASES["mlp"], name, OPTIONS) for name in OPTIONS.contenders]
    return [replace(row, seconds=times) for row, times in zip(empty, seconds, strict=True)]


def sent(rows: list[Row], *, is_last: bool = False) -> Mapping[str, Any]:
    return {"rows": [asdict(row) for row in rows], "is_last": is_last}


def test_a_process_that_is_ended_keeps_the_rows_it_had_sent() -> None:
    growing = [sent(rows_of((1.0,), (), ())), sent(rows_of((1.0,), (2.0,), ()))]
    checked = [replace(row, relative_error=1e-7, missing_parameters=0) for row in rows_of((), (), ())]
    workers = ScriptedWorkers([{"seconds": 3.0}, sent(checked)], growing)
    plain, ours, rival = session.measure_case(CASES["mlp"], OPTIONS, workers)  # type: ignore[arg-type]
    assert (plain.ratio, ours.ratio, ours.cold_seconds, ours.relative_error) == (1.0, 0.5, 3.0, 1e-7)
    assert rival.failure.startswith("TimeoutError")


def test_a_process_that_sends_nothing_leaves_a_row_for_everyone_with_the_reason() -> None:
    workers = ScriptedWorkers([], [], WorkerFailed("The process ended with status 1: no memory"))
    found = session.measure_case(CASES["mlp"], OPTIONS, workers)  # type: ignore[arg-type]
    assert [row.contender for row in found] == list(OPTIONS.contenders)
    assert {row.failure for row in found} == {"The process ended with status 1: no memory"}


def test_a_sum_that_could_not_be_compared_does_not_hide_the_times() -> None:
    checked = [replace(row, failure="RuntimeError: no") for row in rows_of((), (), ())]
    timed = [sent(rows_of((1.0,), (2.0,), (4.0,)), is_last=True)]
    workers = ScriptedWorkers([{"seconds": None}, sent(checked, is_last=True)], timed)
    _, ours, _ = session.measure_case(CASES["mlp"], OPTIONS, workers)  # type: ignore[arg-type]
    assert ours.ran
    assert "not compared: RuntimeError: no" in ours.remarks


def test_a_rival_with_wrong_sums_is_not_the_best_rival() -> None:
    plain, ours, rival = rows_of((1.0,), (2.0,), (1.5,))
    rows = tuple(replace(row, ratio=1 / row.seconds[0]) for row in (plain, ours, rival))
    for error, best in ((1e-7, "0.67 (opacus_hooks)"), (1e-2, "")):
        judged = (*rows[:2], replace(rows[2], relative_error=error, missing_parameters=0))
        text = session_markdown(Record(environment={}, settings={}, rows=judged))
        summary = next(line for line in text.splitlines() if line.startswith("| mlp | 5 |"))
        assert summary.split(" | ")[7] == best


@pytest.mark.filterwarnings("ignore")  # of libraries about each other
@pytest.mark.parametrize("name", SIZES)
def test_a_public_model_has_its_published_number_of_parameters(name: str) -> None:
    needs_its_library(name)
    with torch.device("meta"):
        model = CASES[name].workload.sizes[Scale.ACCELERATOR].build()
    assert sum(value.numel() for value in model.parameters()) / 1e6 == pytest.approx(SIZES[name], abs=0.06)
    assert count_parameters(model) > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PUBLIC)
def test_a_tiny_public_model_without_random_layers_gives_the_same_losses_twice(name: str) -> None:
    needs_its_library(name)
    size = CASES[name].workload.sizes[Scale.TINY]
    still = replace(size, build=size.build_still or size.build)
    model, (inputs, labels) = make(still, 3, device=CPU, seed=0)
    first, second = (losses_of(model(inputs), labels) for _ in range(2))
    assert first.shape == (3,)
    assert torch.equal(first, second)


@pytest.mark.filterwarnings("ignore")
def test_adapters_are_the_same_parameters_without_peft(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    size = CASES["lora"].workload.sizes[Scale.TINY]
    monkeypatch.setitem(sys.modules, "peft", None)
    model, batch = make(size, 5, device=CPU, seed=0)
    trained = [value for value in model.parameters() if value.requires_grad]
    # two blocks, each with adapters on queries (16 to 16) and values (16 to 8), of rank 16
    assert sum(value.numel() for value in trained) == 2 * (16 * 32 + 16 * 24)
    assert {value.dtype for value in trained} == {torch.float32}
    single = model.float()
    truth = true_clipped_sum(single, batch)
    assert judge(CONTENDERS["session"], single, batch, truth).relative_error <= 1e-5
    assert all(float(value.norm()) > 0 for value in truth.sums.values())


def test_a_worker_refuses_what_it_does_not_know() -> None:
    measuring = Measuring(CASES["mlp"], CPU, Scale.TINY)
    with pytest.raises(ValueError, match="'dance'"):
        measuring.handle({"do": "dance"}, lambda answer: None)
    assert measuring.first_step("opake") is None or importlib.util.find_spec("opake")
