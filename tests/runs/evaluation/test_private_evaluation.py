"""Private evaluations of a run: charged on its ledger before a record is read, and part of every later statement."""

from __future__ import annotations

import csv
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from privet.accounting.ledger import Ledger, Purpose
from privet.errors import BudgetExceeded, CheckpointError, DataError
from privet.mechanism.events import same_event
from privet.reports.certificate import Standing, certify
from privet.runs.evaluated import stored_evaluation
from privet.runs.evaluation import private_evaluation
from privet.runs.evaluation.private_evaluation import Asked, evaluate_privately
from privet.runs.ledger_check import check_ledger
from privet.runs.prediction import predict_new
from privet.runs.recipes.recipe_files import load_recipe
from privet.runs.resuming import stored_plan
from privet.runs.run_files import RunFiles, read_json, write_json
from privet.runs.runner import train
from privet.training.further_release import VectorRelease
from privet.vocabulary import Adjacency
from scripts import verify_certificate
from tests.contract.statistics import ALPHA, chi_square

RECIPE = """
dataset = "people"
model = "logistic_regression"

[table]
train = "train.csv"
test = "held_out.csv"
train_size = 400
person = "id"
label = { name = "income", categories = ["low", "high"] }
columns = [
  { name = "age", low = 0, high = 100 },
  { name = "sex", categories = ["f", "m"] },
]

[evaluation]
epsilon = 1.0
groups = ["sex"]

[privacy]
epsilon = 2.0
delta = 1e-4
adjacency = "add_or_remove"
unit = "UNIT"
sampling = SAMPLING
clipping = { kind = "threshold", norm = 1.0 }
noise = { kind = "gaussian" }

[training]
optimizer = { kind = "sgd", learning_rate = 0.5 }
device = "cpu"
physical_batch_size = 100
"""
POISSON = '{ kind = "poisson", dataset_size = 400, batch_size = 100, steps = 8 }'
PERSONS = (
    '{ kind = "sampled_persons", max_records = 3, '
    'sampling = { kind = "poisson", dataset_size = 130, batch_size = 30, steps = 8 } }'
)


def write_people(path: Path, count: int, *, last: list[str] | None = None) -> None:
    draw = random.Random(count)
    with path.open("w", newline="") as target:
        rows = csv.writer(target)
        rows.writerow(["id", "age", "sex", "income"])
        for number in range(count):
            age = draw.randint(10, 90)
            rows.writerow([f"p{number // 3}", age, draw.choice("fm"), "high" if age > 55 else "low"])
        if last is not None:
            rows.writerow(last)


