"""The rows of a ledger: their contents, their exact bytes, and how strictly they are read back.

A row is one line of JSON with sorted keys and no spaces::

    {"body":{...},"crc":"1f2e3d4c","kind":"reserve","plan":"...","prev":"...","process":"...","seq":7}

``prev`` is the SHA-256 of the whole previous line with its newline (zeros in the first row). ``crc`` is the CRC-32 of
the same JSON without the ``crc`` field and without the newline. ``process`` is a random word drawn whenever a ledger is
created or opened. Order is ``seq`` and nothing else: no clock is read or written.

Bodies are built from events, counts and words of fixed lists, so nothing computed from private data can enter a row.
The one exception is the reason of a public change, which are the user's own words and stand in the guarantee.

How the format grows: a kind of row never gains or loses a field, because older versions could then misread it. What is
new becomes a new kind in ``Row``, which older versions refuse as newer than themselves. What changes the meaning of
rows that exist raises ``FORMAT``; earlier formats are read for ever.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, get_args

from dp_accounting.dp_event import NonPrivateDpEvent

from privet import checks
from privet.accounting.ledger.changes import Changed, Unexplained
from privet.accounting.ledger.evidence import Settled, Tried, Vouched
from privet.errors import ArgumentError, LedgerCorrupt, LedgerError, PrivetError
from privet.mechanism.events import DpEvent, decode_event, encode_event
from privet.mechanism.fingerprint import canonical as canonical

FORMAT = 2
"""Format 1 names plans by the hash of a ``repr``, and runs by the hash of the first row."""
MAX_ROW_BYTES = 64 * 1024
MAX_COUNT = 2**53
NO_ROW_SHA256 = "0" * 64

_RUN = re.compile(r"[0-9a-f]{32}")
_PLAN_HASH = re.compile(r"[0-9A-Za-z:._-]{1,128}")
_MAX_INT_DIGITS = 17
_MATCH_ROW = re.compile(
    rb'\{"body":(\{.*\}),"crc":"([0-9a-f]{8})","kind":"([a-z]+)","plan":"([0-9A-Za-z:._-]{1,128})",'
    rb'"prev":"([0-9a-f]{64})","process":"([0-9a-f]{16})","seq":(0|[1-9][0-9]{0,15})\}\n'
).fullmatch

Json: TypeAlias = dict[str, Any]


class VoidReason(Enum):
    """Why a charged round was given up. A closed list: free text could carry something private into the ledger."""

    INTERRUPTED = "interrupted"
    OUT_OF_MEMORY = "out_of_memory"
    WORKER_LOST = "worker_lost"
    STEP_FAILED = "step_failed"


def parse_strict(text: bytes) -> Any:
    """Read JSON as a stranger's: duplicate keys, NaN, infinities and whole numbers above 2**53 raise ``ValueError``."""
    try:
        return json.loads(
            text.decode("ascii"),
            object_pairs_hook=unique_keys,
            parse_constant=no_constant,
            parse_int=_small_int,
            parse_float=_finite_float,
        )
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def unique_keys(pairs: list[tuple[str, Any]]) -> Json:
    """Return a JSON object; refuse one that gives a key twice."""
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice in one JSON object")
    return result


def no_constant(word: str) -> Any:
    """Refuse NaN and infinities."""
    raise ValueError(f"{word} is not JSON")


def _small_int(digits: str) -> int:
    # The length is looked at first: converting a million digits takes minutes.
    if len(digits) > _MAX_INT_DIGITS or abs(int(digits)) > MAX_COUNT:
        raise ValueError("a whole number is above 2**53")
    return int(digits)


def _finite_float(digits: str) -> float:
    result = float(digits)
    if not math.isfinite(result):
        raise ValueError(f"the number {digits[:20]} does not fit a float")
    return result


def checked_plan_hash(plan_hash: object) -> str:
    """Return the hash that names a plan; refuse one that would need escapes in a row."""
    if not isinstance(plan_hash, str) or _PLAN_HASH.fullmatch(plan_hash) is None:
        raise ArgumentError(
            f"plan_hash must be 1 to 128 letters, digits or any of ':._-' (such as a hex digest), got {plan_hash!r}."
        )
    return plan_hash


def checked_plan(plan: Mapping[str, Any]) -> Json:
    """Return the public plan as it will be read back; refuse values that JSON cannot hold exactly."""
    try:
        result = parse_strict(canonical(dict(plan)))
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"The plan of a ledger must be plain JSON data: {error}.") from None
    assert isinstance(result, dict)
    return result


