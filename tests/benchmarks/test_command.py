from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from benchmarks import __main__ as command
from benchmarks.clocks import ProcessClock
from benchmarks.contenders import NonPrivate
from benchmarks.growth import axes, draw, grow
from benchmarks.machine import Precision, environment
from benchmarks.measure import Plan
from benchmarks.models import WORKLOADS, Scale
from benchmarks.records import Record
from tests.benchmarks.helpers import BOOKKEEPING, Flawed


@pytest.fixture(autouse=True)
def _light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the process as it is: no allocator switch, no change of filters, no seconds spent on ceilings."""
    monkeypatch.setattr(command, "use_arena", lambda: False)
    monkeypatch.setattr(command, "ceilings", lambda device: {"copy": 1.0})
    monkeypatch.setattr(command, "_prepare", lambda device, threads: torch.device("cpu"))


def test_run_writes_a_record_and_a_table_of_the_same_rows(tmp_path: Path) -> None:
    json_file, markdown_file = tmp_path / "out.json", tmp_path / "out.md"
    arguments = ["run", "--models", "mlp,mnist", "--contenders", "non_private,privet_bookkeeping", "--scale", "tiny"]
    arguments += ["--rounds", "1", "--json", str(json_file), "--markdown", str(markdown_file)]
    result = CliRunner().invoke(command.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    record = Record.from_json(json_file.read_text(encoding="utf-8"))
    assert [(row.model, row.contender) for row in record.rows] == [
        (model, contender) for model in ("mlp", "mnist") for contender in ("non_private", "privet_bookkeeping")
    ]
    assert all(row.ran and row.ratio is not None for row in record.rows)
    shown = CliRunner().invoke(command.main, ["table", str(json_file)], catch_exceptions=False)
    assert shown.output.strip() == markdown_file.read_text(encoding="utf-8").strip()


def test_check_ends_with_an_error_when_one_of_our_sums_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["check", "--models", "mlp", "--contenders", "privet_bookkeeping", "--scale", "tiny"]
    assert CliRunner().invoke(command.main, arguments).exit_code == 0
    wrong = Flawed(name="privet_bookkeeping", role=BOOKKEEPING.role, scale=1.1)
    monkeypatch.setitem(command.CONTENDERS, "privet_bookkeeping", wrong)
    result = CliRunner().invoke(command.main, arguments)
    assert result.exit_code != 0
    assert "WRONG" in result.output


@pytest.mark.parametrize(("floor", "code"), [(0.0, 0), (1000.0, 1)])
def test_the_gate_ends_with_an_error_below_the_floor(monkeypatch: pytest.MonkeyPatch, floor: float, code: int) -> None:
    gated = {"mlp": replace(WORKLOADS["mlp"], floor=floor)}
    monkeypatch.setattr(command, "WORKLOADS", gated)
    arguments = ["run", "--models", "mlp", "--contenders", "non_private,privet_bookkeeping", "--scale", "tiny"]
    result = CliRunner().invoke(command.main, [*arguments, "--rounds", "1", "--check-examples", "0", "--gate"])
    assert result.exit_code == code


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    result = CliRunner().invoke(command.main, ["run", "--models", "alexnet"])
    assert result.exit_code != 0
    assert "alexnet" in result.output
    assert "resnet18" in result.output


def test_growth_measures_every_value_of_every_axis_and_draws_it(tmp_path: Path) -> None:
    found = []
    for axis in axes(Scale.TINY):
        for rows in grow(
            axis,
            [NonPrivate(), BOOKKEEPING],
            device=torch.device("cpu"),
            precision=Precision.FP32,
            clock=ProcessClock(),
            plan=Plan(rounds=1, warm_up=0, min_sample_seconds=0.0, check_examples=0),
        ):
            found += rows
    assert {(row.axis, row.value) for row in found} == {
        (axis.name, value) for axis in axes(Scale.TINY) for value in axis.values
    }
    assert all(row.ran for row in found)
    pytest.importorskip("matplotlib")
    draw(Record(environment={}, settings={}, rows=tuple(found)), tmp_path / "growth.svg")
    text = (tmp_path / "growth.svg").read_text(encoding="utf-8")
    assert "<svg" in text


def test_accelerator_axes_reach_what_they_promise() -> None:
    ends = {axis.name: (axis.values[0], axis.values[-1]) for axis in axes(Scale.ACCELERATOR)}
    assert ends == {"logical batch": (32, 32_768), "sequence length": (128, 4096), "width": (256, 4096)}


def test_the_record_names_device_and_versions() -> None:
    about = environment(torch.device("cpu"), num_threads=1)
    assert about["device"].startswith("cpu")
    assert about["versions"]["torch"] == torch.__version__


def test_precision_switches_are_put_back() -> None:
    before = torch.get_float32_matmul_precision()
    with Precision.TF32.applied():
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before
