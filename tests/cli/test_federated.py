from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Ask

SMALL = """
dataset = "fashion_mnist_small"
model = "logistic_regression"

[privacy]
epsilon = 3.0
delta = 1e-5
adjacency = "add_or_remove"
unit = "record"
sampling = { kind = "poisson", dataset_size = 10_000, batch_size = 100, steps = 2 }
clipping = { kind = "threshold", norm = 1.0 }
noise = { kind = "gaussian" }
mask = { kind = "shared_random", seed = 7, refresh_every = 1, schedule = { kind = "constant", value = 0.5 } }

[training]
optimizer = { kind = "sgd", learning_rate = 1.0 }
physical_batch_size = 64

[federation]
num_parties = 2
contribution = { kind = "clipped_sums" }
max_records = 5_000
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def test_a_federation_is_run_with_its_promise_before_and_its_cost_after(ask: Ask, small: Path, tmp_path: Path) -> None:
    answer = ask("federated", str(small), "-o", str(tmp_path / "run"), "--rate", "0.9", "--central")
    assert answer.code == 0
    promised, spent = (line.split(maxsplit=1)[1] for line in answer.out.splitlines()[:2])
    assert promised == spent
    assert "add-or-remove one record" in spent
    assert "2 with 2 parties" in answer.out
    assert "accuracy of the central run" in answer.out
    assert answer.out.count("95 % Clopper-Pearson, n = 2,000") == 2
    assert "rounds.jsonl" in answer.err
    assert (tmp_path / "run" / "rounds.jsonl").read_text().count("\n") == 2
    assert {path.parent.name for path in (tmp_path / "run").glob("*/ledger.jsonl")} == {
        "coordinator",
        "party0",
        "party1",
    }
    again = ask("federated", str(small), "-o", str(tmp_path / "run"))
    assert again.code == 2
    assert "is not empty" in again.err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("num_parties = 2", "num_partys = 2", "Did you mean 'num_parties'?"),
        ("num_parties = 2", "", "federation lacks num_parties"),
        ("[federation]", "[federations]", "There is no [federation] table"),
        ('"clipped_sums"', '"sums"', "federation.contribution.kind"),
        ("learning_rate = 1.0", "learning_rate = 1.0, momentum = 0.9", "without momentum"),
        ("physical_batch_size = 64", 'physical_batch_size = "auto"', "must be a number"),
        ('kind = "shared_random", seed = 7', 'kind = "random"', "drawn by one process alone"),
        ("= 2\n", "=\n", "is not valid TOML"),
    ],
)
def test_what_is_wrong_with_a_federation_is_said_before_anything_is_written(
    ask: Ask, small: Path, tmp_path: Path, old: str, new: str, said: str
) -> None:
    small.write_text(SMALL.replace(old, new))
    answer = ask("federated", str(small), "-o", str(tmp_path / "run"))
    assert answer.code == 2
    assert said in answer.err
    assert not (tmp_path / "run").exists()
