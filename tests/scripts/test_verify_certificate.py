"""Laws of the independent verifier: it agrees with the library to a thousandth, and notices every change."""

from __future__ import annotations

import ast
import copy
import hashlib
import importlib.util
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event
from safetensors.numpy import save_file

from privet.accounting.guarantee import guarantee
from privet.accounting.ledger import Ledger
from privet.accounting.ledger.rows import canonical
from privet.mechanism.changing_clipping import AdaptiveQuantile
from privet.mechanism.clipping import Automatic, Threshold
from privet.mechanism.epoch_sampling import Cyclic, Shuffle
from privet.mechanism.events import DpEvent, SampledRecordsDpEvent, compose, encode_event
from privet.mechanism.laplace import L2Laplace
from privet.mechanism.noise import Gaussian
from privet.mechanism.persons import BoundedPersons, SampledPersons
from privet.mechanism.sampling import FullBatch, Poisson, Sampling
from privet.mechanism.strong_convexity import StronglyConvexDescent
from privet.plan import Plan
from privet.reports.certificate import Standing, certify
from privet.reports.certificate_page import write_certificate
from privet.vocabulary import Adjacency, Release, Unit
from tests.accounting.ledgers import done
from tests.reports.certificates import plan_of, spend

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "verify_certificate.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verify_certificate", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


VERIFIER = load()
HOLDS, WRONG, UNDECIDED = 0, 1, 2


def sampled(rate: float, multiplier: float) -> DpEvent:
    gaussian = dp_event.GaussianDpEvent(multiplier)
    return gaussian if rate == 1 else dp_event.PoissonSampledDpEvent(rate, gaussian)


def both_epsilons(parts: list[tuple[DpEvent, int]], delta: float, adjacency: Adjacency) -> tuple[float, float]:
    claim = guarantee(compose(parts), delta=delta, adjacency=adjacency, unit=Unit.RECORD).epsilon
    events = {VERIFIER.canonical(encode_event(event)): count for event, count in parts}
    return claim, VERIFIER.recomputed_epsilon(events, delta=delta, relation=adjacency.value)


def test_it_uses_nothing_of_the_library() -> None:
    tree = ast.parse(SCRIPT.read_text(encoding="utf-8"))
    roots = {name.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    roots |= {str(node.module).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert "privet" not in roots
    assert roots - set(sys.stdlib_module_names) == {"numpy", "scipy"}


@pytest.mark.parametrize(
    ("rate", "multiplier", "count", "delta"),
    [
        (0.01, 1.0, 1000, 1e-5),
        (256 / 60_000, 0.7, 14_063, 1e-5),
        (0.1, 4.0, 10_000, 1e-6),
        (1.0, 5.0, 50, 1e-5),
        (0.001, 0.5, 100, 1e-8),
        (0.0005, 0.6, 200_000, 1e-7),
        (0.2, 20.0, 10, 1e-5),
        (0.9, 3.0, 30, 1e-3),
        (0.05, 0.4, 3, 1e-5),
    ],
)
@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE], ids=lambda member: member.value)
def test_both_accountants_agree_to_a_thousandth(
    rate: float,
    multiplier: float,
    count: int,
    delta: float,
    adjacency: Adjacency,
    record_property: Callable[[str, object], None],
) -> None:
    claim, found = both_epsilons([(sampled(rate, multiplier), count)], delta, adjacency)
    record_property("plans recomputed", 1)
    record_property("largest relative difference", f"{abs(found / claim - 1):.1e}")
    assert found == pytest.approx(claim, rel=1e-3)


