"""``privet evaluate --importance``, and the exit code of options that are out of their range."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Ask

SCHEMA = """
train_size = 200
columns = [
  { name = "größe", low = 0, high = 100 },
  { name = "town", categories = ["a", "b"] },
  { name = "ill", categories = ["0", "1"] },
]
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [f"{n % 100},{'ab'[n % 2]},{float(n % 100 > 50)}" for n in range(200)]
    (tmp_path / "my.csv").write_text("\n".join(["gro\u0308\u00dfe,town,ill", *rows]) + "\n", encoding="utf-8")
    (tmp_path / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    return tmp_path


def trained(ask: Ask, table: Path, *options: str) -> tuple[int, str]:
    found = ask(
        "train", table / "my.csv", "--target", "ill", "--schema", table / "schema.toml", "-o", table / "run",
        "--set", "training.device=cpu", "--set", "privacy.sampling.steps=5", *options,
    )  # fmt: skip
    return found.code, found.err


@pytest.mark.parametrize(
    "options", [("--epsilon", "0"), ("--epsilon", "-1"), ("--epsilon", "nan"), ("--epsilon", "3", "--delta", "2")]
)
def test_options_out_of_their_range_end_with_one_exit_code(ask: Ask, table: Path, options: tuple[str, ...]) -> None:
    assert trained(ask, table, *options)[0] == 2
    assert not (table / "run").exists()


def test_importance_is_refused_without_a_budget_and_measured_with_one_or_on_public_records(
    ask: Ask, table: Path
) -> None:
    code, said = trained(ask, table, "--epsilon", "20")
    assert code == 0
    assert "counts as '0'" in said  # labels of no class: the rule is told, whether or not there are any
    run, data = table / "run", ("--data", table / "my.csv")
    refused = ask("evaluate", run, *data, "--importance")
    assert (refused.code, refused.out) == (1, "")
    assert "--evaluate-epsilon" in refused.err
    assert ask("evaluate", run, *data, "--public").code == 2
    before = (run / "ledger.jsonl").read_bytes()
    public = ask("evaluate", run, *data, "--public", "--importance", "--device", "cpu")
    assert public.code == 0
    assert "How much the accuracy falls without a column" in public.out
    assert "größe" in public.out
    assert (run / "ledger.jsonl").read_bytes() == before
    charged = ask("evaluate", run, *data, "--evaluate-epsilon", "1", "--importance", "--device", "cpu")
    assert charged.code == 0
    assert "Released with noise" in charged.out
    assert (run / "ledger.jsonl").read_bytes() != before
