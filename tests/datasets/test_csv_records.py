"""One record that a CSV writer wrote is one record here, whatever its cells hold, and none decides about another."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from privet.datasets.csv_records import CsvFormat, cells_of, csv_records
from privet.datasets.own.declared_table import DeclaredTable, Target
from privet.datasets.own.new_records import read_new_records
from privet.datasets.own.own_table import load_declared_table
from privet.datasets.tables import CategoryColumn, NumberColumn, read_header, read_public_cells
from privet.errors import ArgumentError, DataError

HEADER = ["note", "label"]
# Text that files hold, and every character that means something to a reader of CSV.
CELLS = st.text(
    st.sampled_from(' "\r\n,;\t|#ab\0\x0b\x1c\x85\u2028\ufeff0') | st.characters(codec="utf-8"), max_size=12
)
ROWS = st.lists(st.lists(CELLS, min_size=1, max_size=4), max_size=6)
DELIMITERS = st.sampled_from(",;\t| ")


def written(rows: Sequence[Sequence[str]], *, delimiter: str = ",", ending: str = "\r\n", quoting: int = 0) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator=ending, quoting=quoting).writerows(rows)
    return text.getvalue()


def read(content: bytes | str, **settings: object) -> list[list[str]]:
    raw = content.encode() if isinstance(content, str) else content
    return [record.cells for record in csv_records(raw, CsvFormat(**settings), path="x.csv")]  # type: ignore[arg-type]


@given(rows=ROWS, delimiter=DELIMITERS, mark=st.sampled_from(["", "\ufeff"]))
@example(rows=[["a\nb", 'c"d'], ["\r", "\r\n"], [""], [" "]], delimiter=",", mark="\ufeff")
@example(rows=[["", ""], ["\t", ""]], delimiter="\t", mark="")
@example(rows=[[' "a', "b"], ["5 inch ", 'say "hi"']], delimiter=",", mark="")
@example(rows=[["\ufeff"], ["\ufeff", "a"]], delimiter=",", mark="\ufeff")
def test_rows_that_a_writer_wrote_come_back_as_they_were(rows: list[list[str]], delimiter: str, mark: str) -> None:
    content = mark + written([HEADER, *rows], delimiter=delimiter)
    assert read(content, delimiter=delimiter) == [HEADER, *rows]


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_endings_quotes_and_encodings_do_not_matter(quoting: int, ending: str, encoding: str) -> None:
    rows = [["a\nb\r\nc\rd", "x"], ['"', '""'], ["plain", ","], ["\N{SNOWMAN}", " lead"]]
    content = written([HEADER, *rows], ending=ending, quoting=quoting)
    assert read(content.encode(encoding)) == [HEADER, *rows]
    assert read(content.removesuffix(ending).encode(encoding)) == [HEADER, *rows]


@given(before=CELLS, after=CELLS, delimiter=DELIMITERS)
def test_changing_a_record_changes_no_other(before: str, after: str, delimiter: str) -> None:
    first, second = (
        read(written([HEADER, ["1", "a"], [cell, "b"], ["3", "c"]], delimiter=delimiter), delimiter=delimiter)
        for cell in (before, after)
    )
    assert len(first) == len(second) == 4
    assert (first[1], first[3]) == (second[1], second[3]) == (["1", "a"], ["3", "c"])


@given(line=st.text(max_size=60).filter(lambda text: text and not set(text) & set('\n"')))
@example(line="\r")
@example(line="a\rb,c")
@example(line="\x0b30,red\u2028")
def test_a_line_without_quotes_is_one_record_in_a_file_of_line_feeds(line: str) -> None:
    content = f"note,label\n1,a\n{line}\n3,c\n".encode("utf-8", errors="surrogatepass")
    found = read(content)
    assert len(found) == (3 if line == "\r" else 4)  # CR LF alone is an empty line
    assert (found[1], found[-1]) == (["1", "a"], ["3", "c"])


def test_quotes_inside_a_bare_cell_are_text_and_spaces_around_quotes_are_none() -> None:
    assert read('note,label\n5" pipe,6"\n 1 , "a,b" \n') == [HEADER, ['5" pipe', '6"'], [" 1 ", "a,b"]]


MALFORMED = {
    "never closed": ('1,a\n2,"b\n3,c\n', "opens a quote that is never closed"),
    "closed by the next record": ('1,a\n2,"b\n3,"c"\n', "text between a closing quote"),
    "text behind a quote": ('1,a\n"2"x,b\n', "text between a closing quote"),
    "too long": ("1,a\n" + "x" * 99 + ",SECRET\n", "longer than the declared 64 characters"),
    "too long between quotes": ('1,a\n"' + "x\n" * 40 + '",SECRET\n', "longer than the declared 64"),
}


@pytest.mark.parametrize("fault", MALFORMED)
def test_what_no_writer_writes_is_refused_by_the_number_of_its_record(fault: str) -> None:
    content, reason = MALFORMED[fault]
    with pytest.raises(DataError, match=f"Record 2 of x.csv .*{reason}") as caught:
        read("note,label\n" + content, max_record_length=64)
    assert "SECRET" not in str(caught.value)
    with pytest.raises(DataError, match=r"The header of x\.csv"):
        read('"note,label\n', max_record_length=64)


def test_a_record_may_have_the_declared_length_and_not_one_character_more() -> None:
    content = 'note,label\r\n"a\nb",c\r\n'
    assert read(content, max_record_length=10)[1] == ["a\nb", "c"]
    assert read('n,l\r\n"a\nb",c\r\n', max_record_length=7)[1] == ["a\nb", "c"]
    with pytest.raises(DataError, match="Record 1"):
        read('n,l\r\n"a\nb",c\r\n', max_record_length=6)
    with pytest.raises(ArgumentError, match="max_record_length"):
        CsvFormat(max_record_length=0)


def test_a_long_record_is_looked_at_once() -> None:
    lines = "\n" * 400_000
    assert read(f'note,label\n"{lines}",a\n') == [HEADER, [lines, "a"]]
    commas = "," * 400_000
    assert len(read(f'note,label\n{commas}"a"\n')[1]) == 400_001


def test_the_cells_of_text_that_is_no_record_are_none() -> None:
    assert cells_of('a,"b\nc"', delimiter=",") == ["a", "b\nc"]
    assert cells_of('a,"b', delimiter=",") == cells_of('"a"b', delimiter=",") == []


# ----------------------------------------------------------------------------------------------- every reader of tables

TABLE = DeclaredTable(
    features=(NumberColumn(name="age", low=0, high=100, default=50),),
    targets=(Target.classes(CategoryColumn(name="income", categories=("low", "high"), default="low")),),
)
NOTES = ["\n".join(f"{n},high,9" for n in range(302)), 'say "hi"', "", "a\r\nb"]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A table with a column of notes, one of which has 302 lines that look like records."""
    path = tmp_path / "notes.csv"
    rows = [["age", "no\nte", "income"], *([str(n), note, "high"] for n, note in enumerate(NOTES))]
    path.write_bytes(codecs.BOM_UTF8 + written(rows).encode())
    return path