@pytest.mark.parametrize(
    ("rate", "records", "multiplier", "count", "delta"),
    [(0.01, 8, 2.0, 1000, 1e-6), (0.2, 3, 1.0, 30, 1e-5), (0.001, 64, 4.0, 5000, 1e-5), (1.0, 4, 20.0, 9, 1e-5)],
)
def test_both_accountants_agree_about_several_records_of_a_person(
    rate: float, records: int, multiplier: float, count: int, delta: float
) -> None:
    event = SampledRecordsDpEvent(sampling_probability=rate, num_records=records, noise_multiplier=multiplier)
    claim, found = both_epsilons([(event, count)], delta, Adjacency.ADD_REMOVE)
    assert found == pytest.approx(claim, rel=1e-3)


PERSONS = {
    "persons": SampledPersons(sampling=Poisson(rate=0.01, steps=50, expected_batch_size=10), max_records=4),
    "shuffled persons": SampledPersons(sampling=Shuffle(batches=5, epochs=3, expected_batch_size=10), max_records=1),
    "records": BoundedPersons(sampling=Poisson(rate=0.01, steps=50, expected_batch_size=10), max_records=4),
    "all records": BoundedPersons(sampling=FullBatch(steps=50, expected_batch_size=10), max_records=2),
    "whole persons": Poisson(rate=0.01, steps=50, expected_batch_size=10),
}


@pytest.mark.parametrize("name", PERSONS)
def test_certificates_about_persons_hold_and_a_larger_bound_on_records_does_not(name: str, tmp_path: Path) -> None:
    adjacency = Adjacency.ZERO_OUT if "shuffled" in name else Adjacency.ADD_REMOVE
    plan = replace(plan_of(adjacency=adjacency), sampling=PERSONS[name], unit=Unit.PERSON)
    folder = spend(tmp_path / "run", plan)
    write_certificate(certify(folder), folder)
    assert VERIFIER.main([str(folder)]) == HOLDS
    text = (folder / "certificate.json").read_text()
    certificate = json.loads(text)
    assert "one person" in certificate["statement"]
    if PERSONS[name].contribution is None:
        return
    told = next(word for word in certificate["assumptions"] if "at most" in word and "person" in word)
    forged = json.loads(text.replace(told, told.replace("at most", "at least")))
    forged.pop("digest")
    forged["digest"] = hashlib.sha256(canonical(forged)).hexdigest()
    (folder / "certificate.json").write_text(json.dumps(forged))
    assert VERIFIER.main([str(folder)]) == WRONG


