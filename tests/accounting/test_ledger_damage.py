"""Damaged, forged and foreign ledgers are refused; an unfinished last row is dropped; the format does not drift."""

from __future__ import annotations

import hashlib
import json
import random
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.accounting.ledger import Ledger, LedgerHead, VoidReason
from privet.accounting.ledger.rows import (
    MAX_ROW_BYTES,
    CodedEvent,
    Created,
    Reserved,
    RowFields,
    RowMaker,
    canonical,
    parse_strict,
)
from privet.errors import (
    LedgerCorrupt,
    LedgerError,
)
from tests.accounting.ledgers import PLAN_HASH, create, done, reopen, step


def resealed(lines: list[bytes]) -> bytes:
    """Rows whose bodies were tampered with, made to fit together again by someone who knows the format."""
    result, prev = b"", "0" * 64
    for seq, line in enumerate(lines):
        row = json.loads(line)
        row.update(prev=prev, seq=seq)
        row.pop("crc")
        row["crc"] = f"{zlib.crc32(canonical(row)):08x}"
        sealed = canonical(row) + b"\n"
        prev = hashlib.sha256(sealed).hexdigest()
        result += sealed
    return result


# ------------------------------------------------------------------------------------------------------ damaged ledgers


def test_every_flipped_bit_is_noticed(lived: Path, record_property: Callable[[str, object], None]) -> None:
    whole = lived.read_bytes()
    assert len(whole) >= 200
    record_property("damaged ledgers noticed", len(whole))
    damaged = lived.with_name("damaged.jsonl")
    rng = random.Random(0)
    for place in range(len(whole)):
        data = bytearray(whole)
        data[place] ^= 1 << rng.randrange(8)
        damaged.write_bytes(data)
        with pytest.raises(LedgerCorrupt, match="Row"):
            Ledger.read(damaged)


def test_every_flipped_bit_of_the_last_row_is_noticed(lived: Path) -> None:
    whole = lived.read_bytes()
    damaged = lived.with_name("damaged.jsonl")
    for place in range(whole.rindex(b"\n", 0, -1) + 1, len(whole)):
        for bit in range(8):
            data = bytearray(whole)
            data[place] ^= 1 << bit
            damaged.write_bytes(data)
            with pytest.raises(LedgerCorrupt):
                Ledger.read(damaged)


def test_a_row_cut_anywhere_is_dropped_and_every_row_before_it_counts(lived: Path) -> None:
    whole = lived.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    charged = []
    for rows in range(1, len(ends) + 1):
        lived.write_bytes(whole[: ends[rows - 1]])
        charged.append(Ledger.read(lived).charged_rounds)
    for size in range(ends[0], len(whole)):
        lived.write_bytes(whole[:size])
        num_rows = sum(end <= size for end in ends)
        view = Ledger.read(lived)
        assert (view.num_rows, view.charged_rounds) == (num_rows, charged[num_rows - 1])
        assert view.has_unfinished_row == (size not in ends)


@pytest.mark.parametrize("zeros", [0, 1, 300])
@pytest.mark.parametrize("kept", [0, 1, 150])
def test_opening_cuts_an_unfinished_row_off_for_good(lived: Path, kept: int, zeros: int) -> None:
    whole = lived.read_bytes()
    lived.write_bytes(whole + whole[:kept] + bytes(zeros))
    assert Ledger.read(lived).has_unfinished_row == (kept + zeros > 0)
    assert lived.read_bytes() == whole + whole[:kept] + bytes(zeros)
    with reopen(lived) as ledger:
        assert lived.read_bytes() == whole
        ledger.reserve(step())
        ledger.check(done(step()))
    assert Ledger.read(lived).charged_rounds == 6


@pytest.mark.parametrize("size", [0, 1, 100])
def test_a_ledger_without_a_complete_row_is_never_a_fresh_start(lived: Path, size: int) -> None:
    lived.write_bytes(lived.read_bytes()[:size])
    with pytest.raises(LedgerCorrupt, match="no complete row"):
        reopen(lived)
    with pytest.raises(LedgerError, match="already"):
        create(lived)


def test_removed_reordered_and_repeated_rows_are_noticed(lived: Path) -> None:
    lines = lived.read_bytes().splitlines(keepends=True)
    for i in range(len(lines) - 1):
        variants = [lines[:i] + lines[i + 1 :], lines[: i + 1] + lines[i:]]
        variants.append([*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]])
        for rows in variants:
            lived.write_bytes(b"".join(rows))
            with pytest.raises(LedgerCorrupt, match="Row"):
                reopen(lived)


def test_a_rolled_back_ledger_does_not_contain_the_head_of_a_checkpoint(lived: Path) -> None:
    whole = lived.read_bytes()
    head = Ledger.read(lived).head
    lines = whole.splitlines(keepends=True)
    assert Ledger.read(lived).contains(head)
    lived.write_bytes(b"".join(lines[:-1]))
    assert not Ledger.read(lived).contains(head)
    with reopen(lived) as other_history:
        other_history.reserve(step())
        assert other_history.head.seq == head.seq
        assert not other_history.contains(head)


