"""A CSV line decides its own record and nothing else; no record can raise."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from privet.datasets.tables import CategoryColumn, CsvSchema, NumberColumn, read_csv
from privet.errors import ArgumentError, DataError

AGE = NumberColumn(name="age", low=0.0, high=120.0, default=40.0)
COLOUR = CategoryColumn(name="colour", categories=("red", "green", "other"), default="other")
SCHEMA = CsvSchema(columns=(AGE, COLOUR))
IN_ONE_FOLDER = settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


def records(tmp_path: Path, content: str | bytes, schema: CsvSchema = SCHEMA) -> list[tuple[float, int]]:
    path = tmp_path / "x.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    table = read_csv(path, schema)
    return list(zip(table["age"].tolist(), table["colour"].tolist(), strict=True))


def test_cells_become_numbers_and_codes(tmp_path: Path) -> None:
    assert records(tmp_path, "age,colour\n30,red\n41.5, green\n") == [(30.0, 0), (41.5, 1)]


def test_columns_are_found_by_name_among_others(tmp_path: Path) -> None:
    assert records(tmp_path, "name,colour,x,x,age\nAda,green,1,2,36\n") == [(36.0, 1)]


def test_without_a_header_columns_are_taken_in_order(tmp_path: Path) -> None:
    schema = CsvSchema(columns=(AGE, COLOUR), has_header=False, delimiter=";")
    assert records(tmp_path, "30;red\n31;green;surplus\n", schema) == [(30.0, 0), (31.0, 1)]


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("1e400", 120.0),
        ("-1e400", 0.0),
        ("inf", 120.0),
        ("-Infinity", 0.0),
        ("nan", 40.0),
        ("\u221e", 40.0),
        ('"1,5"', 40.0),
        ("1_0", 40.0),
        ("007", 7.0),
        ("", 40.0),
        ("  ", 40.0),
        ("121", 120.0),
        ("-3", 0.0),
        ("1e-400", 0.0),
        ("5\0", 40.0),
        ("0x10", 40.0),
        ("=1+1", 40.0),
        ("<script>", 40.0),
        ("\u0663", 3.0),
        ("9" * 5_000, 120.0),
    ],
)
def test_a_cell_outside_the_schema_is_clamped_or_takes_the_default(tmp_path: Path, cell: str, value: float) -> None:
    assert records(tmp_path, f"age,colour\n{cell},red\n") == [(value, 0)]


@pytest.mark.parametrize("cell", ["blue", "", "RED", "red\0", "\U0001f600", 'un"closed', "red'; DROP TABLE"])
def test_an_unseen_class_becomes_the_declared_default(tmp_path: Path, cell: str) -> None:
    assert records(tmp_path, f"age,colour\n30,{cell}\n31,red\n") == [(30.0, 2), (31.0, 0)]


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_line_endings_and_utf8_marks_do_not_matter(tmp_path: Path, bom: bytes, ending: str) -> None:
    assert records(tmp_path, bom + f"age,colour{ending}30,red{ending}{ending}31,green".encode()) == [(30, 0), (31, 1)]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_with_a_mark_is_read(tmp_path: Path, encoding: str) -> None:
    text = "age,colour\r\n30,red\r\n"
    mark = "" if encoding == "utf-16" else "\ufeff"
    assert records(tmp_path, (mark + text).encode(encoding)) == [(30.0, 0)]


def test_bytes_that_are_no_text_spoil_their_own_cell_only(tmp_path: Path) -> None:
    assert records(tmp_path, b"age,colour\n\xff\xfe3,red\n31,gr\xe2\n32,green\n") == [(40, 0), (31, 2), (32, 1)]


def test_ragged_rows_take_defaults_and_lose_surplus(tmp_path: Path) -> None:
    assert records(tmp_path, "age,colour\n30\n31,red,1,2,3\n,\n") == [(30.0, 2), (31.0, 0), (40.0, 2)]


def test_an_unclosed_quote_does_not_swallow_the_records_after_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Record 1"):
        records(tmp_path, 'age,colour\n"30,red\n31,green\n32,red\n')


@pytest.mark.parametrize("quoted", [False, True])
def test_a_long_cell_spoils_its_own_record_only_up_to_the_declared_length(tmp_path: Path, quoted: bool) -> None:
    field = "x" * 10_000_000
    huge = f'"{field}"' if quoted else field
    schema = CsvSchema(columns=(AGE, COLOUR), max_record_length=10_000_010)
    assert records(tmp_path, f"age,colour\n30,{huge}\n31,green\n", schema) == [(30.0, 2), (31.0, 1)]
    with pytest.raises(DataError, match=r"Record 1 of .* longer than the declared 1,048,576"):
        records(tmp_path, f"age,colour\n30,{huge}\n31,green\n")


def test_a_file_with_a_header_only_has_no_records(tmp_path: Path) -> None:
    assert records(tmp_path, "age,colour\n") == []


@pytest.mark.parametrize("content", ["", "\n\n", "\ufeff"])
def test_an_empty_file_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(DataError, match="no header line; expected the columns 'age', 'colour'"):
        records(tmp_path, content)


def test_an_empty_file_without_a_declared_header_has_no_records(tmp_path: Path) -> None:
    assert records(tmp_path, "", CsvSchema(columns=(AGE, COLOUR), has_header=False)) == []


@pytest.mark.parametrize(("header", "times"), [("age,color", 0), ("age,colour,colour", 2), ("secret-id,age", 0)])
def test_a_header_that_lacks_or_repeats_a_declared_column_is_refused_without_quoting_the_file(
    tmp_path: Path, header: str, times: int
) -> None:
    with pytest.raises(DataError, match=f"'colour' once and names it {times} times") as caught:
        records(tmp_path, f"{header}\n1,2,3\n")
    assert "secret" not in str(caught.value)


def test_comments_are_skipped_at_the_top_only(tmp_path: Path) -> None:
    schema = CsvSchema(columns=(AGE, COLOUR), has_header=False, comment_prefix="|")
    assert records(tmp_path, "|1x3 note\n30,red\n|31,red\n", schema) == [(30.0, 0), (40.0, 0)]


def test_a_compressed_file_is_read_and_its_checksum_is_that_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"age,colour\n30,red\n"))
    digest = "0" * 64
    assert read_csv(tmp_path / "x.csv.gz", SCHEMA)["age"].tolist() == [30.0]
    with pytest.raises(DataError, match="not the expected file"):
        read_csv(tmp_path / "x.csv.gz", SCHEMA, sha256=digest)


@IN_ONE_FOLDER
@given(content=st.binary(max_size=200).filter(lambda content: b'"' not in content))
@example(content=b'"\r"\n""""\r\n"",\x00')
def test_no_content_without_odd_quotes_raises_once_the_header_is_right(tmp_path: Path, content: bytes) -> None:
    for age, colour in records(tmp_path, b"age,colour\n" + content):
        assert 0.0 <= age <= 120.0
        assert colour in (0, 1, 2)