def test_mixed_rounds_and_several_releases_on_one_sample_agree() -> None:
    joint = dp_event.PoissonSampledDpEvent(
        0.02, dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(1.5), dp_event.GaussianDpEvent(9.0)])
    )
    parts = [(joint, 400), (sampled(0.01, 1.1), 300), (sampled(1.0, 30.0), 4)]
    claim, found = both_epsilons(parts, 1e-5, Adjacency.ADD_REMOVE)
    assert found == pytest.approx(claim, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_random_plans_agree_to_a_thousandth(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [
        (
            sampled(
                float(np.exp(rng.uniform(math.log(1e-3), 0))), float(np.exp(rng.uniform(math.log(0.5), math.log(8))))
            ),
            int(np.exp(rng.uniform(0, math.log(2e4)))),
        )
        for _ in range(int(rng.integers(1, 4)))
    ]
    adjacency = list(Adjacency)[seed % 3]
    try:
        claim, found = both_epsilons(parts, float(10 ** rng.uniform(-8, -3)), adjacency)
    except VERIFIER.Undecided:
        pytest.skip("the program says that its grid is too coarse for this plan")
    if claim > 1e-3:
        assert found == pytest.approx(claim, rel=1e-3)


def test_nothing_spent_is_zero_and_no_noise_is_infinite() -> None:
    assert VERIFIER.recomputed_epsilon({}, delta=1e-5, relation="add_or_remove") == 0
    for event in (dp_event.NonPrivateDpEvent(), dp_event.GaussianDpEvent(0.0)):
        events = {VERIFIER.canonical(encode_event(event)): 1}
        assert math.isinf(VERIFIER.recomputed_epsilon(events, delta=1e-5, relation="add_or_remove"))


def test_events_it_does_not_know_are_never_guessed_at() -> None:
    for event in (dp_event.LaplaceDpEvent(1.0), dp_event.SampledWithoutReplacementDpEvent(9, 3, sampled(1.0, 1.0))):
        events = {VERIFIER.canonical(encode_event(event)): 1}
        with pytest.raises(VERIFIER.Undecided):
            VERIFIER.recomputed_epsilon(events, delta=1e-5, relation="add_or_remove")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = spend(tmp_path_factory.mktemp("certified") / "run", plan_of(steps=60), blocks=6)
    write_certificate(certify(folder), folder)
    return folder


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


def verdict(run: Path, *more: str) -> int:
    return int(VERIFIER.main([str(run), *more]))


def resigned(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a certificate as a forger would: the digest is made to fit."""
    path = run / "certificate.json"
    values = json.loads(path.read_text())
    change(values)
    values.pop("digest")
    path.write_text(json.dumps(values | {"digest": hashlib.sha256(canonical(values)).hexdigest()}))


def test_an_honest_certificate_holds(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verdict(run) == HOLDS
    assert capsys.readouterr().out.endswith("PASS\n")


def claimed(run: Path, **figures: Any) -> None:
    """Write the certificate of a forger who claims other figures and rewrites every word to fit."""
    honest = certify(run)
    write_certificate(replace(honest, check=replace(honest.check, spent=replace(honest.guarantee, **figures))), run)


@pytest.mark.parametrize(("share", "expected"), [(0.9995, HOLDS), (0.998, WRONG)])
def test_a_claim_below_the_recomputed_epsilon_holds_within_the_tolerance_that_is_printed(
    run: Path, capsys: pytest.CaptureFixture[str], share: float, expected: int
) -> None:
    account = VERIFIER.Account.read((run / "ledger.jsonl").read_bytes())
    promise = json.loads((run / "certificate.json").read_text())["guarantee"]
    found = VERIFIER.recomputed_epsilon(account.events, delta=promise["delta"], relation=promise["adjacency"])
    claimed(run, epsilon=share * found)
    assert verdict(run) == expected
    line = next(line for line in capsys.readouterr().out.splitlines() if "is claimed" in line or "claimed," in line)
    assert f"{share * found:.6g}" in line
    assert f"{found:.6g}" in line
    assert "0.1 %" in line


@pytest.mark.parametrize(
    "figures",
    [
        {"mu": 0.01},
        {"delta": 1e-6},
        {"unit": Unit.PERSON},
        {"adjacency": Adjacency.ZERO_OUT},
        {"released": Release.LAST_ITERATE},
        {"assumptions": ()},
        {"accountant": "RDP"},
        {"lower": 0.01},
        {"epsilon": 99.0},
    ],
    ids=lambda figures: next(iter(figures)),
)
def test_a_forgery_in_which_every_word_fits_is_noticed(run: Path, figures: dict[str, Any]) -> None:
    claimed(run, **figures)
    assert verdict(run) != HOLDS


def test_the_ledger_may_lie_elsewhere(run: Path, tmp_path: Path) -> None:
    moved = (run / "ledger.jsonl").rename(tmp_path / "elsewhere.jsonl")
    assert verdict(run) == WRONG
    assert verdict(run, "--ledger", str(moved)) == HOLDS


def test_every_changed_byte_of_the_ledger_is_noticed(run: Path) -> None:
    ledger = run / "ledger.jsonl"
    data = ledger.read_bytes()
    for place in range(0, len(data), 41):
        for value in (data[place] ^ 1, data[place] ^ 0x80):
            ledger.write_bytes(data[:place] + bytes([value]) + data[place + 1 :])
            assert verdict(run) == WRONG, place


def test_every_changed_character_of_the_certificate_is_noticed(run: Path) -> None:
    path = run / "certificate.json"
    text = path.read_text()
    values = json.loads(text)
    for place in range(0, len(text), 61):
        changed = text[:place] + ("7" if text[place] != "7" else "3") + text[place + 1 :]
        path.write_text(changed)
        try:
            is_same = json.loads(changed) == values
        except ValueError:
            is_same = False
        assert is_same or verdict(run) != HOLDS, place


@pytest.mark.parametrize("kept", [0, 1, 3, -1])
def test_a_rolled_back_ledger_is_noticed(run: Path, kept: int) -> None:
    ledger = run / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:kept]))
    assert verdict(run) == WRONG


def test_a_ledger_that_has_grown_is_noticed(run: Path) -> None:
    from privet.accounting.ledger import Ledger

    plan = plan_of(steps=60)
    with Ledger.open(run / "ledger.jsonl", plan_hash=plan.hash) as ledger:
        ledger.reserve(plan.round_event)
        ledger.check(done(plan.round_event))
    assert verdict(run) == WRONG


def test_the_whole_ledger_of_another_run_is_noticed(run: Path, tmp_path: Path) -> None:
    other = spend(tmp_path / "other", plan_of(steps=60), blocks=6)
    shutil.copy(other / "ledger.jsonl", run / "ledger.jsonl")
    assert verdict(run) == WRONG


def lower_epsilon(values: dict[str, Any]) -> None:
    values["guarantee"]["epsilon"] *= 0.99


def fewer_rounds(values: dict[str, Any]) -> None:
    values["ledger"]["events"][0]["count"] -= 1


def larger_delta(values: dict[str, Any]) -> None:
    values["guarantee"]["delta"] *= 10


def other_relation(values: dict[str, Any]) -> None:
    values["guarantee"]["adjacency"] = "zero_out"


def other_plan(values: dict[str, Any]) -> None:
    values["plan"]["values"]["noise"]["noise_multiplier"] = 3.0


def missing_part(values: dict[str, Any]) -> None:
    del values["ledger"]["head"]


def a_model_from_nowhere(values: dict[str, Any]) -> None:
    values["model"] = {"file": "../certificate.json", "sha256": "0" * 64, "num_coordinates": 1}


FORGERIES = [lower_epsilon, fewer_rounds, larger_delta, other_relation, other_plan, missing_part, a_model_from_nowhere]


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda forgery: forgery.__name__)
def test_a_forged_certificate_whose_digest_fits_is_noticed(
    run: Path, forgery: Callable[[dict[str, Any]], None]
) -> None:
    resigned(run, lambda values: None)
    assert verdict(run) == HOLDS
    resigned(run, forgery)
    assert verdict(run) == WRONG


def test_another_model_is_noticed(run: Path) -> None:
    (run / "model.safetensors").write_bytes(b"another")
    assert verdict(run) == WRONG


def test_a_certificate_that_promises_nothing_does_not_pass(run: Path) -> None:
    resigned(run, lambda values: values["guarantee"].update(not_private_because=["it was seeded"]))
    assert verdict(run) == WRONG


def test_a_certificate_of_an_older_version_is_refused_with_the_way_out(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resigned(run, lambda values: values.update(schema_version=1))
    assert verdict(run) == WRONG
    assert "certify again" in capsys.readouterr().out


def test_later_versions_and_other_noise_are_undecided(run: Path, tmp_path: Path) -> None:
    resigned(run, lambda values: values.update(schema_version=3))
    assert verdict(run) == UNDECIDED
    other = spend(tmp_path / "other", plan_of(noise=L2Laplace(num_coordinates=9, noise_multiplier=2.0), steps=5))
    write_certificate(certify(other), other)
    assert verdict(other) == UNDECIDED


def test_nothing_in_the_place_of_a_certificate_is_wrong(tmp_path: Path) -> None:
    assert verdict(tmp_path) == WRONG
    for text in ("", "[]", "{", "NaN", '{"schema": "privet certificate", "schema_version": 2, "digest": NaN}'):
        (tmp_path / "certificate.json").write_text(text)
        assert verdict(tmp_path) == WRONG


def test_a_certificate_that_promises_privacy_for_a_seeded_ledger_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(steps=5)
    with Ledger.create(tmp_path / "ledger.jsonl", plan=plan.to_dict(), plan_hash=plan.hash, is_seeded=True) as ledger:
        ledger.reserve(plan.round_event, 5)
        for _ in range(5):
            ledger.check(done(plan.round_event))
    write_certificate(certify(tmp_path), tmp_path)
    assert verdict(tmp_path) == WRONG
    resigned(tmp_path, lambda values: values["guarantee"].update(not_private_because=[]))
    capsys.readouterr()
    assert verdict(tmp_path) == WRONG
    assert "the user chose the seed" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------ every entry in turn


CHANGES: dict[type, tuple[Any, ...]] = {
    bool: ("true", 1, 0, None),
    int: (-1, -7, 10**18, 10**400, 1.5, "12", None, True, math.nan, math.inf),
    float: (-1.0, 0, 1e300, 1e-300, "infinity", "0.5", None, False, math.nan, math.inf, -math.inf),
    str: ("", "another text", 7, None, ["a"], {}, True),
    type(None): (0, -1, 1e-5, "something", False, {}, [], math.nan),
    list: ({}, None, "text", 3, [[]]),
    dict: ([], None, "text", 3, {"a": 1}),
}


def changes_of(value: Any) -> Iterator[Any]:
    """Yield other values for one entry: other numbers, other words, other kinds, and nothing finite."""
    yield from CHANGES[type(value)]
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1, -value - 1, float(value), str(value))
    elif isinstance(value, float):
        yield from (value * 1.01 + 1e-9, value * 0.99 - 1e-9, -value - 1e-9, str(value), int(value) + 1)
    elif isinstance(value, str):
        yield from (value + " ", value.upper() + "!", value[:-1] + "?")
    elif isinstance(value, list):
        yield from ([*value, "something else"], [*value, {}], [*value, *value, None])
        yield from ([value[1:], value[:-1]] if value else [])
        yield from ([value[::-1]] if value != value[::-1] else [])
    elif isinstance(value, dict):
        yield value | {"something": "else"}
        yield from ({name: value[name] for name in value if name != left_out} for left_out in value)


def places_of(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every entry, that of the whole first."""
    yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in inner:
        yield from places_of(part, (*place, name))


def at_place(values: Any, place: tuple[Any, ...]) -> Any:
    for name in place:
        values = values[name]
    return values


def mutants_of(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (where, text) of certificates that differ in one entry, with a digest that fits."""
    for place in places_of(values):
        original = at_place(values, place)
        for changed in changes_of(original):
            if json.dumps(changed) == json.dumps(original):
                continue
            mutant: Any = copy.deepcopy(values)
            if place:
                at_place(mutant, place[:-1])[place[-1]] = changed
            else:
                mutant = changed
            if isinstance(mutant, dict) and "digest" in mutant and place != ("digest",):
                inner = {name: value for name, value in mutant.items() if name != "digest"}
                form = json.dumps(inner, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
                mutant = inner | {"digest": hashlib.sha256(form.encode()).hexdigest()}
            yield f"{'.'.join(map(str, place))}: {changed!r}"[:200], json.dumps(mutant)


def last_iterate_run(folder: Path) -> Path:
    plan = last_iterate_plan()
    with Ledger.create(folder / "ledger.jsonl", plan=plan.to_dict(), plan_hash=plan.hash) as ledger:
        ledger.reserve(plan.round_event, plan.num_rounds)
        for _ in range(plan.num_rounds):
            ledger.check(done(plan.round_event))
        ledger.complete()
    return folder


def unfinished_run(folder: Path) -> Path:
    return spend(folder, plan_of(steps=9), rounds=4)


def run_beyond_its_plan(folder: Path) -> Path:
    return spend(folder, plan_of(rate=1, steps=4), rounds=6)


def nothing_done(folder: Path) -> Path:
    plan = plan_of(rate=1)
    with Ledger.create(folder / "ledger.jsonl", plan=plan.to_dict(), plan_hash=plan.hash):
        return folder


def whole_folder(folder: Path) -> Path:
    """A run with all the files that a certificate names."""
    spend(folder, plan_of(rate=1, steps=3, noise_multiplier=0.6), rounds=3)
    save_file({"weight": np.zeros((3, 4), np.float32), "bias": np.zeros(4, np.float32)}, folder / "model.safetensors")
    (folder / "plan.json").write_text("{}")
    (folder / "env.json").write_text(json.dumps({"processes": [{"device": "cpu", "python": "3.12", "pid": 7}]}))
    return folder


@pytest.mark.parametrize(
    ("made", "every"),
    [(whole_folder, 1), (last_iterate_run, 3), (unfinished_run, 5), (run_beyond_its_plan, 7), (nothing_done, 7)],
    ids=lambda value: value.__name__ if callable(value) else f"every-{value}",
)
def test_no_certificate_with_another_entry_than_its_ledger_and_files_give_passes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    made: Callable[[Path], Path],
    every: int,
) -> None:
    folder = made(tmp_path)
    write_certificate(certify(folder), folder)
    assert verdict(folder) == HOLDS
    # figures and tails follow from the ledger, which no mutant changes: once is enough for all of them
    for name in ("figures_of", "lost_mass"):
        monkeypatch.setattr(VERIFIER, name, remembered(getattr(VERIFIER, name)))
    path = folder / "certificate.json"
    mutants = list(mutants_of(json.loads(path.read_text())))[::every]
    passed = []
    for where, text in mutants:
        path.write_text(text)
        if verdict(folder) == HOLDS:
            passed.append(where)
    capsys.readouterr()
    assert passed == []
    assert len(mutants) > 900 // every


def remembered(function: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[str, Any] = {}

    def answer(*values: Any, **named: Any) -> Any:
        key = repr((values, named))
        if key not in known:
            known[key] = function(*values, **named)
        return copy.copy(known[key])

    return answer


@pytest.mark.parametrize("name", ["plan.json", "env.json", "model.safetensors"])
def test_a_file_that_is_named_must_be_there_and_the_same(tmp_path: Path, name: str) -> None:
    folder = whole_folder(tmp_path)
    write_certificate(certify(folder), folder)
    path = folder / name
    data = path.read_bytes()
    path.unlink()
    assert verdict(folder) == UNDECIDED
    path.write_bytes(data.replace(b"3.12", b"3.13") if name == "env.json" else data + b" ")
    assert verdict(folder) == WRONG
    path.write_bytes(data)
    assert verdict(folder) == HOLDS


def last_iterate_plan(**changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "sampling": Cyclic(batches=3, epochs=4, expected_batch_size=2.0),
        "clipping": Threshold(norm=1.0),
        "noise": Gaussian(noise_multiplier=3.0),
        "delta": 1e-5,
        "adjacency": Adjacency.REPLACE_ONE,
        "unit": Unit.RECORD,
        "release": Release.LAST_ITERATE,
        "descent": StronglyConvexDescent(learning_rate=0.5, ridge=0.1, gradient_bound=1.0, smoothness=0.5),
    }
    return Plan(**(fields | changes))


@pytest.mark.parametrize("ridge", [0.0, 1e-6, 0.1, 1.5])
@pytest.mark.parametrize(
    "sampling",
    [
        FullBatch(steps=40, expected_batch_size=2.0),
        Cyclic(batches=7, epochs=30, expected_batch_size=2.0),
        Cyclic(batches=2, epochs=1, expected_batch_size=2.0, secret_partition=True),
    ],
    ids=["whole", "cyclic", "one epoch"],
)
def test_the_bound_on_the_last_iterate_is_found_again(sampling: Sampling, ridge: float) -> None:
    descent = StronglyConvexDescent(learning_rate=0.5, ridge=ridge, gradient_bound=1.0, smoothness=0.5)
    plan = last_iterate_plan(sampling=sampling, descent=descent)
    values = json.loads(json.dumps(plan.to_dict()))
    mu = 2 / 3.0 * VERIFIER.last_iterate_ratio(values)
    promise = plan.guarantee()
    assert mu == pytest.approx(promise.mu, rel=1e-9)
    assert VERIFIER.gaussian_epsilon(mu, 1e-5) == pytest.approx(promise.epsilon, rel=1e-9)


@pytest.mark.parametrize("clipping", [AdaptiveQuantile(norm=1.0, count_noise_std=4.0), Automatic(norm=1.0)])
@pytest.mark.parametrize("sampling", [Poisson(rate=1.0, steps=3, expected_batch_size=4.0), plan_of(steps=3).sampling])
def test_honest_certificates_of_other_pieces_hold(tmp_path: Path, clipping: Any, sampling: Sampling) -> None:
    folder = spend(tmp_path, replace(plan_of(), clipping=clipping, sampling=sampling))
    write_certificate(certify(folder), folder)
    assert verdict(folder) == HOLDS


def test_a_last_iterate_that_broke_off_cannot_be_certified_as_one_that_ended(tmp_path: Path) -> None:
    plan = last_iterate_plan()
    folder = spend(tmp_path, plan)
    honest = certify(folder)
    assert honest.standing is Standing.UNFINISHED
    write_certificate(honest, folder)
    assert verdict(folder) == HOLDS
    ended = replace(honest.check, spent=plan.guarantee(), event=plan.event, is_finished=True)
    write_certificate(replace(honest, check=ended, is_complete=True, limits=honest.limits[1:]), folder)
    assert verdict(folder) == WRONG


def forged_with(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write another ledger with an intact chain under a changed plan, and a certificate that tells the same."""
    plan = plan_of(steps=60)
    values = json.loads(json.dumps(plan.to_dict()))
    change(values)
    ledger_path = run / "ledger.jsonl"
    ledger_path.unlink()
    with Ledger.create(ledger_path, plan=values, plan_hash=plan.hash) as ledger:
        ledger.reserve(plan.round_event, 60)
        for _ in range(60):
            ledger.check(done(plan.round_event))
    head = Ledger.read(ledger_path).head

    def retold(told: dict[str, Any]) -> None:
        told["plan"]["values"] = values
        told["ledger"]["head"] = {"seq": head.seq, "sha256": head.sha256}
        told["ledger"]["rows"] = head.seq + 1
        told["guarantee"]["delta"] = values["delta"]

    resigned(run, retold)


def test_another_ledger_with_the_same_plan_is_told_by_its_own_certificate(run: Path) -> None:
    forged_with(run, lambda plan: None)
    assert verdict(run) == HOLDS


@pytest.mark.parametrize("delta", ["infinity", 1.5, 1.0, 0.0, -1e-5, True, "1e-5", None, 10**9, [1e-5]], ids=repr)
def test_a_delta_that_is_no_probability_is_refused_whoever_states_it(run: Path, delta: object) -> None:
    forged_with(run, lambda plan: plan.update(delta=delta))
    assert verdict(run) == WRONG


@pytest.mark.parametrize("steps", [0, -60, True, 60.0, "60", 59, None], ids=repr)
def test_a_number_of_planned_rounds_that_is_none_is_refused(run: Path, steps: object) -> None:
    forged_with(run, lambda plan: plan["sampling"].update(steps=steps))
    assert verdict(run) == WRONG


def test_a_ledger_that_ends_in_an_unfinished_row_is_told_as_such(run: Path) -> None:
    with (run / "ledger.jsonl").open("ab") as file:
        file.write(b'{"body":{"count":1,')
    assert verdict(run) == WRONG
    write_certificate(certify(run), run)
    assert verdict(run) == HOLDS
