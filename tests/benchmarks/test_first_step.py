from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import first_step


def test_every_contender_is_measured_twice_and_compared_with_the_faster_plain_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, str]] = []
    answers = iter([9.0, 1.0, 4.0, 2.5])

    def alone(model: str, contender: str, device: str, scale: str, threads: int, kernels: str) -> dict[str, float]:
        asked.append((contender, Path(kernels).name))
        return {"setup": 0.5, "first": next(answers), "second": 0.1}

    monkeypatch.setattr(first_step, "_alone", alone)
    path = tmp_path / "rows.json"
    arguments = ["--models", "mlp", "--device", "cpu", "--json-file", str(path)]
    result = CliRunner().invoke(first_step.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert asked == [(name, name) for name in ("non_private", "privet_bookkeeping") for _ in range(2)]
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert [(row["later"], row["later again"]) for row in rows] == [(8.0, 0.0), (3.0, 1.5)]


def test_a_process_of_its_own_takes_two_real_steps() -> None:
    times = first_step._alone("mlp", "privet_bookkeeping", "cpu", "tiny", 1, "unused")
    assert set(times) == {"setup", "first", "second"}
    assert all(seconds >= 0 for seconds in times.values())
