from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.records import Record, Row, markdown, with_ratios


def row(contender: str, role: str, seconds: tuple[float, ...], *, option: str = "eager", **more: object) -> Row:
    return Row(
        model="mlp",
        contender=contender,
        role=role,
        option=option,
        batch_size=8,
        noise_dtype="float32",
        seconds=seconds,
        **more,
    )


ROWS = (
    row("plain", "baseline", (1.0, 2.0, 3.0)),
    row("plain_graph", "baseline", (1.0, 1.0, 1.0), option="graph"),
    row("ours", "privet", (2.0, 4.0, 8.0), relative_error=1e-7, missing_parameters=0),
    row("ours_graph", "privet", (2.0, 2.0, 2.0), option="graph"),
    row("right", "rival", (8.0, 8.0, 8.0), relative_error=1e-6, missing_parameters=0),
    row("wrong", "rival", (1.0, 1.0, 1.0), relative_error=0.1, missing_parameters=0),
    row("partial", "rival", (1.0, 1.0, 1.0), relative_error=1e-9, missing_parameters=1),
    row("absent", "rival", (), failure="ModuleNotFoundError: a | b"),
)


def test_ratios_compare_medians_with_plain_training_and_with_the_best_right_rival() -> None:
    found = {each.contender: each for each in with_ratios(ROWS, tolerance=1e-5)}
    assert found["ours"].ratio == 0.5
    assert found["ours"].ratio_fastest == 0.5
    assert found["ours"].ratio_to_best_rival == 2.0
    assert found["ours_graph"].ratio == 1.0
    assert found["ours_graph"].ratio_same_option == 0.5
    assert found["absent"].ratio is None


def test_accumulated_steps_are_compared_with_plain_accumulated_steps() -> None:
    rows = (
        row("plain", "baseline", (1.0,), accumulated_seconds=(8.0, 8.0)),
        row("ours", "privet", (4.0,), accumulated_seconds=(10.0, 9.0, 16.0)),
        row("unable", "rival", (2.0,)),
    )
    found = {each.contender: each for each in with_ratios(rows, tolerance=1e-5)}
    assert (found["ours"].ratio, found["ours"].ratio_accumulated) == (0.25, 0.8)
    assert found["unable"].ratio_accumulated is None
    record = Record(environment={}, settings={}, rows=tuple(found.values()))
    assert Record.from_json(record.to_json()) == record


def test_without_plain_training_there_is_no_ratio() -> None:
    (only,) = with_ratios(ROWS[2:3], tolerance=1e-5)
    assert only.ratio is None
    assert only.ratio_to_best_rival is None


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    record = Record(environment={"device": "cpu"}, settings={"rounds": 3}, rows=with_ratios(ROWS, tolerance=1e-5))
    record.write(tmp_path / "new" / "record.json")
    text = (tmp_path / "new" / "record.json").read_text(encoding="utf-8")
    assert Record.from_json(text) == record
    content = json.loads(text)
    for each in content["rows"]:
        del each["accumulated_seconds"], each["ratio_accumulated"]
    assert Record.from_json(json.dumps(content)) == record, "older records lack what was not timed"


def test_a_file_of_another_schema_is_refused() -> None:
    content = json.loads(Record(environment={}, settings={}, rows=ROWS).to_json())
    with pytest.raises(ValueError, match="schema 1"):
        Record.from_json(json.dumps(content | {"schema": 2}))
    content["rows"][0]["surprise"] = 1
    with pytest.raises(ValueError, match="surprise"):
        Record.from_json(json.dumps(content))


def test_the_table_has_a_line_for_everyone_and_says_who_failed_and_who_is_incomplete() -> None:
    text = markdown(Record(environment={"device": "cpu"}, settings={}, rows=with_ratios(ROWS, tolerance=1e-5)))
    lines = {line.split(" | ")[1]: line for line in text.splitlines() if line.startswith("| mlp")}
    assert set(lines) == {each.contender for each in ROWS}
    assert "failed: ModuleNotFoundError: a / b" in lines["absent"]
    assert "1 parameters missing" in lines["partial"]
    assert len({line.count("|") for line in lines.values()}) == 1