def make_run(folder: Path, *, unit: str = "record", sampling: str = POISSON) -> Path:
    write_people(folder / "train.csv", 400)
    write_people(folder / "held_out.csv", 300)
    (folder / "recipe.toml").write_text(RECIPE.replace("UNIT", unit).replace("SAMPLING", sampling))
    assert train(load_recipe(folder / "recipe.toml"), folder / "run").is_finished
    return folder / "run"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, which tests copy."""
    return make_run(tmp_path_factory.mktemp("people"))


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copied" / "run"))


ASKED = Asked(epsilon=1.0, groups=("sex",))


def test_the_total_of_the_ledger_includes_the_evaluation_and_the_plan_still_agrees(run: Path) -> None:
    before = check_ledger(run)
    found = evaluate_privately(run, ASKED)
    after, plan = check_ledger(run), stored_plan(RunFiles(folder=run))
    assert after.mismatch is None
    assert after.is_finished
    assert after.rounds_charged == before.rounds_charged
    assert before.spent.epsilon < after.spent.epsilon < before.spent.epsilon + 1
    assert after.spent.epsilon == ASKED.promised(plan).epsilon
    assert after.trained.epsilon == before.spent.epsilon
    assert [release.purpose for release in after.further] == [Purpose.EVALUATION]
    assert stored_evaluation(RunFiles(folder=run)) == found
    accuracy = found.figures.headline[0]
    assert accuracy.low < accuracy.value < accuracy.high


def test_the_release_is_charged_durably_before_a_record_is_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def refuse(*args: object) -> object:
        seen.append(Ledger.read(run / "ledger.jsonl").besides)
        raise DataError("the disk is gone")

    monkeypatch.setattr(private_evaluation, "held_out_data", refuse)
    with pytest.raises(DataError, match="the disk is gone"):
        evaluate_privately(run, ASKED)
    plan = stored_plan(RunFiles(folder=run))
    ((((event, count),),)) = (seen[0],)
    assert same_event(event, ASKED.release(plan).event)
    assert count == 1
    check = check_ledger(run)
    assert check.spent.epsilon == ASKED.promised(plan).epsilon  # a broken-off one stays charged
    assert check.num_voids == 1
    assert not (run / "evaluation.json").exists()


def test_a_second_evaluation_adds_up(run: Path) -> None:
    evaluate_privately(run, ASKED)
    once = check_ledger(run).spent.epsilon
    evaluate_privately(run, ASKED)
    assert check_ledger(run).spent.epsilon > once
    assert len(check_ledger(run).further) == 2


def test_a_total_above_what_is_allowed_and_a_wrong_column_are_refused_before_a_charge(run: Path) -> None:
    before = (run / "ledger.jsonl").read_bytes()
    with pytest.raises(BudgetExceeded, match="Nothing was charged"):
        evaluate_privately(run, ASKED, max_epsilon=2.0)
    with pytest.raises(DataError, match="'gender'"):
        evaluate_privately(run, Asked(epsilon=1.0, groups=("gender",)))
    (run / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="not finished"):
        evaluate_privately(run, ASKED)
    assert (run / "ledger.jsonl").read_bytes() == before


def test_the_certificate_includes_the_evaluation_and_the_separate_program_checks_it(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate_privately(run, ASKED)
    found = certify(run)
    assert found.standing is Standing.COMPLETE
    told = found.to_dict()
    assert told["ledger"]["besides_the_plan"][0]["purpose"] == "evaluation"
    (run / "certificate.json").write_text(json.dumps(told))
    assert verify_certificate.main([str(run)]) == 0
    # A certificate of the training alone, for the same ledger, is refused.
    told["ledger"].pop("besides_the_plan")
    told.pop("digest")
    import hashlib

    told["digest"] = hashlib.sha256(verify_certificate.canonical(told)).hexdigest()
    (run / "certificate.json").write_text(json.dumps(told))
    assert verify_certificate.main([str(run)]) == 1
    assert "besides_the_plan" in capsys.readouterr().out


def test_training_again_in_the_folder_neither_trains_nor_charges(made: Path, run: Path) -> None:
    evaluate_privately(run, ASKED)
    before = (run / "ledger.jsonl").read_bytes()
    again = train(load_recipe(run / "recipe.toml"), run)
    assert again.is_finished
    assert (run / "ledger.jsonl").read_bytes() == before


def test_training_reads_no_record_of_the_private_test_part(tmp_path: Path) -> None:
    write_people(tmp_path / "train.csv", 400)
    (tmp_path / "recipe.toml").write_text(RECIPE.replace("UNIT", "record").replace("SAMPLING", POISSON))
    assert train(load_recipe(tmp_path / "recipe.toml"), tmp_path / "run").is_finished


def test_each_person_counts_once_and_a_record_without_a_name_as_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path, unit="person", sampling=PERSONS)
    with (tmp_path / "held_out.csv").open("a") as held_out:
        held_out.write("".join(f",{age},f,high\n" for age in range(20, 80)))
    found = evaluate_privately(run, Asked(epsilon=50.0))
    assert found.released.terms.records_per_person == 3
    assert found.released.count.value == pytest.approx(100, abs=8)
    assert check_ledger(run).spent.unit.value == "person"


SPOILT = {
    "one less": None,
    "unreadable": ["", "?", "other", "middling"],
    "far outside": ["p9", "1e300", "m", "high"],
}


@pytest.mark.parametrize("last", SPOILT.values(), ids=SPOILT)
def test_neighbouring_records_leave_equal_folders_but_for_the_noisy_numbers(
    run: Path, tmp_path: Path, last: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = (Path(shutil.copytree(run, tmp_path / name / "run")) for name in ("left", "right"))
    write_people(tmp_path / "left.csv", 299, last=["p9", "40", "m", "low"])
    write_people(tmp_path / "right.csv", 299, last=last)
    told = []
    for folder in (left, right):
        # Another machine: on one, the second copy of a run would be noticed.
        monkeypatch.setenv("PRIVET_STATE", str(folder.parent / "state"))
        evaluate_privately(folder, ASKED, data=tmp_path / f"{folder.parent.name}.csv")
        found = read_json(folder / "evaluation.json")
        for name in ("figures", "head"):
            found.pop(name)
        assert len(found["released"].pop("vector")) > 30
        rows = [json.loads(row)["body"] for row in (folder / "ledger.jsonl").read_text().splitlines()]
        told.append((sorted(path.name for path in folder.iterdir()), found, rows))
    assert told[0] == told[1]


def test_probabilities_are_divided_by_the_temperature_and_decisions_stay(run: Path, made: Path) -> None:
    records = made.parent / "held_out.csv"
    plain = predict_new(run, records)
    found = evaluate_privately(run, ASKED)
    heated = found.to_dict()
    heated["released"]["temperature"] = 2.0 / found.figures.temperature
    write_json(run / "evaluation.json", heated)
    scaled = predict_new(run, records)
    assert scaled.classes == plain.classes
    logits, halved = (np.log(each.probabilities[:, 1] / each.probabilities[:, 0]) for each in (plain, scaled))
    np.testing.assert_allclose(halved, logits / 2, rtol=1e-6)


def test_an_attacker_who_knows_all_but_one_record_finds_the_noise_that_is_charged() -> None:
    """The audit of the release: its outcome along the neighbours' difference is a Gaussian of the claimed width."""
    release = VectorRelease.calibrated(
        purpose=Purpose.EVALUATION, epsilon=1.0, delta=1e-4, adjacency=Adjacency.ADD_REMOVE
    )
    weights = np.repeat([0.2, 0.7, 1.5], [4, 3, 5])
    one = np.zeros(12)
    one[[1, 5, 9]] = np.array([0.6, 0.0, 0.8]) / weights[[1, 5, 9]]  # of length 1 in the joint norm
    scores: dict[bool, list[float]] = {False: [], True: []}
    for is_in in (False, True):
        for _ in range(400):
            ledger = Ledger.in_memory("ab" * 32)
            vector = release.release(lambda is_in=is_in: one * is_in, weights=weights, ledger=ledger)
            scores[is_in].append(float((vector * weights) @ (one * weights)))
    for is_in, found in scores.items():
        centred = (np.array(found) - is_in) / release.noise_multiplier
        assert chi_square(float(centred @ centred), len(centred)) > ALPHA
