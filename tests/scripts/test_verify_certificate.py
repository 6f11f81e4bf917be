"""Laws of the independent verifier: it agrees with the library to a thousandth, and notices every change."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event

from privet.accounting.guarantee import guarantee
from privet.accounting.ledger import Ledger
from privet.accounting.ledger_rows import canonical
from privet.mechanism.events import DpEvent, compose, encode_event
from privet.mechanism.laplace import L2Laplace
from privet.mechanism.terms import Adjacency, Unit
from privet.reports.certificate import certify
from privet.reports.certificate_page import write_certificate
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
    standard = {"__future__", "argparse", "collections", "hashlib", "json", "math", "pathlib", "re", "sys", "typing"}
    assert roots - standard <= {"numpy", "scipy", "zlib"}


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


@pytest.mark.parametrize(("share", "expected"), [(0.9995, HOLDS), (0.998, WRONG)])
def test_a_claim_below_the_recomputed_epsilon_holds_within_the_tolerance_that_is_printed(
    run: Path, capsys: pytest.CaptureFixture[str], share: float, expected: int
) -> None:
    account = VERIFIER.Account.read((run / "ledger.jsonl").read_bytes())
    promise = json.loads((run / "certificate.json").read_text())["guarantee"]
    found = VERIFIER.recomputed_epsilon(account.events, delta=promise["delta"], relation=promise["adjacency"])
    resigned(run, lambda values: values["guarantee"].update(epsilon=share * found))
    assert verdict(run) == expected
    line = next(line for line in capsys.readouterr().out.splitlines() if "is claimed" in line or "claimed," in line)
    assert f"{share * found:.6g}" in line
    assert f"{found:.6g}" in line
    assert "0.1 %" in line


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


def test_later_versions_and_other_noise_are_undecided(run: Path, tmp_path: Path) -> None:
    resigned(run, lambda values: values.update(schema_version=2))
    assert verdict(run) == UNDECIDED
    other = spend(tmp_path / "other", plan_of(noise=L2Laplace(num_coordinates=9, noise_multiplier=2.0), steps=5))
    write_certificate(certify(other), other)
    assert verdict(other) == UNDECIDED


def test_nothing_in_the_place_of_a_certificate_is_wrong(tmp_path: Path) -> None:
    assert verdict(tmp_path) == WRONG
    for text in ("", "[]", "{", "NaN", '{"schema": "privet certificate", "schema_version": 1, "digest": NaN}'):
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