def test_a_ledger_contains_every_head_it_ever_had(path: Path) -> None:
    heads = []
    with create(path) as ledger:
        heads.append(ledger.head)
        for _ in range(5):
            ledger.reserve(step())
            heads.append(ledger.head)
        heads_of_others = [LedgerHead(seq=head.seq, sha256="0" * 64) for head in heads]
        assert all(ledger.contains(head) for head in heads)
        assert not any(ledger.contains(head) for head in heads_of_others)
        assert not ledger.contains(LedgerHead(seq=99, sha256=heads[0].sha256))
    assert all(Ledger.read(path).contains(head) for head in heads)


def _edit(body: dict[str, object]) -> Callable[[dict[str, object]], None]:
    return lambda row: row.update(body=body)


EVENT = {"type": "gaussian", "noise_multiplier": 1.0}
FORGERIES: dict[str, tuple[int, Callable[[dict[str, object]], None]]] = {
    "zero count": (1, _edit({"count": 0, "event": EVENT})),
    "negative count": (1, _edit({"count": -3, "event": EVENT})),
    "count as float": (1, _edit({"count": 3.0, "event": EVENT})),
    "count as bool": (1, _edit({"count": True, "event": EVENT})),
    "surplus field": (1, _edit({"count": 3, "event": EVENT, "loss": 0.5})),
    "missing field": (1, _edit({"count": 3})),
    "unknown event": (1, _edit({"count": 3, "event": {"type": "magic"}})),
    "event not canonical": (1, _edit({"count": 3, "event": {"type": "gaussian", "noise_multiplier": 1}})),
    "giving back too much": (3, _edit({"returned": [{"count": 3, "event": EVENT}]})),
    "giving back what was voided": (3, lambda row: row["body"]["returned"][0].update(count=3)),  # type: ignore[index]
    "giving back text": (3, _edit({"returned": "all"})),
    "free text reason": (2, lambda row: row.update(body={**row["body"], "reason": "17 records"})),  # type: ignore[dict-item]
    "another plan": (2, lambda row: row.update(plan="cd" * 32)),
    "two creations": (1, lambda row: row.update(kind="create", body={"format": 1, "plan": {}})),
    "row after close": (4, lambda row: row.update(process="{first}")),
    "void by another process": (2, lambda row: row.update(process="f" * 16)),
    "back to a replaced process": (6, lambda row: row.update(process="{first}")),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_rows_that_make_no_sense_are_refused_even_with_a_perfect_chain(lived: Path, name: str) -> None:
    place, forge = FORGERIES[name]
    rows = [json.loads(line) for line in lived.read_bytes().splitlines()]
    lived.write_bytes(resealed([json.dumps(row).encode() for row in rows]))
    assert Ledger.read(lived).num_rows == len(rows)
    forge(rows[place])
    if rows[place]["process"] == "{first}":
        rows[place]["process"] = rows[0]["process"]
    lived.write_bytes(resealed([json.dumps(row).encode() for row in rows]))
    with pytest.raises(LedgerCorrupt, match=f"Row {place} "):
        reopen(lived)


def test_a_known_row_after_the_closing_row_of_its_process_is_refused(lived: Path) -> None:
    lines = lived.read_bytes().splitlines()
    lived.write_bytes(resealed([*lines[:4], lines[1]]))
    with pytest.raises(LedgerCorrupt, match=r"Row 4 .*closing"):
        reopen(lived)


def with_right_crc(row: dict[str, object]) -> bytes:
    row.pop("crc")
    return canonical({**row, "crc": f"{zlib.crc32(canonical(row)):08x}"})


@pytest.mark.parametrize("change", [{"prev": "1" * 64}, {"seq": 7}, {"seq": 0}], ids=str)
@pytest.mark.parametrize("place", [1, 2])
def test_a_row_that_does_not_continue_the_chain_is_refused_though_its_checksum_is_right(
    lived: Path, place: int, change: dict[str, object]
) -> None:
    lines = lived.read_bytes().splitlines()[: place + 1]
    lines[place] = with_right_crc({**json.loads(lines[place]), **change})
    lived.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(LedgerCorrupt, match=f"Row {place} "):
        reopen(lived)


def test_an_edited_row_is_noticed_by_the_row_after_it_though_its_checksum_is_right(lived: Path) -> None:
    lines = lived.read_bytes().splitlines()
    row = json.loads(lines[1])
    row["body"]["count"] = 2
    lines[1] = with_right_crc(row)
    lived.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(LedgerCorrupt, match=r"Row 2 .*chain"):
        reopen(lived)


def test_a_later_format_is_refused_without_being_called_damaged(lived: Path) -> None:
    rows = [json.loads(line) for line in lived.read_bytes().splitlines()]
    rows[0]["body"]["format"] = 3
    lived.write_bytes(resealed([json.dumps(row).encode() for row in rows]))
    with pytest.raises(LedgerError, match="format 3") as caught:
        reopen(lived)
    assert not isinstance(caught.value, LedgerCorrupt)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1e999}',
        b'{"a":1,"a":2}',
        b'{"a":9007199254740993}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":' * 20000,
        b'{"a":"\xc3\xa9"}',
        b"",
    ],
    ids=lambda text: text[:12].decode("latin1"),
)
def test_strict_json_refuses_what_readers_disagree_about(text: bytes) -> None:
    with pytest.raises(ValueError):
        parse_strict(text)


