from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import ranks


@pytest.mark.slow
def test_two_ranks_are_compared_with_one_process_and_a_group_of_one_with_none(tmp_path: Path) -> None:
    file = tmp_path / "ranks.json"
    arguments = ["--models", "mlp,none such", "--device", "cpu", "--scale", "tiny", "--rounds", "1"]
    done = CliRunner().invoke(ranks.main, [*arguments, "--seconds", "0.01", "--json-file", str(file)])
    assert done.exit_code == 0, done.output
    found, missing = json.loads(file.read_text())["rows"]
    assert found["ranks equal bit for bit"] is True
    assert 0 < found["distance over what the steps changed"] < 1e-5
    assert len(found["pairs"]) == len(found["ratios"]) == 1
    assert "failure" in missing
