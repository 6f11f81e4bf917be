"""The parts of ``privet account``: any event, totals, searches, waste and batches."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from privet.accounting.guarantee import Guarantee
from tests.accounting.ledgers import done
from tests.cli.conftest import Ask

FIGURES = ("--rate", "0.01", "--steps", "100", "--noise-multiplier", "1", "--delta", "1e-5")
SIZES = ("--dataset-size", "60000", "--batch-size", "230", "--physical", "256")


@pytest.mark.parametrize(
    ("event", "adjacency", "epsilon"),
    [
        ({"type": "gaussian", "noise_multiplier": 1.0}, "add_or_remove", 4.377),
        ({"type": "self_composed", "count": 100, "event": {"type": "pure", "epsilon": 0.1}}, "zero_out", 4.307),
        (
            {
                "type": "self_composed",
                "count": 1000,
                "event": {
                    "type": "sampled_without_replacement",
                    "source_dataset_size": 100,
                    "sample_size": 1,
                    "event": {"type": "gaussian", "noise_multiplier": 2.0},
                },
            },
            "replace_one",
            2.199,
        ),
    ],
    ids=["gaussian", "pure", "fixed size"],
)
def test_any_event_in_a_file_is_accounted(
    ask: Ask, tmp_path: Path, event: dict[str, object], adjacency: str, epsilon: float
) -> None:
    path = tmp_path / "event.json"
    path.write_text(json.dumps(event))
    answer = ask("account", "event", path, "--delta", "1e-5", "--adjacency", adjacency, "--json")
    found = Guarantee.from_dict(json.loads(answer.out)["guarantee"])
    assert found.epsilon == pytest.approx(epsilon, abs=1e-3)
    assert "proven" in ask("account", "event", path, "--delta", "1e-5", "--adjacency", adjacency).out


@pytest.mark.parametrize(
    ("text", "code"), [("{", 2), ('{"type": "gaussian"}', 2), ('{"type": "magic"}', 1), ("[]", 2)], ids=str
)
def test_what_is_no_event_or_cannot_be_accounted_is_refused_in_one_line(
    ask: Ask, tmp_path: Path, text: str, code: int
) -> None:
    path = tmp_path / "event.json"
    path.write_text(text)
    answer = ask("account", "event", path, "--delta", "1e-5")
    assert (answer.code, answer.out, answer.err.count("\n")) == (code, "", 1)


def write_ledger(path: Path, *, rounds: int) -> Path:
    """Write the ledger of a run that was planned for four rounds."""
    from privet.accounting.ledger import Ledger
    from privet.mechanism.clipping import Threshold
    from privet.mechanism.noise import Gaussian
    from privet.mechanism.sampling import Poisson
    from privet.plan import Plan
    from privet.vocabulary import Adjacency, Unit

    plan = Plan(
        sampling=Poisson(rate=0.02, steps=4, expected_batch_size=20),
        clipping=Threshold(norm=1.0),
        noise=Gaussian(noise_multiplier=2.0),
        delta=1e-5,
        adjacency=Adjacency.ADD_REMOVE,
        unit=Unit.RECORD,
    )
    with Ledger.create(path, plan=plan.to_dict(), plan_hash=plan.hash) as ledger:
        ledger.reserve(plan.round_event, rounds)
        for _ in range(rounds):
            ledger.check(done(plan.round_event))
    return path


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return write_ledger(tmp_path / "ledger.jsonl", rounds=4)


def test_the_total_of_one_run_is_its_own_guarantee(ask: Ask, ledger: Path) -> None:
    alone = json.loads(ask("account", ledger, "--json").out)
    together = ask("account", "total", ledger, "--json")
    assert together.code == 0
    assert json.loads(together.out)["guarantee"]["epsilon"] == alone["guarantee"]["epsilon"]
    assert "epsilon alone" in ask("account", "total", ledger).out


def test_a_total_with_a_run_that_charged_too_much_ends_with_code_3(ask: Ask, tmp_path: Path, ledger: Path) -> None:
    answer = ask("account", "total", ledger, write_ledger(tmp_path / "more.jsonl", rounds=5), "--json")
    assert answer.code == 3
    assert not json.loads(answer.out)["agrees_with_plans"]


def test_a_run_named_twice_is_refused(ask: Ask, ledger: Path) -> None:
    answer = ask("account", "total", ledger, ledger)
    assert answer.code == 2
    assert "twice" in answer.err


@pytest.mark.parametrize("length", ["geometric", "logarithmic", "poisson"])
def test_a_search_costs_more_than_one_run_and_less_than_all(ask: Ask, length: str) -> None:
    found = json.loads(ask("account", "search", "--mean", "50", "--length", length, *FIGURES, "--json").out)
    one, search, seen = (found[name]["epsilon"] for name in ("one_run", "search", "every_run_seen"))
    assert one < search < seen
    assert "50 runs, all released" in ask("account", "search", "--mean", "50", "--length", length, *FIGURES).out


def test_a_search_of_less_than_one_run_is_refused_by_its_flag(ask: Ask) -> None:
    found = ask("account", "search", "--mean", "0.5", *FIGURES)
    assert found.code == 2
    assert "--mean" in found.err
    assert "shape" not in found.err


def test_waste_is_a_table_and_a_picture(ask: Ask, tmp_path: Path) -> None:
    rows = json.loads(ask("account", "waste", *SIZES, "--json").out)
    assert [row["sampler"] for row in rows][:3] == ["Poisson", "TruncatedPoisson", "FixedSize"]
    text = ask("account", "waste", *SIZES, "--plot", tmp_path / "waste.svg").out
    assert "36.70%" in text
    assert "4.19%" in text
    picture = (tmp_path / "waste.svg").read_text()
    assert picture.rstrip().endswith("</svg>")
    assert "TruncatedPoisson" in picture
    again = ask("account", "waste", *SIZES, "--plot", tmp_path / "again.svg")
    assert again.code == 0
    assert (tmp_path / "again.svg").read_text() == picture


def test_a_batch_is_suggested_for_a_physical_one(ask: Ask) -> None:
    asked = ("--dataset-size", "1000", "--physical", "16", "--steps", "20", "--epsilon", "3", "--delta", "1e-5")
    found = json.loads(ask("account", "batch", *asked, "--json").out)
    assert 4 <= found["expected_batch_size"] <= 16
    assert found["noise_multiplier"] > 0
    assert found["max_batch_size"] == 16


def test_a_picture_that_would_not_be_one_is_refused_before_it_is_written(ask: Ask, tmp_path: Path) -> None:
    found = ask("account", "waste", *SIZES, "--plot", tmp_path / "waste.png")
    assert found.code == 2
    assert ".svg" in found.err
    assert not (tmp_path / "waste.png").exists()


@pytest.mark.parametrize("part", ["event", "total", "search", "waste", "batch"])
def test_every_part_has_a_help_page_and_the_verb_names_it(ask: Ask, part: str) -> None:
    page = ask("account", part, "--help")
    assert page.code == 0
    assert f"privet account {part}" in page.out
    assert f"privet account {part}" in ask("account", "--help").out
    assert ask("account", part).code == 2


def test_parts_start_without_torch() -> None:
    code = (
        "import sys; from privet.cli.main import privet; from privet.cli.console import run; "
        f"run(privet, ['account', 'waste', *{SIZES!r}]); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