def test_an_endless_line_is_refused_without_being_read_whole(lived: Path) -> None:
    whole = lived.read_bytes()
    lived.write_bytes(whole + b"x" * (MAX_ROW_BYTES + 10))
    with pytest.raises(LedgerCorrupt):
        reopen(lived)


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=400), st.integers(0, 2000), st.booleans())
def test_no_bytes_make_the_reader_fail_in_an_unknown_way(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, place: int, newline: bool
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "ledger.jsonl"
    with create(path) as ledger:
        ledger.reserve(step(), 3)
    whole = path.read_bytes()
    path.write_bytes(whole[:place] + noise + (b"\n" if newline else b""))
    try:
        view = Ledger.read(path)
    except LedgerError:
        return
    assert path.read_bytes().startswith(whole[: whole.index(b"\n") + 1])
    assert view.charged_rounds in (0, 3)


# ------------------------------------------------------------------------------------------------------ format and cost


def test_the_chain_can_be_checked_by_a_program_that_knows_only_the_format(lived: Path) -> None:
    prev, charged = "0" * 64, 0
    for seq, line in enumerate(lived.read_bytes().splitlines(keepends=True)):
        row = json.loads(line)
        assert line == json.dumps(row, sort_keys=True, separators=(",", ":")).encode() + b"\n"
        assert (row["seq"], row["prev"], row["plan"]) == (seq, prev, PLAN_HASH)
        assert set(row) == {"body", "crc", "kind", "plan", "prev", "process", "seq"}
        crc = row.pop("crc")
        assert crc == f"{zlib.crc32(json.dumps(row, sort_keys=True, separators=(',', ':')).encode()):08x}"
        prev = hashlib.sha256(line).hexdigest()
        body = row["body"]
        charged += body.get("count", 0) + ("facts" in body) - sum(part["count"] for part in body.get("returned", []))
    view = Ledger.read(lived)
    assert charged == view.charged_rounds == 5
    assert view.head == LedgerHead(seq=seq, sha256=prev)


def test_the_format_does_not_drift(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privet.accounting.ledger.ledger.new_process_word", lambda _: b"0123456789abcdef")
    monkeypatch.setattr("privet.accounting.ledger.ledger.new_run_word", lambda: "0123456789abcdef" * 2)
    with Ledger.create(path, plan={"b": 1, "a": 0.5}, plan_hash="plan-1") as ledger:
        ledger.reserve(step(), 2)
        ledger.check(done(step()))
        ledger.void(VoidReason.INTERRUPTED)
    assert path.read_bytes().splitlines()[1] == (
        b'{"body":{"count":2,"event":{"event":{"noise_multiplier":1.1,"type":"gaussian"},"sampling_probability":0.01,'
        b'"type":"poisson_sampled"}},"crc":"761cb1cf","kind":"reserve","plan":"plan-1",'
        b'"prev":"386edaf883ed0bf3a8aa02121de7821e6ee6b641270fd38674e3841e65074e24","process":"0123456789abcdef","seq":1}'
    )
    assert Ledger.read(path).head.sha256 == "bf453df4cadddf89250f739efaee5612b1b96191e8c21b75f5db4db381b5d1a4"


def test_the_clock_plays_no_part(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_clock() -> float:
        raise AssertionError("a ledger asked for the time")

    for name in ("time", "time_ns", "monotonic", "localtime", "gmtime"):
        monkeypatch.setattr(f"time.{name}", broken_clock)
    ledger = create(path)
    ledger.reserve(step())
    ledger.check(done(step()))
    ledger.close()
    view = Ledger.read(path)
    monkeypatch.undo()
    assert view.charged_rounds == 1


def test_checking_a_long_ledger_costs_microseconds_a_row(path: Path) -> None:
    num_rows = 50_000
    plan_hash, process, prev = PLAN_HASH.encode(), b"0" * 16, b"0" * 64
    makers = [RowMaker(Reserved(coded=CodedEvent.of(step(1 + k)), count=1 + k)) for k in range(3)]
    lines = [RowMaker(Created(plan={}, run="0" * 32)).line(RowFields(plan_hash, prev, process, 0))]
    for seq in range(1, num_rows):
        prev = hashlib.sha256(lines[-1]).hexdigest().encode()
        lines.append(makers[seq % 3].line(RowFields(plan_hash, prev, process, seq)))
    path.write_bytes(b"".join(lines))
    start = time.process_time()
    view = Ledger.read(path)
    seconds = time.process_time() - start
    assert view.num_rows == num_rows
    # A million rows in ten seconds, in processor time so that a busy machine does not matter.
    assert seconds < num_rows * 10e-6
