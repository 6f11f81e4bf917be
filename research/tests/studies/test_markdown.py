from __future__ import annotations

from privet_research.studies.markdown import markdown


def test_the_first_line_is_the_heading_and_a_rule_follows_it() -> None:
    assert markdown([["a", "b"], ["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert markdown([["a"]]) == "| a |\n| --- |"
