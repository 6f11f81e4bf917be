"""The page about groups: plain words, figures from the rows, nothing unescaped, and no more certainty than there is."""

from __future__ import annotations

from typing import Any

from privet_research.pages.groups_page import groups_page
from privet_research.pages.study_pages import PAGES


def _interval(value: float, width: float = 0.01) -> dict[str, float]:
    return {"value": value, "low": value - width, "high": value + width}


def _rows(gaps: tuple[float, float], first_name: str = "Female") -> list[dict[str, Any]]:
    """Two arms of two seeds; the gap by sex is given for each arm."""
    rows = []
    for arm, epsilon, gap in (("no privacy", None, gaps[0]), ("epsilon 1", 0.998, gaps[1])):
        for seed in (0, 1):
            groups = [
                {"name": name, "num_examples": count, "accuracy": _interval(value)}
                for name, count, value in ((first_name, 5421, 0.9), ("Male", 10860, 0.9 - gap))
            ]
            entry = {"attribute": "sex", "groups": groups, "accuracy_gap": _interval(gap), "worst_group": "Male"}
            decision = {"attribute": "sex", "demographic_parity": 0.17, "equalized_odds": 0.1, "positive_class": ">50K"}
            rows.append(
                {
                    "arm": arm,
                    "seed": seed,
                    "epsilon": epsilon,
                    "delta": 1e-5,
                    "accuracy": 0.85 - 0.01 * seed,
                    "num_test": 16281,
                    "num_rates_tried": 2,
                    "fairness": {"attributes": [entry], "decisions": [decision]},
                }
            )
    return rows


def test_the_page_says_in_words_what_the_rows_say() -> None:
    page = groups_page(_rows((0.08, 0.15)))
    assert page == PAGES["adult-groups"](_rows((0.08, 0.15)))
    for text in (
        "8.0 (7.0 to 9.0) points with no privacy and 15.0 (14.0 to 16.0) points at epsilon 1",
        "do not overlap: privacy widened the gap",
        "5,421",
        "90.0 (89.0 to 91.0)",
        "17.0",
        "2.7 (epsilon 1)",
        "chosen among 2",
        "<svg",
    ):
        assert text in page
    assert "none promised" in page
    assert "<script" not in page


def test_ranges_that_overlap_are_not_called_a_difference() -> None:
    page = groups_page(_rows((0.08, 0.09)))
    assert "does not show that privacy changed the gap" in page
    assert "widened" not in page
    assert "narrowed the gap" in groups_page(_rows((0.15, 0.08)))


def test_the_answer_that_loses_most_is_named() -> None:
    rows = _rows((0.08, 0.09))
    for row in rows:
        high = 0.63 if row["arm"] == "no privacy" else 0.55
        groups = [
            {"name": name, "num_examples": 100, "accuracy": _interval(value)}
            for name, value in (("<=50K", 0.9), (">50K", high))
        ]
        row["fairness"]["attributes"].append({"attribute": "class", "groups": groups})
    page = groups_page(rows)
    assert "whose true answer is &gt;50K, 63.0 (62.0 to 64.0) % are right with no privacy and 55.0" in page
    assert "No other answer loses more." in page
    assert "true answer" not in groups_page(_rows((0.08, 0.09))), "rows without classes"


def test_names_from_a_file_are_escaped() -> None:
    page = groups_page(_rows((0.08, 0.15), first_name="<b>x</b>"))
    assert "<b>x</b>" not in page
    assert "&lt;b&gt;x&lt;/b&gt;" in page
