from __future__ import annotations

import pytest

from privet.cli.console import show_table


def printed(
    capsys: pytest.CaptureFixture[str], header: list[str], rows: list[list[str]], right: tuple[int, ...] = ()
) -> list[str]:
    show_table(header, rows, right=right)
    return capsys.readouterr().out.splitlines()


def test_a_narrow_table_has_one_line_per_row_and_numbers_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, ["name", "n"], [["a", "1"], ["long", "1,000"]], right=(1,)) == [
        "  name      n",
        "  a         1",
        "  long  1,000",
    ]


def test_a_wide_table_is_wrapped_at_words_and_keeps_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"word{number}" for number in range(40)]
    lines = printed(capsys, ["what", "n", "why"], [[" ".join(words[:20]), "1,234", " ".join(words[20:])]], right=(1,))
    assert max(len(line) for line in lines) <= 80
    assert sorted(word for line in lines[1:] for word in line.split()) == sorted([*words, "1,234"])


def test_numbers_and_single_words_are_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, ["n", "path"], [["9" * 30, "x" * 90]], right=(0,))
    assert lines[1] == f"  {'9' * 30}  {'x' * 90}"


def test_an_empty_cell_is_an_empty_cell(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, ["a", ""], [["", "ok"]]) == ["  a", "     ok"]