@IN_ONE_FOLDER
@given(line=st.text(max_size=60).filter(lambda text: text.strip() and not set(text) & set('\r\n"')))
@example(line='"",""')
@example(line='"a\n31,green\n","x\r"')
@example(line="\x1c30,red\u2028")
@example(line="|")
def test_changing_one_record_changes_one_at_most(tmp_path: Path, line: str) -> None:
    before = records(tmp_path, "age,colour\n30,red\n31,green\n32,red\n")
    content = f"age,colour\n30,red\n{line}\n32,red\n".encode("utf-8", errors="surrogatepass")
    after = records(tmp_path, content)
    assert len(after) == len(before)
    assert (after[0], after[2]) == (before[0], before[2])


@given(cell=st.text(max_size=30) | st.floats().map(str) | st.integers().map(str))
@settings(deadline=None, max_examples=200, derandomize=True)
def test_a_number_cell_never_leaves_its_range(cell: str) -> None:
    value = AGE.value(cell)
    assert math.isfinite(value)
    assert AGE.low <= value <= AGE.high


@pytest.mark.parametrize(
    ("low", "high", "default"), [(1.0, 0.0, 0.5), (0.0, 1.0, 2.0), (0.0, math.inf, 1.0), (math.nan, 1.0, 1.0)]
)
def test_a_range_that_cannot_hold_its_default_is_refused(low: float, high: float, default: float) -> None:
    with pytest.raises(ArgumentError):
        NumberColumn(name="x", low=low, high=high, default=default)


def test_categories_and_schemas_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(ArgumentError, match="twice"):
        CategoryColumn(name="x", categories=("a", "a"), default="a")
    with pytest.raises(ArgumentError, match="default"):
        CategoryColumn(name="x", categories=("a",), default="b")
    with pytest.raises(ArgumentError, match="name of its own"):
        CsvSchema(columns=(AGE, AGE))
    with pytest.raises(ArgumentError, match="delimiter"):
        CsvSchema(columns=(AGE,), delimiter=";;")


def test_arrays_have_the_declared_types(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("age,colour\n")
    table = read_csv(tmp_path / "x.csv", SCHEMA)
    assert (table["age"].dtype, table["colour"].dtype) == (np.float64, np.int64)