@dataclass(frozen=True, kw_only=True)
class CodedEvent:
    """An event with its JSON form. The bytes of that form are the event's identity in a ledger."""

    event: DpEvent
    form: Json
    key: bytes

    @classmethod
    def of(cls, event: DpEvent) -> CodedEvent:
        """Write an event."""
        form = encode_event(event)
        return cls(event=event, form=form, key=canonical(form))

    @classmethod
    def of_facts(cls, event: DpEvent) -> CodedEvent:
        """Write the event of an executed round; facts that no event describes count as not private."""
        try:
            return cls.of(event)
        except PrivetError:
            return cls.of(NonPrivateDpEvent())

    @classmethod
    def read(cls, data: Any) -> CodedEvent:
        """Read an event back from JSON data."""
        return cls.of(decode_event(data))


class Entry(Protocol):
    """The contents of one row.

    Attributes:
        kind: The word for this kind of row.
    """

    @property
    def kind(self) -> str: ...

    def body(self) -> Json:
        """Return the JSON form."""
        ...


@dataclass(frozen=True, kw_only=True)
class Created:
    """The first row: the format, and the public plan that everything after it is charged for.

    Attributes:
        plan: The plan.
        is_seeded: Whether the user chose the seed of the random streams, so that nothing after it is private.
        assumptions: Assumptions of the guarantee besides those of the plan: words of the library's own pieces.
        run: A random word of 32 hex digits that names the run; None in format 1, which had none.
    """

    kind: ClassVar[str] = "create"
    plan: Json
    is_seeded: bool = False
    assumptions: tuple[str, ...] = ()
    run: str | None

    def body(self) -> Json:
        """Return the JSON form, in the format that the run was begun in."""
        seeded = {"seeded": True} if self.is_seeded else {}
        assumes = {"assumes": list(self.assumptions)} if self.assumptions else {}
        if self.run is None:
            return {"format": 1, "plan": self.plan, **seeded, **assumes}
        return {"format": FORMAT, "plan": self.plan, "run": self.run, **seeded, **assumes}

    @classmethod
    def read(cls, body: Json) -> Created:
        form = checks.count("format", body["format"])
        if form > FORMAT:
            raise LedgerError(
                f"The ledger is of format {form}, this version reads formats up to {FORMAT}: it was made by a newer "
                "privet. Update privet to read it."
            )
        if not isinstance(body["plan"], dict):
            raise ValueError("the plan is not a JSON object")
        run = None if form == 1 else str(body["run"])
        if run is not None and _RUN.fullmatch(run) is None:
            raise ValueError("the run's name is not 32 hex digits")
        assumes = body.get("assumes", [])
        if not isinstance(assumes, list) or not all(isinstance(word, str) for word in assumes):
            raise ValueError("the assumptions are not a list of texts")
        return cls(plan=body["plan"], is_seeded=body.get("seeded", False) is True, assumptions=tuple(assumes), run=run)


@dataclass(frozen=True, kw_only=True)
class Reserved:
    """``count`` rounds of one event are charged, and may now be run by the process that wrote the row."""

    kind: ClassVar[str] = "reserve"
    coded: CodedEvent
    count: int

    def body(self) -> Json:
        return {"count": self.count, "event": self.coded.form}

    @classmethod
    def read(cls, body: Json) -> Reserved:
        return cls(coded=CodedEvent.read(body["event"]), count=checks.count("count", body["count"]))


@dataclass(frozen=True, kw_only=True)
class Mismatched:
    """A round ran as something else than was reserved. The facts are charged on top of the reservation."""

    kind: ClassVar[str] = "mismatch"
    facts: CodedEvent
    reserved: CodedEvent

    def body(self) -> Json:
        return {"facts": self.facts.form, "reserved": self.reserved.form}

    @classmethod
    def read(cls, body: Json) -> Mismatched:
        return cls(facts=CodedEvent.read(body["facts"]), reserved=CodedEvent.read(body["reserved"]))


@dataclass(frozen=True, kw_only=True)
class Voided:
    """One reserved round was given up. It stays charged: data may have been read."""

    kind: ClassVar[str] = "void"
    coded: CodedEvent
    reason: VoidReason

    def body(self) -> Json:
        return {"event": self.coded.form, "reason": self.reason.value}

    @classmethod
    def read(cls, body: Json) -> Voided:
        return cls(coded=CodedEvent.read(body["event"]), reason=VoidReason(body["reason"]))


@dataclass(frozen=True, kw_only=True)
class Closed:
    """A clean exit. The rounds this process reserved and never began are given back."""

    kind: ClassVar[str] = "close"
    returned: tuple[Reserved, ...]

    def body(self) -> Json:
        return {"returned": [part.body() for part in self.returned]}

    @classmethod
    def read(cls, body: Json) -> Closed:
        return cls(returned=tuple(Reserved.read(part) for part in body["returned"]))


class Purpose(Enum):
    """Why something besides the rounds of a plan was released. A closed list, with the assumption of each."""

    EVALUATION = "evaluation"

    @property
    def assumption(self) -> str:
        """The assumption that such a release adds to a guarantee."""
        return (
            f"classes, groups, bins and clips of the private {self.value} are public and were not chosen by looking at "
            "the private data"
        )


