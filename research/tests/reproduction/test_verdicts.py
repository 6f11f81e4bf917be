from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet_research.reproduction.entry import Claim, Profile
from privet_research.reproduction.verdicts import Finding, Verdict, judge, summed_up

FULL, QUICK = Profile.FULL, Profile.QUICK


def rows_of(values: list[float | None], **facts: Any) -> list[dict[str, Any]]:
    return [{"seed": seed, "accuracy": value, **facts} for seed, value in enumerate(values)]


def claim(**rule: Any) -> Claim:
    reason = {"because": "b"} if "tolerance" in rule else {}
    return Claim(says="s", measure="accuracy", **reason, **rule)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.96], Verdict.UNDECIDED),
        ([0.98, 0.98, 0.9801], Verdict.DIFFERS),
        ([0.962, 0.963, 0.964], Verdict.HOLDS),
        ([0.955, 0.960, 0.971], Verdict.UNDECIDED),
        ([0.90, 1.00, 1.00], Verdict.UNDECIDED),
        ([0.93, 1.0, 1.0], Verdict.UNDECIDED),
    ],
    ids=["one seed", "surely far", "surely near", "narrow but leaving", "interval too wide", "interval reaches"],
)
def test_a_published_figure_holds_only_if_the_whole_interval_lies_within_the_tolerance(
    values: list[float], verdict: Verdict
) -> None:
    found = judge(claim(scale=100, paper=96, tolerance=1.0), rows_of([*values]), FULL)
    assert found.verdict is verdict


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([1.0, 1.1, 1.2], Verdict.HOLDS),
        ([-1.0, -1.1, -1.2], Verdict.DIFFERS),
        ([-1.0, 1.1, 1.2], Verdict.UNDECIDED),
        ([5.0], Verdict.UNDECIDED),
        ([0.0, 0.0], Verdict.HOLDS),
        ([], Verdict.NOT_RUN),
        ([None, None], Verdict.NOT_RUN),
    ],
    ids=["above", "below", "both", "one seed", "on it", "no rows", "diverged"],
)
def test_a_bound_needs_the_whole_interval(values: list[float | None], verdict: Verdict) -> None:
    mirrored = [None if value is None else -value for value in values]
    assert judge(claim(at_least=0.0), rows_of(values), FULL).verdict is verdict
    assert judge(claim(at_most=0.0), rows_of(mirrored), FULL).verdict is verdict


def test_a_computed_quantity_needs_no_seeds() -> None:
    exact = claim(paper=1.0, tolerance=0.1, exact=True)
    assert judge(exact, rows_of([1.05]), FULL).verdict is Verdict.HOLDS
    assert judge(exact, rows_of([1.2]), FULL).verdict is Verdict.DIFFERS


@pytest.mark.parametrize(("value", "said"), [(1.0, "holds"), (-1.0, "differs")])
def test_a_stand_in_never_holds_or_differs_and_says_what_it_shows_by_itself(value: float, said: str) -> None:
    rows = rows_of([value, 1.01 * value, 0.99 * value])
    for found in (
        judge(claim(at_least=0.0), rows, FULL, "digits for CIFAR-10"),
        judge(claim(at_least=0.0, stand_in="digits for CIFAR-10"), rows, FULL),
    ):
        assert found.verdict is Verdict.STAND_IN
        assert found.reason == f"digits for CIFAR-10; by itself it {said}"


def test_the_effect_does_not_grow_with_the_number_of_seeds() -> None:
    few, many = (judge(claim(at_least=1.0), rows_of([1.0, 3.0] * times), FULL) for times in (2, 50))
    assert few.effect is not None
    assert many.effect == pytest.approx(few.effect, rel=0.2)
    assert many.width is not None
    assert few.width is not None
    assert many.width < few.width / 3


def test_a_difference_is_taken_seed_by_seed() -> None:
    # The arms differ by 1 in every seed, though seeds differ by 10: unpaired, the interval would hold zero.
    rows = [*rows_of([1.0, 11.0, 21.0], arm="a"), *rows_of([0.0, 10.0, 20.0, 99.0], arm="b")]
    found = judge(claim(of={"arm": "a"}, minus={"arm": "b"}, at_least=0.5), rows, FULL)
    assert (found.verdict, found.value, found.num_seeds) == (Verdict.HOLDS, 1.0, 3)


def test_a_setting_that_only_one_side_has_does_not_count_in_a_difference() -> None:
    mine = rows_of([0.5, 0.5], rate=0.7, setting="small")
    other = rows_of([0.5, 0.5], rate=0.0, setting="small") + rows_of([0.9], rate=0.0, setting="large")
    found = judge(claim(of={"rate": 0.7}, minus={"rate": 0.0}, at_least=0), mine + other, FULL)
    assert (found.value, found.num_seeds) == (0.0, 2)


def test_settings_are_compared_with_each_other_where_that_is_the_question() -> None:
    rows = rows_of([0.5, 0.6], setting="small") + rows_of([0.9, 0.9], setting="large")
    found = judge(claim(of={"setting": "large"}, minus={"setting": "small"}, at_least=0), rows, FULL)
    assert found.value == pytest.approx(0.35)


