"""Laws of a search as a job: one ledger, one total, a kill loses no charge, adaptive samplers pay for every trial."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from click.testing import CliRunner

from privet.accounting.ledger import Ledger
from privet.accounting.private_selection import RandomSearch
from privet.cli.account import account
from privet.datasets.tasks import Classes, Number, Several
from privet.errors import LedgerMismatch, RecipeError
from privet.mechanism.events import compose, same_event
from privet.runs import tuning
from privet.runs.ledger_check import check_ledger
from privet.runs.recipes.recipe import Recipe
from privet.runs.recipes.recipe_files import load_recipe
from privet.runs.search_files import SearchFiles, check_search
from privet.runs.search_law import Choice, Range, SearchLaw
from privet.runs.trial_charges import EveryTrial, IndependentTrials, TrialCharges
from privet.runs.trial_samplers import FromLaw, FromOptuna, Trial, TrialSampler
from privet.runs.tuning import Tuning

TINY = ("privacy.sampling.epochs=", "privacy.sampling.steps=1", "privacy.sampling.batch_size=64")
FEW = (*TINY, "training.evaluate_every=", "training.device=cpu")
LAW = SearchLaw.parse(["training.optimizer.learning_rate=0.5:8:log", "privacy.clipping.norm=0.05,0.1"])
TEN = IndependentTrials(search=RandomSearch(mean=10.0))


def recipe(*changes: str) -> Recipe:
    return load_recipe("demo", [*FEW, *changes])


def search(
    folder: Path, *changes: str, charges: TrialCharges = TEN, sampler: TrialSampler | None = None, law: SearchLaw = LAW
) -> Tuning:
    return Tuning(recipe(*changes), folder, law=law, charges=charges, sampler=sampler or FromLaw())


@pytest.fixture
def of_length(monkeypatch: pytest.MonkeyPatch) -> Any:
    def fixed(count: int) -> None:
        monkeypatch.setattr(RandomSearch, "draw_num_runs", lambda self, rng: count)

    return fixed


def scores(folder: Path) -> list[float]:
    return [json.loads(path.read_text())["score"] for path in sorted(folder.glob("trials/*/trial.json"))]


def test_ten_trials_have_one_ledger_one_total_and_the_best_model(tmp_path: Path, of_length: Any) -> None:
    of_length(10)
    job = search(tmp_path / "s")
    promised = job.planned
    found = job.run()
    assert found is not None
    assert len(scores(tmp_path / "s")) == 10
    assert found.guarantee.epsilon == promised.epsilon <= 3.0
    assert found.score == max(scores(tmp_path / "s"))
    chosen = tmp_path / "s" / "chosen"
    statement = (chosen / "statement.txt").read_text()
    assert "the number of runs was drawn once" in statement
    assert "no run depends on another" in statement
    stored = json.loads((chosen / "guarantee.json").read_text())
    assert stored["guarantee"]["epsilon"] == promised.epsilon
    assert set(stored["settings"]) == {"training.optimizer.learning_rate", "privacy.clipping.norm"}
    assert not (chosen / "ledger.jsonl").exists(), "the chosen model has no ledger that would claim one run's cost"
    one = check_ledger(tmp_path / "s" / "trials" / "0001")
    assert one.spent.epsilon < promised.epsilon
    assert tuning.OF_A_TRIAL in one.spent.assumptions
    for place in (tmp_path / "s", tmp_path / "s" / "search.jsonl"):
        told = CliRunner().invoke(account, [str(place)])
        assert told.exit_code == 0, told.output
        assert "a random number of trials" in told.output
        assert str(found.guarantee) in told.output


def test_the_whole_search_is_charged_before_its_first_trial(
    tmp_path: Path, of_length: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_length(2)
    job = search(tmp_path / "s")

    def dies(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("no trial")

    monkeypatch.setattr(tuning, "train", dies)
    with pytest.raises(RuntimeError, match="no trial"):
        job.run()
    charged = Ledger.read(tmp_path / "s" / "search.jsonl").charged
    assert [count for _, count in charged] == [1]
    assert job.spent().epsilon == job.planned.epsilon


def test_a_search_that_was_stopped_goes_on_with_the_same_trials_and_no_further_charge(
    tmp_path: Path, of_length: Any
) -> None:
    of_length(3)
    calls: list[Trial] = []
    assert search(tmp_path / "s").run(should_stop=lambda: len(calls) == 2, after_trial=calls.append) is None
    of_length(4)  # the number was drawn once
    found = search(tmp_path / "s").run()
    assert found is not None
    assert len(scores(tmp_path / "s")) == 3
    key = int(json.loads((tmp_path / "s" / "secret.json").read_text())["key"], 16)
    for number in (1, 2, 3):
        stored = json.loads((tmp_path / "s" / "trials" / f"{number:04d}" / "trial.json").read_text())
        assert stored["values"] == FromLaw().propose(LAW, number, [], key)
    assert found.guarantee.epsilon == search(tmp_path / "s").planned.epsilon


def test_a_trial_that_was_broken_off_stays_charged_and_another_takes_its_place(
    tmp_path: Path, of_length: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_length(2)
    real = tuning.train

    def breaks_off(*arguments: Any, **options: Any) -> Any:
        real(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "train", breaks_off)
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "s").run()
    assert "Take the search up again" in str(check_search(SearchFiles(folder=tmp_path / "s")).mismatch)
    monkeypatch.setattr(tuning, "train", real)
    job = search(tmp_path / "s")
    found = job.run()
    assert found is not None
    assert len(scores(tmp_path / "s")) == 2
    assert len(list((tmp_path / "s" / "trials").iterdir())) == 3
    assert found.guarantee.epsilon > job.planned.epsilon
    told = check_search(SearchFiles(folder=tmp_path / "s"))
    assert (told.num_searches, told.num_trials, told.mismatch) == (1, 1, None)
    assert told.spent.epsilon == found.guarantee.epsilon
    again = search(tmp_path / "s").run()
    assert again is not None
    assert again.guarantee.epsilon == found.guarantee.epsilon, "and it is charged once"


SCRIPT = """
import sys
from pathlib import Path
from tests.runs.test_tuning import search
from privet.accounting.private_selection import RandomSearch
RandomSearch.draw_num_runs = lambda self, rng: 2
search(Path(sys.argv[1])).run(after_trial=lambda trial: print("done", flush=True))
"""


def test_a_kill_at_any_moment_loses_no_charge(tmp_path: Path, of_length: Any) -> None:
    of_length(2)
    folder = tmp_path / "s"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)], env=dict(os.environ))
    begun, deadline = folder / "trials" / "0001" / "ledger.jsonl", time.monotonic() + 120
    while not begun.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    was_broken = not (folder / "trials" / "0001" / "trial.json").exists()
    job = search(folder)
    assert job.spent().epsilon >= job.planned.epsilon, "the charge was durable before the trial began"
    found = job.run()
    assert found is not None
    assert (found.guarantee.epsilon > job.planned.epsilon) == was_broken


MOMENTS = (
    "secret.json", "search.jsonl", "trials/0001", "trials/0001/ledger.jsonl", "trials/0001/model.safetensors",
    "trials/0001/trial.json", "trials/0002/ledger.jsonl", "trials/0002/trial.json", "chosen", "chosen/guarantee.json",
)  # fmt: skip
BY_TRIAL = """
import sys
from pathlib import Path
from tests.runs.test_tuning import search
from privet.runs.trial_charges import EveryTrial
search(Path(sys.argv[1]), charges=EveryTrial(count=2)).run()
"""


def killed(script: str, folder: Path, *, moment: str | None, seconds: float) -> None:
    """Run a search in a process of its own, and kill it some time after a file has appeared."""
    process = subprocess.Popen([sys.executable, "-c", script, str(folder)], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while moment and not (folder / moment).exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.wait()


def begun(folder: Path) -> list[Path]:
    return [path.parent for path in folder.glob("trials/*/ledger.jsonl")]


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("script", [SCRIPT, BY_TRIAL], ids=["one charge", "every trial"])
def test_two_kills_at_any_moments_lose_no_charge(tmp_path: Path, of_length: Any, script: str, moment: str) -> None:
    of_length(2)
    charges: TrialCharges = TEN if script is SCRIPT else EveryTrial(count=2)
    folder, rng = tmp_path / "s", np.random.default_rng(MOMENTS.index(moment))
    for when, seconds in ((moment, 0.0), (None, float(rng.uniform(3, 12)))):
        killed(script, folder, moment=when, seconds=seconds)
        job, number = search(folder, charges=charges), len(begun(folder))
        least = job.planned if script is SCRIPT else job._stated(EveryTrial(count=max(1, number)).total(job._one_run))
        assert not number or job.spent().epsilon >= least.epsilon, "a trial is charged before it begins"
    found = search(folder, charges=charges).run()
    assert found is not None
    broken = [path for path in begun(folder) if not (path / "trial.json").exists()]
    whole = compose([(charges.total(job._one_run), 1), *[(job._one_run, 1) for _ in broken]])
    assert found.guarantee.epsilon >= job._stated(whole).epsilon * (1 - 1e-9), "and a broken one stays charged"
    assert search(folder, charges=charges).spent().epsilon == found.guarantee.epsilon


# ------------------------------------------------------------------------------------------------ adaptive samplers


class Follows:
    """Goes near the best trial so far."""

    adapts: ClassVar[bool] = True

    def propose(self, law: SearchLaw, number: int, done: Sequence[Trial], key: int) -> dict[str, Any]:
        if not done:
            return law.draw(np.random.default_rng(key))
        return dict(max(done, key=lambda trial: trial.score).values)


def test_an_adaptive_sampler_is_charged_more(tmp_path: Path) -> None:
    """The demo as it is, ten trials: nothing runs, since the guarantee is known beforehand."""
    fixed, adaptive = load_recipe("demo"), EveryTrial(count=10)
    quiet = load_recipe("demo", ["privacy.epsilon=", "privacy.noise.noise_multiplier=4.0"])
    random = Tuning(quiet, tmp_path / "r", law=LAW, charges=TEN, sampler=FromLaw()).planned
    follows = Tuning(quiet, tmp_path / "a", law=LAW, charges=adaptive, sampler=Follows()).planned
    assert follows.epsilon > 1.3 * random.epsilon
    assert any("every trial is charged in full" in word for word in follows.assumptions)
    noises = []
    for name, charges in (("b", TEN), ("c", adaptive)):
        assert Tuning(fixed, tmp_path / name, law=LAW, charges=charges, sampler=FromLaw()).planned.epsilon <= 3.0
        stored = json.loads((tmp_path / name / "tuning.json").read_text())
        noises.append(stored["trial"]["privacy"]["noise"]["noise_multiplier"])
    assert noises[1] > 1.2 * noises[0], "at the same epsilon it needs more noise"


def test_every_adaptive_trial_is_charged_before_it_begins(tmp_path: Path) -> None:
    job = search(tmp_path / "s", charges=EveryTrial(count=3), sampler=Follows())
    counts: list[int] = []
    file = tmp_path / "s" / "search.jsonl"
    found = job.run(after_trial=lambda trial: counts.append(Ledger.read(file).charged_rounds))
    assert counts == [1, 2, 3]
    assert found is not None
    assert found.guarantee.epsilon == pytest.approx(job.planned.epsilon)
    told = check_search(SearchFiles(folder=tmp_path / "s"))
    assert (told.num_searches, told.num_trials, told.mismatch) == (0, 3, None)


def test_a_sampler_that_learns_is_refused_where_trials_must_be_independent(tmp_path: Path) -> None:
    for sampler in (Follows(), FromOptuna()):
        with pytest.raises(RecipeError, match="proven for independent trials"):
            search(tmp_path / "s", sampler=sampler)
    assert not (tmp_path / "s").exists()


def test_optuna_is_optional_and_learns_from_finished_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(RecipeError, match="pip install optuna"):
        FromOptuna().propose(LAW, 1, [], 7)
    monkeypatch.undo()
    pytest.importorskip("optuna")
    done = [Trial(number=n, values=LAW.draw(np.random.default_rng(n)), score=float(n)) for n in range(1, 13)]
    found = FromOptuna().propose(LAW, 13, done, 7)
    assert 0.5 <= found["training.optimizer.learning_rate"] <= 8
    assert found["privacy.clipping.norm"] in (0.05, 0.1)


# ------------------------------------------------------------------------------------------------------- refusals


def test_settings_that_change_the_cost_of_a_run_do_not_vary(tmp_path: Path) -> None:
    for path in (
        "privacy.noise.noise_multiplier=1,2",
        "privacy.sampling.steps=1,2",
        "training.seed=1,2",
        "dataset=a,b",
    ):
        with pytest.raises(RecipeError, match="cannot vary"):
            SearchLaw.parse([path])
    law = SearchLaw(settings=(Choice(path="privacy.clipping", values=("x",)),))
    with pytest.raises(RecipeError):
        search(tmp_path / "s", law=law)
    counting = ("privacy.clipping={kind='adaptive_quantile', norm=0.1, count_noise_std=5.0}",)
    law = SearchLaw.parse(["privacy.clipping.count_noise_std=1.0,50.0"])
    with pytest.raises(RecipeError, match="change what a run costs"):
        search(tmp_path / "t", *counting, law=law)


def test_trials_are_compared_on_public_data_only(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="compared on public data"):
        search(tmp_path / "s", "data_is_public=false")


def test_models_of_several_targets_are_compared_by_the_first_figure_of_the_first_of_them() -> None:
    ill, age = Classes(name="ill", class_names=("no", "yes")), Number(name="age", low=0.0, high=100.0)
    for parts, name, is_share in (((ill, age), "ill: accuracy", True), ((age, ill), "age: squared error", False)):
        measure = tuning._first_measure(Several(parts=parts))
        assert (measure, tuning._is_share(measure)) == (name, is_share)
    assert tuning._is_share(tuning._first_measure(ill))


def test_a_trial_that_diverged_is_the_worst_one_and_stays_so(
    tmp_path: Path, of_length: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_length(2)
    real, calls = tuning.evaluate, iter([True, False, False])

    def diverged_at_first(*arguments: Any, **options: Any) -> Any:
        found = real(*arguments, **options)
        return replace(found, measures=found.measures[1:]) if next(calls) else found

    monkeypatch.setattr(tuning, "evaluate", diverged_at_first)
    calls_done: list[Trial] = []
    job = search(tmp_path / "s")
    assert job.run(should_stop=lambda: len(calls_done) == 1, after_trial=calls_done.append) is None
    found = search(tmp_path / "s").run()
    assert found is not None
    assert scores(tmp_path / "s")[0] is None
    assert found.values != calls_done[0].values
    assert found.guarantee.epsilon == job.planned.epsilon, "a trial that diverged is one of the search"


def test_a_search_whose_trials_all_diverged_has_no_model(
    tmp_path: Path, of_length: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_length(1)
    monkeypatch.setattr(tuning.Tuning, "_figure", lambda self, folder, public: None)
    job = search(tmp_path / "s")
    with pytest.raises(RecipeError, match="No trial has a finite figure"):
        job.run()
    assert not (tmp_path / "s" / "chosen").exists()
    assert job.spent().epsilon == job.planned.epsilon


def test_a_law_that_is_refused_leaves_no_folder_behind(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="adamm"):
        search(tmp_path / "s", law=SearchLaw.parse(["training.optimizer.kind=sgd,adamm"]))
    assert not (tmp_path / "s").exists()


def test_another_search_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    search(tmp_path / "s")
    with pytest.raises(LedgerMismatch, match="holds another search"):
        search(tmp_path / "s", charges=IndependentTrials(search=RandomSearch(mean=20.0)))


@pytest.mark.parametrize("text", ["", "a", "training.x=", "training.x=1:b", "training.x=2:1", "training.x=0:1:log"])
def test_laws_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(RecipeError):
        SearchLaw.parse([text] if text else [])


def test_laws_are_drawn_as_they_are_written() -> None:
    law = SearchLaw.parse(["training.a=0.01:1:log", "training.b=2:3", "model=cnn,mlp", "training.c=true,false"])
    assert SearchLaw.parse(law.words()[:3]).settings == law.settings[:3]
    draws = [law.draw(np.random.default_rng(seed)) for seed in range(2000)]
    assert 0.45 < np.mean([draw["training.a"] < 0.1 for draw in draws]) < 0.55
    assert 0.45 < np.mean([draw["training.b"] < 2.5 for draw in draws]) < 0.55
    assert {draw["model"] for draw in draws} == {"cnn", "mlp"}
    assert {draw["training.c"] for draw in draws} == {True, False}
    assert isinstance(law.settings[0], Range)


def test_the_charge_of_a_search_is_that_of_account_search() -> None:
    one = recipe().plan().event
    assert same_event(TEN.total(one), RandomSearch(mean=10.0).event(one))
