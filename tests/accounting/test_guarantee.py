"""The guarantee: what it carries, how it reads, and that it refuses to be wrong."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event

from privet.accounting import guarantee as module
from privet.accounting.accountants import PLD, RDP
from privet.accounting.gaussian_dp import gdp_delta
from privet.accounting.guarantee import Guarantee, guarantee, rounded_up
from privet.accounting.profile import privacy_profile
from privet.errors import AccountingError, ArgumentError
from privet.mechanism.events import DpEvent
from privet.vocabulary import Adjacency, Release, Unit

ADD_REMOVE = Adjacency.ADD_REMOVE


def sampled(rate: float, multiplier: float, steps: int) -> DpEvent:
    event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(multiplier))
    return dp_event.SelfComposedDpEvent(event, steps)


EVENT = sampled(0.01, 1.0, 1000)


def promised(event: DpEvent = EVENT, **changes: Any) -> Guarantee:
    arguments: dict[str, Any] = {"delta": 1e-5, "adjacency": ADD_REMOVE, "unit": Unit.RECORD} | changes
    return guarantee(event, **arguments)


@pytest.fixture(scope="module")
def ordinary() -> Guarantee:
    return promised()


def test_the_reported_epsilon_is_bracketed_by_its_cross_check(ordinary: Guarantee) -> None:
    assert ordinary.accountant == "PLD"
    assert ordinary.epsilon == PLD().epsilon(EVENT, delta=1e-5, adjacency=ADD_REMOVE)
    assert ordinary.cross_check == RDP().epsilon(EVENT, delta=1e-5, adjacency=ADD_REMOVE)
    assert ordinary.cross_check is not None
    assert 1.828236 < ordinary.epsilon < 1.8285 < ordinary.cross_check
    assert ordinary.proven
    assert ordinary.is_upper_bound
    assert ordinary.released is Release.EVERY_ITERATE


def test_exact_gaussians_know_their_lower_bound_and_mu() -> None:
    exact = promised(dp_event.GaussianDpEvent(2.0))
    assert exact.accountant == "exact Gaussian"
    assert exact.lower == exact.epsilon
    assert exact.mu == 0.5


def test_out_of_range_events_say_that_rdp_ran() -> None:
    fallback = promised(sampled(0.01, 0.02, 10))
    assert fallback.accountant == "RDP"
    assert fallback.cross_check is None
    assert fallback.mu is None


def test_two_accountants_that_contradict_each_other_give_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(RDP):
        def epsilon(self, event: DpEvent, *, delta: float, adjacency: Adjacency) -> float:
            return super().epsilon(event, delta=delta, adjacency=adjacency) / 2

    monkeypatch.setattr(module, "RDP", Wrong)
    with pytest.raises(AccountingError, match="there is no guarantee"):
        promised()


def test_mu_covers_the_whole_profile_down_to_delta(ordinary: Guarantee) -> None:
    assert ordinary.mu is not None
    profile = privacy_profile(EVENT, adjacency=ADD_REMOVE, epsilons=np.linspace(0, ordinary.epsilon, 1234))
    for epsilon, delta in zip(profile.epsilons, profile.deltas, strict=True):
        assert delta <= gdp_delta(ordinary.mu, float(epsilon))
    assert 0.40 < ordinary.mu < 0.47


def test_one_line_says_it_all(ordinary: Guarantee) -> None:
    mu = rounded_up(ordinary.mu or 0.0, 3)
    assert str(ordinary) == (
        f"(\u03b5=1.829, \u03b4=1e-05)-DP, \u03bc\u2264{mu} \u00b7 add-or-remove one record \u00b7 every iterate "
        "\u00b7 PLD \u00b7 proven"
    )


@pytest.mark.parametrize(
    ("adjacency", "unit", "words"),
    [
        (Adjacency.REPLACE_ONE, Unit.PERSON, "replace one person"),
        (Adjacency.ZERO_OUT, Unit.RECORD, "blank one record"),
    ],
)
def test_the_line_names_adjacency_and_unit(adjacency: Adjacency, unit: Unit, words: str) -> None:
    text = str(promised(dp_event.GaussianDpEvent(2.0), adjacency=adjacency, unit=unit, released=Release.LAST_ITERATE))
    assert words in text
    assert "last iterate" in text


def test_a_run_that_is_not_private_says_so_first(ordinary: Guarantee) -> None:
    stamped = dataclasses.replace(ordinary, not_private_because=("the seed was chosen by the user",))
    assert str(stamped).startswith("NOT PRIVATE: the seed was chosen by the user")
    assert stamped.statement().startswith("No privacy is promised: the seed was chosen by the user.")
    assert "proven" not in str(stamped)
    assert "without that it would be" in str(stamped)


def test_a_run_without_noise_has_no_figure_that_reads_like_a_promise(ordinary: Guarantee) -> None:
    bare = dataclasses.replace(ordinary, epsilon=math.inf, mu=None, not_private_because=("no noise is added",))
    assert str(bare) == "NOT PRIVATE: no noise is added \N{MIDDLE DOT} nothing is promised for any record"
    assert bare.statement() == "No privacy is promised: no noise is added."


def test_a_comparison_figure_promises_nothing(ordinary: Guarantee) -> None:
    figure = dataclasses.replace(ordinary, is_upper_bound=False)
    assert "not a bound" in str(figure)
    assert figure.statement().startswith("No privacy is promised")
    assert "heuristic" in str(dataclasses.replace(ordinary, proven=False))


def test_odds_beyond_any_number_are_written_as_a_power_that_is_no_smaller(ordinary: Guarantee) -> None:
    text = dataclasses.replace(ordinary, epsilon=100_000.5).statement()
    assert "is at most e to the power of 1.001e+05 times as likely" in text
    assert "1e+304" not in text
    assert f"is at most {rounded_up(math.exp(699.0))} times" in dataclasses.replace(ordinary, epsilon=699.0).statement()


@pytest.mark.parametrize(("epsilon", "is_weak"), [(3.0, False), (20.0, False), (20.5, True), (1e5, True)])
def test_an_epsilon_that_promises_next_to_nothing_is_called_weak(
    ordinary: Guarantee, epsilon: float, is_weak: bool
) -> None:
    found = dataclasses.replace(ordinary, epsilon=epsilon)
    assert (found.weakness is not None) is is_weak
    assert not is_weak or str(found.weakness).startswith(f"epsilon {rounded_up(epsilon)} promises next to nothing")
    assert dataclasses.replace(found, not_private_because=("it is seeded",)).weakness is None


def test_a_guarantee_that_promises_nothing_is_not_called_weak_besides(ordinary: Guarantee) -> None:
    assert dataclasses.replace(ordinary, epsilon=math.inf).weakness is None


def test_the_statement_says_who_is_protected_from_whom_and_how_much(ordinary: Guarantee) -> None:
    text = dataclasses.replace(ordinary, assumptions=("the sampled indices stay secret",)).statement()
    assert "adding or removing one record" in text
    assert "checkpoints included" in text
    assert f"at most {rounded_up(math.exp(ordinary.epsilon))} times" in text
    assert "It assumes that the sampled indices stay secret." in text
    assert "several records" in text
    assert "person" in dataclasses.replace(ordinary, unit=Unit.PERSON).statement()
    assert "final model" in dataclasses.replace(ordinary, released=Release.LAST_ITERATE).statement()


def test_the_attack_bound_follows_from_the_guarantee(ordinary: Guarantee) -> None:
    def stated(shown: Guarantee) -> float:
        found = re.search(r"right in at most ([0-9.]+)%", shown.statement())
        assert found is not None
        return float(found.group(1)) / 100

    without_mu = dataclasses.replace(ordinary, mu=None)
    assert stated(without_mu) == pytest.approx(math.exp(ordinary.epsilon) * 0.01 + 1e-5, abs=1e-3)
    assert stated(without_mu) >= math.exp(ordinary.epsilon) * 0.01 + 1e-5
    assert stated(ordinary) <= stated(without_mu)
    assert stated(dataclasses.replace(ordinary, epsilon=40.0, mu=None)) == 1.0
    assert stated(dataclasses.replace(ordinary, epsilon=4000.0, mu=None)) == 1.0


def test_nothing_hidden_is_stated_as_nothing_promised() -> None:
    bare = promised(dp_event.GaussianDpEvent(0.0))
    assert bare.epsilon == math.inf
    assert "\u221e" in str(bare)
    assert "no record is protected" in bare.statement()


def test_nothing_released_costs_nothing() -> None:
    empty = promised(dp_event.NoOpDpEvent())
    assert empty.epsilon == 0
    assert empty.mu == 0


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (2.9901, 4, "2.991"),
        (2.99, 4, "2.99"),
        (1e-5, 4, "1e-05"),
        (1 / 550152, 4, "1.818e-06"),
        (0.70001, 3, "0.701"),
        (12345.6, 4, "1.235e+04"),
        (0.0, 4, "0"),
        (math.inf, 4, "\u221e"),
    ],
)
def test_printed_numbers_are_rounded_up(value: float, digits: int, text: str) -> None:
    assert rounded_up(value, digits) == text


@pytest.mark.parametrize(
    "event", [EVENT, dp_event.GaussianDpEvent(2.0), dp_event.GaussianDpEvent(0.0), sampled(0.01, 0.02, 10)], ids=str
)
def test_a_guarantee_survives_a_trip_through_json(event: DpEvent) -> None:
    before = promised(event, assumptions=("a", "b"), not_private_because=("c",))
    text = json.dumps(before.to_dict(), allow_nan=False)
    assert Guarantee.from_dict(json.loads(text)) == before


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("epsilon", "many"),
        ("epsilon", None),
        ("epsilon", -1.0),
        ("epsilon", True),
        ("delta", 0.0),
        ("delta", 2.0),
        ("mu", "x"),
        ("adjacency", "add"),
        ("unit", 3),
        ("released", None),
        ("accountant", 3),
        ("assumptions", "text"),
        ("assumptions", [1]),
        ("proven", 1),
        ("is_upper_bound", "yes"),
    ],
)
def test_a_damaged_guarantee_is_refused(ordinary: Guarantee, entry: str, value: Any) -> None:
    with pytest.raises(ArgumentError):
        Guarantee.from_dict(ordinary.to_dict() | {entry: value})


def test_a_guarantee_with_missing_or_surplus_entries_is_refused(ordinary: Guarantee) -> None:
    data = ordinary.to_dict()
    with pytest.raises(ArgumentError):
        Guarantee.from_dict(data | {"note": "x"})
    data.pop("mu")
    with pytest.raises(ArgumentError):
        Guarantee.from_dict(data)


@pytest.mark.parametrize(
    ("argument", "bad"),
    [
        ("delta", 0.0),
        ("delta", math.nan),
        ("delta", "1e-5"),
        ("adjacency", "add_or_remove"),
        ("unit", "record"),
        ("released", None),
    ],
)
def test_wrong_arguments_are_refused(argument: str, bad: Any) -> None:
    with pytest.raises(ArgumentError):
        promised(dp_event.GaussianDpEvent(2.0), **{argument: bad})
