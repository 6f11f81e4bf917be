from __future__ import annotations

import io

import pytest

from privet.cli.console import fitted, paragraphs, show_table


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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


WORDS = "promised  " + " ".join(f"word-{number}" for number in range(30))


def test_on_a_terminal_words_stay_whole_and_further_lines_are_set_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = fitted(WORDS, Terminal(), hang=10).splitlines()
    assert max(len(line) for line in lines) <= 60
    assert " ".join(lines).split() == WORDS.split()
    assert [line.startswith(" " * 10) for line in lines] == [False] + [True] * (len(lines) - 1)


def test_columns_that_are_taken_count_for_the_first_line_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    first, *others = fitted(WORDS, Terminal(), used=30).splitlines()
    assert first.startswith("promised  word-0")
    assert len(first) <= 30
    assert max(len(line) for line in others) > 50


def test_lines_to_copy_and_lines_for_programs_are_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = f"Save this:\n\n  {WORDS}\n"
    assert fitted(text, Terminal()).splitlines() == text.splitlines()
    assert fitted(WORDS, io.StringIO()) == WORDS


def test_the_points_of_a_list_are_set_in_behind_their_mark() -> None:
    first, *others = paragraphs("- " + WORDS, hang="  ").splitlines()
    assert first.startswith("  - promised")
    assert others
    assert all(line.startswith("    word") for line in others)
