"""The verb ``audit``, as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privet.mechanism.noise import Gaussian
from privet.mechanism.sums import ClippedSum, NormalSource, PrivateSum
from tests.cli.conftest import Ask

SMALL = ("--canaries", "1500", "--rounds", "4", "--device", "cpu")
BOUNDS = ("canaries, little noise", "canaries per round", "canaries per run")


def break_the_noise(monkeypatch: pytest.MonkeyPatch, part: float) -> None:
    """Let the noise piece add less than it says, while the rest of the library stays as it is."""
    correct = Gaussian.add

    class Short:
        def __init__(self, inner: NormalSource) -> None:
            self.inner = inner

        def add_normal(self, flat: object, std: float) -> None:
            self.inner.add_normal(flat, std * part)  # type: ignore[arg-type]

    def broken(self: Gaussian, clipped: ClippedSum, source: NormalSource) -> PrivateSum:
        return correct(self, clipped, Short(source))

    monkeypatch.setattr(Gaussian, "add", broken)


def test_a_correct_recipe_passes_and_its_findings_are_kept(ask: Ask, tiny_recipe: Path, tmp_path: Path) -> None:
    kept = tmp_path / "audit.json"
    answer = ask("audit", tiny_recipe, *SMALL, "-o", kept)
    assert answer.code == 0, answer.err
    found = json.loads(kept.read_text())
    assert [row["audit"] for row in found["findings"]] == list(BOUNDS)
    assert not found["is_broken"]
    for row in found["findings"]:
        assert 0 <= row["epsilon_bound"] <= row["epsilon_claim"]
        assert all(word in answer.out for word in row["audit"].split())  # long names take two lines
    assert found["findings"][0]["epsilon_bound"] > 0.8 * found["findings"][0]["epsilon_claim"]
    assert "BROKEN" not in answer.out
    assert max(len(line) for line in answer.out.replace(str(kept), "").splitlines()) <= 80


def test_noise_that_falls_short_exits_with_three(
    ask: Ask, tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_the_noise(monkeypatch, 0.8)
    answer = ask("audit", tiny_recipe, *SMALL, "-o", tmp_path / "audit.json", "--json")
    assert answer.code == 3
    found = json.loads(answer.out)
    assert found["is_broken"]
    assert found["findings"][0]["is_broken"]
    assert found == json.loads((tmp_path / "audit.json").read_text())
    assert "BROKEN" in ask("audit", tiny_recipe, *SMALL, "-o", tmp_path / "audit.json").out


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_an_audit_says_where_its_findings_are_and_whether_it_replaced_others(
    ask: Ask, tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("audit", tiny_recipe, "--canaries", "200", "--rounds", "1", *form)
    first = ask(*words)
    assert first.code == 0, first.err
    assert "audit.json" in (first.err if form else first.out)
    assert "replaced" not in first.out + first.err
    (tmp_path / "audit.json").write_text("of another recipe")
    again = ask(*words)
    assert "audit.json existed and was replaced" in " ".join(again.err.split())
    assert again.out == first.out
    assert json.loads((tmp_path / "audit.json").read_text())["findings"]


def test_a_run_is_audited_under_its_stored_plan_and_keeps_the_findings(
    ask: Ask, finished_run: Path, tmp_path: Path
) -> None:
    import shutil

    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    assert ask("audit", run, "--canaries", "200", "--rounds", "1").code == 0
    found = json.loads((run / "audit.json").read_text())
    assert found["plan"] == json.loads((run / "plan.json").read_text())["hash"]
    assert ask("audit", run, "--set", "privacy.epsilon=1").code == 2


def test_a_network_of_ones_own_is_audited_in_the_place_of_the_recipes(
    ask: Ask, tiny_recipe: Path, tmp_path: Path
) -> None:
    code = tmp_path / "mine.py"
    code.write_text(
        "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10, bias=False))\n"
    )
    kept = tmp_path / "audit.json"
    answer = ask("audit", tiny_recipe, "--model", f"{code}:build", "--canaries", "9000", "--rounds", "1", "-o", kept)
    assert answer.code == 0, answer.err
    assert json.loads(kept.read_text())["findings"][0]["num_canaries"] == 7840


def test_one_run_trains_on_public_data_and_refuses_others(ask: Ask, tiny_recipe: Path, tmp_path: Path) -> None:
    kept = tmp_path / "audit.json"
    arguments = ("audit", tiny_recipe, "--kind", "one-run", "--canaries", "50", "-o", kept)
    answer = ask(*arguments)
    assert answer.code == 0, answer.err
    rows = json.loads(kept.read_text())["findings"]
    assert [row["attacker"] for row in rows] == ["loss, final model", "noisy gradients"]
    assert all(row["num_rounds"] == 4 for row in rows)
    refused = ask(*arguments, "--set", "data_is_public=false", "--set", "training.evaluate_every=")
    assert refused.code == 2
    assert "public data" in refused.err


def test_the_findings_say_the_same_whatever_the_training_data_are(
    ask: Ask, tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("the canary audit must read no data")

    monkeypatch.setattr("privet.runs.auditing.load", never)
    first, second = (
        ask("audit", tiny_recipe, "--canaries", "100", "--rounds", "1", "-o", tmp_path / "audit.json") for _ in range(2)
    )
    assert first.out == second.out
    assert first.code == second.code == 0


@pytest.mark.parametrize("wrong", [("--canaries", "0"), ("--confidence", "1"), ("--kind", "other")], ids=str)
def test_impossible_settings_are_wrong_usage(ask: Ask, wrong: tuple[str, str]) -> None:
    assert ask("audit", "demo", *wrong).code == 2