def test_line_breaks_in_a_cell_make_no_records_for_any_reader(notes: Path) -> None:
    info = TABLE.info("mine", train_size=4, test_size=4)
    split = load_declared_table(TABLE, info, train=notes, test=notes)
    for part in (split.train, split.test):
        assert part.num_examples == len(NOTES)
        assert (part.features[:, 0] * 100).round().tolist() == [0, 1, 2, 3]
        assert part.labels.tolist() == [1, 1, 1, 1]
    features, gaps = read_new_records(notes, TABLE, info.normalisation())
    assert (len(features), gaps) == (len(NOTES), ())
    assert read_header(notes, targets=["income"]) == ["age", "no\nte", "income"]
    header, rows = read_public_cells(notes)
    assert (header[1], [row[1] for row in rows]) == ("no\nte", [note.strip() for note in NOTES])


def test_the_declared_length_of_a_record_holds_for_every_reader(notes: Path) -> None:
    short = DeclaredTable(features=TABLE.features, targets=TABLE.targets, max_record_length=100)
    info = short.info("mine", train_size=4, test_size=0)
    with pytest.raises(DataError, match=r"Record 1 of .* longer than the declared 100 characters"):
        load_declared_table(short, info, train=notes, test=None)
    with pytest.raises(DataError, match="Record 1"):
        read_new_records(notes, short, info.normalisation())