def test_a_tuned_run_is_chosen_by_its_key_and_not_by_the_measure() -> None:
    rows = [
        {"seed": 0, "accuracy": 0.9, "train_accuracy": 0.5},
        {"seed": 0, "accuracy": 0.7, "train_accuracy": 0.8},
        {"seed": 0, "accuracy": 0.1, "train_accuracy": None},
    ]
    largest = judge(claim(chosen_by="train_accuracy", paper=0.7, tolerance=0.0, exact=True), rows, FULL)
    smallest = judge(
        claim(chosen_by="train_accuracy", chosen_smallest=True, paper=0.9, tolerance=0.0, exact=True), rows, FULL
    )
    assert (largest.verdict, smallest.verdict) == (Verdict.HOLDS, Verdict.HOLDS)


def test_rows_that_cannot_be_chosen_among_decide_nothing() -> None:
    found = judge(claim(chosen_by="train_accuracy", paper=1.0, tolerance=0.0, exact=True), rows_of([1.0]), FULL)
    assert found.verdict is Verdict.NOT_RUN


def test_rows_with_other_facts_do_not_count() -> None:
    rows = [*rows_of([1.0], arm="a", rate=0.5), *rows_of([9.0], arm="a", rate=0.9), *rows_of([9.0])]
    one = judge(claim(of={"arm": "a", "rate": 0.5}, paper=1.0, tolerance=0.0, exact=True), rows, FULL)
    assert one.verdict is Verdict.HOLDS
    both = judge(claim(of={"arm": ["a", "b"], "rate": [0.5, 0.9]}, paper=5.0, tolerance=0.0, exact=True), rows, FULL)
    assert both.verdict is Verdict.HOLDS


def test_the_quick_profile_tests_only_what_it_can_tell() -> None:
    rows = rows_of([1.0])
    assert judge(claim(paper=1.0, tolerance=0.0), rows, QUICK).reason == "needs the full profile"
    assert judge(claim(paper=1.0, tolerance=0.0, exact=True, quick=True), rows, QUICK).verdict is Verdict.HOLDS


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-10, 10), min_size=2, max_size=6), st.floats(-10, 10))
def test_no_rows_confirm_a_bound_and_its_opposite_unless_they_lie_on_it(values: list[float], bound: float) -> None:
    verdicts = {judge(claim(**{rule: bound}), rows_of([*values]), FULL).verdict for rule in ("at_least", "at_most")}
    if max(values) - min(values) > 1e-6:
        assert verdicts != {Verdict.HOLDS}


def finding(verdict: Verdict) -> Finding:
    return Finding(claim=claim(at_least=0.0), verdict=verdict, reason="why" if verdict is Verdict.NOT_RUN else "")


@pytest.mark.parametrize("others", list(itertools.product(Verdict, repeat=2)), ids=str)
def test_one_claim_that_differs_makes_the_whole_differ(others: tuple[Verdict, Verdict]) -> None:
    verdict, reason = summed_up([finding(one) for one in (*others, Verdict.DIFFERS)])
    assert verdict is Verdict.DIFFERS
    number = 1 + others.count(Verdict.DIFFERS)
    assert ("all claims" if number == 3 else f"{number} DIFFERS") in reason


@pytest.mark.parametrize("other", [one for one in Verdict if one is not Verdict.HOLDS], ids=str)
def test_an_entry_holds_only_if_all_its_claims_do(other: Verdict) -> None:
    assert summed_up([finding(Verdict.HOLDS)] * 9 + [finding(other)])[0] is not Verdict.HOLDS


def test_what_was_not_decided_is_counted_apart_and_never_as_confirmed() -> None:
    assert summed_up([finding(Verdict.HOLDS)]) == (Verdict.HOLDS, "all claims")
    mixed = [finding(Verdict.HOLDS), finding(Verdict.UNDECIDED), finding(Verdict.STAND_IN), finding(Verdict.STAND_IN)]
    assert summed_up(mixed) == (Verdict.UNDECIDED, "1 HOLDS, 2 STAND-IN, 1 UNDECIDED of 4 claims")
    not_run = [finding(Verdict.HOLDS), finding(Verdict.NOT_RUN)]
    assert summed_up(not_run) == (Verdict.UNDECIDED, "1 HOLDS, 1 NOT RUN of 2 claims")
    assert summed_up([finding(Verdict.STAND_IN), finding(Verdict.NOT_RUN)])[0] is Verdict.STAND_IN
    assert summed_up([finding(Verdict.STAND_IN)] * 2) == (Verdict.STAND_IN, "all claims")
    assert summed_up([finding(Verdict.NOT_RUN)]) == (Verdict.NOT_RUN, "why")
    assert summed_up([], "no data") == (Verdict.NOT_RUN, "no data")


def test_without_rows_a_quick_run_does_not_say_that_the_full_profile_would_tell() -> None:
    assert judge(claim(at_least=0.0), rows_of([1.0, 2.0]), Profile.QUICK).reason == "needs the full profile"
    assert judge(claim(at_least=0.0), [], Profile.QUICK).reason == "no rows for it"