@dataclass(frozen=True, kw_only=True)
class Further:
    """One release besides the rounds of the plan is charged, and may now be made by the process that wrote the row.

    Attributes:
        purpose: Its purpose.
        coded: Its event.
        coordinates: How many numbers get noise.
    """

    kind: ClassVar[str] = "further"
    purpose: Purpose
    coded: CodedEvent
    coordinates: int

    def body(self) -> Json:
        return {"coordinates": self.coordinates, "event": self.coded.form, "purpose": self.purpose.value}

    @classmethod
    def read(cls, body: Json) -> Further:
        return cls(
            purpose=Purpose(body["purpose"]),
            coded=CodedEvent.read(body["event"]),
            coordinates=checks.count("coordinates", body["coordinates"]),
        )


@dataclass(frozen=True, kw_only=True)
class Completed:
    """The plan was carried out to its end, in the way that a bound on the end of a run is proven for."""

    kind: ClassVar[str] = "complete"

    def body(self) -> Json:
        """Return the JSON form: the row says that it happened, and no more."""
        return {}

    @classmethod
    def read(cls, body: Json) -> Completed:
        return cls()


Row: TypeAlias = (
    Created
    | Reserved
    | Further
    | Mismatched
    | Voided
    | Changed
    | Unexplained
    | Completed
    | Closed
    | Tried
    | Settled
    | Vouched
)
"""Every kind of row. One that is added here has no meaning until the tally gives it one, and mypy says so."""
_KINDS: Mapping[bytes, Any] = {piece.kind.encode(): piece for piece in get_args(Row)}


class RowFields(NamedTuple):
    """The fields of a row that are not its body. A tuple, because one is made for every row that is checked."""

    plan_hash: bytes
    prev: bytes
    process: bytes
    seq: int


E = TypeVar("E", bound=Entry, covariant=True)


class RowMaker(Generic[E]):
    """Writes rows that say the same thing again and again, doing the work for the body once.

    Attributes:
        entry: The content of the rows.
        start: The bytes with which the rows begin.
    """

    __slots__ = ("_kind", "_start_crc", "entry", "start")

    def __init__(self, entry: E) -> None:
        self.entry = entry
        self._kind = entry.kind.encode()
        self.start = b'{"body":' + canonical(entry.body())
        self._start_crc = zlib.crc32(self.start)

    def line(self, fields: RowFields) -> bytes:
        """Return the line, newline included; a row above 64 KiB raises ``ArgumentError``."""
        rest = b',"kind":"%b","plan":"%b","prev":"%b","process":"%b","seq":%d}' % (self._kind, *fields)
        line = b'%b,"crc":"%08x"%b\n' % (self.start, zlib.crc32(rest, self._start_crc), rest)
        if len(line) > MAX_ROW_BYTES:
            raise ArgumentError(
                f"A ledger row may hold {MAX_ROW_BYTES} bytes, this one needs {len(line)}. Merge equal parts of the "
                "event."
            )
        return line


def split_row(line: bytes) -> tuple[bytes, bytes, RowFields] | None:
    """Return (kind, body, fields) of a complete, undamaged line; None for anything else."""
    match = _MATCH_ROW(line)
    if match is None or len(line) > MAX_ROW_BYTES:
        return None
    body, crc, kind, plan_hash, prev, process, seq = match.groups()
    found = zlib.crc32(line[match.end(2) + 1 : -1], zlib.crc32(line[: match.end(1)]))
    if crc != b"%08x" % found:
        return None
    return kind, body, RowFields(plan_hash=plan_hash, prev=prev, process=process, seq=int(seq))


def read_entry(kind: bytes, body: bytes, *, seq: int) -> Row:
    """Return the entry a row holds.

    Guarantee: the entry writes exactly these bytes again, so two readers can never understand one row differently.
    Edge cases: surplus or missing fields, unknown events and non-canonical JSON raise ``LedgerCorrupt``; a later
    format and unknown kinds raise ``LedgerError``, because their checksum is right: a newer version wrote them.
    """
    piece = _KINDS.get(kind)
    if piece is None:
        raise LedgerError(
            f"Row {seq} of the ledger is of the kind {kind.decode()!r}, which this version does not know: it was made "
            "by a newer privet. Update privet to read it; without that row nobody knows what was spent."
        )
    try:
        entry: Row = piece.read(parse_strict(body))
        same = canonical(entry.body()) == body
    except LedgerError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise LedgerCorrupt(f"Row {seq} of the ledger cannot be understood: {error}.") from None
    if not same:
        raise LedgerCorrupt(f"Row {seq} of the ledger is not in the one form this library writes.")
    return entry
