"""Check a certificate without the library that wrote it: the ledger's chain, what it charges, and the epsilon of that.

Usage: python verify_certificate.py RUN            a run's folder that holds certificate.json and ledger.jsonl
       python verify_certificate.py CERTIFICATE --ledger LEDGER [--model MODEL]

Needs Python 3.11, numpy and scipy, and nothing else: no line of privet is used. Epsilon is computed here from the
events of the ledger by composing privacy-loss distributions on a fine grid. Both programs round losses to a grid of
their own, so a claim holds unless it is more than 0.1 % below the figure found here.

Exit codes: 0 everything holds, 1 something is wrong, 2 nothing is wrong but epsilon cannot be recomputed here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import fft
from scipy.special import ndtr

HOLDS, WRONG, UNDECIDED = 0, 1, 2
# The claim comes from another grid than the one here, and the two figures differ by the steps of both.
TOLERANCE = 1e-3
MAX_BYTES = 1 << 30
ROW = re.compile(
    rb'(\{"body":(\{.*\})),"crc":"([0-9a-f]{8})"(,"kind":"([a-z]+)","plan":"([0-9A-Za-z:._-]{1,128})",'
    rb'"prev":"([0-9a-f]{64})","process":"([0-9a-f]{16})","seq":(0|[1-9][0-9]{0,15})\})\n'
)


class Wrong(Exception):
    """The certificate or its ledger does not hold."""


class Undecided(Exception):
    """This program cannot recompute what is claimed."""


def strict_json(data: bytes, what: str) -> Any:
    """Read JSON that says everything once. Numbers that are none are refused when its canonical form is taken."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise Wrong(f"{what}: a key occurs twice")
        return dict(pairs)

    try:
        return json.loads(data, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise Wrong(f"{what} is not JSON: {error}") from None


def canonical(value: Any) -> bytes:
    """Return the one form that digests and identities are taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def read_bytes(path: Path) -> bytes:
    """Read a whole file of reasonable size."""
    if not path.is_file() or path.stat().st_size > MAX_BYTES:
        raise Wrong(f"{path} is missing, not a file, or too large")
    return path.read_bytes()


def rows(data: bytes) -> Iterator[tuple[str, Any, str, str, str]]:
    """Yield (kind, body, plan, process, hash) of every complete row, following the chain."""
    previous = "0" * 64
    lines = data.split(b"\n")
    for number, line in enumerate(lines[:-1]):
        match = ROW.fullmatch(line + b"\n")
        if match is None:
            raise Wrong(f"row {number} of the ledger is not a row")
        start, body, crc, rest, kind, plan, prev, process, seq = match.groups()
        if crc != b"%08x" % zlib.crc32(rest, zlib.crc32(start)):
            raise Wrong(f"row {number} of the ledger is damaged")
        if int(seq) != number or prev.decode() != previous:
            raise Wrong(f"the chain of the ledger is broken at row {number}")
        previous = hashlib.sha256(line + b"\n").hexdigest()
        yield kind.decode(), strict_json(body, f"row {number}"), plan.decode(), process.decode(), previous
    if len(lines) < 2:
        raise Wrong("the ledger holds no complete row")


class Account:
    """What the rows of a ledger add up to: every charged event, in its canonical form, with its rounds."""

    def __init__(self) -> None:
        self.events: dict[bytes, int] = {}
        self.plan: Any = None
        self.plan_hash = ""
        self.is_seeded = self.is_unexplained = False
        self.changes: list[str] = []
        self.heads: list[str] = []
        self._process = ""
        self._gone: set[str] = set()
        self._closed = False
        self._returnable: dict[bytes, int] = {}

    @classmethod
    def read(cls, data: bytes) -> Account:
        """Follow a ledger to its end."""
        account = cls()
        for kind, body, plan, process, head in rows(data):
            try:
                account._take(kind, body, plan, process)
            except (KeyError, TypeError, ValueError):
                raise Wrong(f"row {len(account.heads)} of the ledger makes no sense") from None
            account.heads.append(head)
        account.events = {key: count for key, count in account.events.items() if count}
        return account

    def _take(self, kind: str, body: Any, plan: str, process: str) -> None:
        if (kind == "create") != (not self.heads):
            raise Wrong("the creating row is not the first row, and only the first")
        if kind == "create":
            self.plan, self.plan_hash, self._process = body["plan"], plan, process
            self.is_seeded = "seeded" in body
            return
        if plan != self.plan_hash:
            raise Wrong(f"row {len(self.heads)} was charged under another plan")
        self._enter(process)
        if kind == "reserve":
            self._charge(body["event"], body["count"])
            self._give(body["event"], body["count"])
        elif kind == "void":
            self._give(body["event"], -1)
        elif kind == "mismatch":
            self._give(body["reserved"], -1)
            self._charge(body["facts"], 1)
        elif kind == "close":
            for part in body["returned"]:
                self._give(part["event"], -part["count"])
                self._charge(part["event"], -part["count"])
            self._closed = True
        elif kind == "change":
            step, reason = whole(body["step"]), body["reason"]
            self.changes.append(f"the weights were changed after step {step} by: {reason}; this used no private data")
        elif kind == "unexplained":
            self.is_unexplained = True
        else:
            raise Wrong(f"row {len(self.heads)} is of unknown kind {kind!r}")

    def _enter(self, process: str) -> None:
        if process == self._process:
            if self._closed:
                raise Wrong(f"row {len(self.heads)} follows the closing row of its own process")
            return
        if process in self._gone:
            raise Wrong(f"row {len(self.heads)} is by a process that another had replaced")
        self._gone.add(self._process)
        self._process, self._closed = process, False
        # What a vanished process had reserved may have been released: nobody can give it back.
        self._returnable.clear()

    def _charge(self, event: Any, count: Any) -> None:
        key = canonical(event)
        self.events[key] = self.events.get(key, 0) + whole(count)

    def _give(self, event: Any, count: Any) -> None:
        key = canonical(event)
        left = self._returnable.get(key, 0) + whole(count)
        if left < 0:
            raise Wrong(f"row {len(self.heads)} gives back more rounds than were reserved")
        self._returnable[key] = left


def whole(count: Any) -> int:
    """Return a count that is a whole number and nothing else."""
    if isinstance(count, bool) or not isinstance(count, int):
        raise Wrong(f"{count!r} is no count")
    return count


Steps = dict[tuple[float, float], int]


def number(value: Any, low: float, high: float) -> float:
    """Return a number of the right range; "infinity" stands for itself."""
    if value == "infinity":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise Wrong(f"{value!r} is out of range in an event")
    return float(value)


def flattened(event: Any, times: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the single releases of an event with how often they happen."""
    if not isinstance(event, dict):
        raise Wrong("an event is not a JSON object")
    kind = event.get("type")
    if kind == "composed":
        for part in event["events"]:
            yield from flattened(part, times)
    elif kind == "self_composed":
        yield from flattened(event["event"], times * whole(event["count"]))
    elif kind != "no_op" and times:
        yield event, times


def gaussian_multiplier(event: Any) -> float:
    """Return the multiplier of all Gaussian releases inside an event, which see one and the same sample."""
    precision = 0.0
    for part, times in flattened(event, 1):
        if part.get("type") != "gaussian":
            raise Undecided(f"this program does not know the event {part.get('type')!r}")
        multiplier = number(part["noise_multiplier"], 0.0, math.inf)
        precision += math.inf if multiplier == 0 else times / multiplier**2
    return 1 / math.sqrt(precision) if precision else math.inf


def steps_of(events: dict[bytes, int]) -> Steps:
    """Sort what was charged into (rate, multiplier) with counts; no noise gives multiplier 0."""
    found: Steps = {}
    for key, rounds in events.items():
        for part, count in flattened(json.loads(key), rounds):
            if part.get("type") == "non_private":
                rate, multiplier = 1.0, 0.0
            elif part.get("type") == "poisson_sampled":
                rate = number(part["sampling_probability"], 0.0, 1.0)
                multiplier = gaussian_multiplier(part["event"])
            else:
                rate, multiplier = 1.0, gaussian_multiplier(part)
            if rate > 0 and not math.isinf(multiplier):
                found[rate, multiplier] = found.get((rate, multiplier), 0) + count
    return found


def log_density(x: np.ndarray, rate: float, multiplier: float, mean: float) -> np.ndarray:
    """Return log of (1 - rate) N(0) + rate N(mean) over N(0), all of one variance."""
    ratio = (2 * mean * x - mean * mean) / (2 * multiplier**2)
    return ratio if rate == 1 else np.logaddexp(math.log1p(-rate), math.log(rate) + ratio)


def masses(x: np.ndarray, rate: float, multiplier: float, mean: float) -> np.ndarray:
    """Return the mass of the same mixture between neighbouring points."""

    def between(centre: float) -> np.ndarray:
        edges = (x - centre) / multiplier
        # From the nearer tail, so that small masses keep their digits.
        return np.where(edges[:-1] > 0, ndtr(-edges[:-1]) - ndtr(-edges[1:]), ndtr(edges[1:]) - ndtr(edges[:-1]))

    return rate * between(mean) + ((1 - rate) * between(0.0) if rate < 1 else 0.0)


def losses(rate: float, multiplier: float, direction: str) -> tuple[np.ndarray, np.ndarray]:
    """Return privacy losses of one step and their probabilities, in one of the directions."""
    reach = 14 * multiplier
    edges = np.linspace(-reach - 1, reach + 1, 100_001)
    x = (edges[1:] + edges[:-1]) / 2
    upper = log_density(x, rate, multiplier, 1.0)
    if direction == "removed":
        return upper, masses(edges, rate, multiplier, 1.0)
    if direction == "added":
        return -upper, masses(edges, 1.0, multiplier, 0.0)
    return upper - log_density(x, rate, multiplier, -1.0), masses(edges, rate, multiplier, 1.0)


def reach_of(parts: list[tuple[np.ndarray, np.ndarray, int]]) -> tuple[float, float]:
    """Return an interval that the summed loss leaves with probability below 1e-15 (Chernoff's bound)."""
    low, high = -math.inf, math.inf
    for slope in np.geomspace(0.02, 500, 60):
        for sign in (1.0, -1.0):
            total = 0.0
            for at, mass, count in parts:
                exponent = sign * slope * at
                peak = float(exponent.max())
                total += count * (peak + math.log(float((mass * np.exp(exponent - peak)).sum())))
            bound = (total + 35) / slope
            high, low = (min(high, bound), low) if sign > 0 else (high, max(low, -bound))
    return low, high


def epsilon_in(direction: str, steps: Steps, delta: float) -> float:
    """Compose all steps in one direction and return the smallest epsilon at delta."""
    parts = [(*losses(rate, z, direction), count) for (rate, z), count in steps.items()]
    spreads = [math.sqrt(float(mass @ at**2) - float(mass @ at) ** 2) for at, mass, _ in parts]
    low, high = reach_of(parts)
    spacing = max(min(0.02 * spread for spread in spreads), (high - low) / (1 << 22))
    if spacing > 0.3 * min(spreads):
        raise Undecided("the losses of single steps are too small beside the whole run for this program's grid")
    length = fft.next_fast_len(int((high - low) / spacing) + 16, real=True)
    product = np.ones(length // 2 + 1, dtype=complex)
    for at, mass, count in parts:
        place = np.floor(at / spacing).astype(np.int64)
        # A loss is shared between the two nearest points so that its mean is kept.
        share = at / spacing - place
        grid = np.bincount(place % length, mass * (1 - share), length)
        grid += np.bincount((place + 1) % length, mass * share, length)
        product *= fft.rfft(grid) ** count
    first = math.floor(low / spacing) - 8
    composed = np.roll(fft.irfft(product, length), -first % length)
    return smallest_epsilon((first + np.arange(length)) * spacing, np.maximum(composed, 0.0), delta)


def smallest_epsilon(at: np.ndarray, mass: np.ndarray, delta: float) -> float:
    """Solve sum over losses above epsilon of mass * (1 - exp(epsilon - loss)) = delta."""

    def spent(epsilon: float) -> float:
        above = at > epsilon
        return float(mass[above] @ -np.expm1(epsilon - at[above]))

    if spent(0.0) <= delta:
        return 0.0
    low, high = 0.0, float(at[-1])
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) > delta else (low, middle)
    return high


def recomputed_epsilon(events: dict[bytes, int], *, delta: float, relation: str) -> float:
    """Return epsilon of everything charged."""
    steps = steps_of(events)
    if not steps:
        return 0.0
    if any(multiplier == 0 for _, multiplier in steps):
        return math.inf
    directions = ("replaced",) if relation == "replace_one" else ("removed", "added")
    return max(epsilon_in(direction, steps, delta) for direction in directions)


def check_digest(certificate: Any) -> None:
    """Check the certificate's own digest and version."""
    if not isinstance(certificate, dict) or certificate.get("schema") != "privet certificate":
        raise Wrong("this is not a certificate")
    if certificate.get("schema_version") != 1:
        raise Undecided(f"certificates of version {certificate.get('schema_version')!r} are not known here")
    values = {name: value for name, value in certificate.items() if name != "digest"}
    if hashlib.sha256(canonical(values)).hexdigest() != certificate.get("digest"):
        raise Wrong("the certificate was changed after it was written: its digest is another")


def check_ledger(certificate: dict[str, Any], account: Account) -> None:
    """Compare what the certificate says of the ledger with the ledger."""
    told = certificate["ledger"]
    seq, head = told["head"]["seq"], told["head"]["sha256"]
    if seq >= len(account.heads) or account.heads[seq] != head:
        raise Wrong("the ledger does not contain the certificate's head: it was rolled back, or is another run's")
    if len(account.heads) != seq + 1:
        raise Wrong("the ledger has grown since the certificate was written: certify the run again")
    told_events = {canonical(part["event"]): whole(part["count"]) for part in told["events"]}
    if told_events != account.events or told["rows"] != len(account.heads):
        raise Wrong("the certificate lists other charges than the ledger")
    if told["rounds_charged"] != sum(account.events.values()):
        raise Wrong("the certificate counts other rounds than the ledger")
    plan, promise = certificate["plan"], certificate["guarantee"]
    if plan["hash"] != account.plan_hash or canonical(plan["values"]) != canonical(account.plan):
        raise Wrong("the certificate's plan is not the one in the ledger's first row")
    if account.is_seeded and not promise["not_private_because"]:
        raise Wrong("the ledger says that the user chose the seed of the run, and the certificate promises privacy")
    if account.is_unexplained and not promise["not_private_because"]:
        raise Wrong("something that was no private step changed the weights, and the certificate promises privacy")
    if not set(account.changes) <= set(promise["assumptions"]):
        raise Wrong("the ledger tells of public changes of the weights that the certificate does not name")
    for name in ("delta", "adjacency", "unit"):
        if promise[name] != account.plan.get(name):
            raise Wrong(f"the certificate's {name} is {promise[name]!r}, the plan's is {account.plan.get(name)!r}")


def check_files(certificate: dict[str, Any], folder: Path, model: Path | None) -> list[str]:
    """Compare the fingerprints of the files that are there; return what was compared."""
    known = certificate["model"] or {"file": "model.safetensors", "sha256": None}
    beside = {
        folder / "plan.json": certificate["plan"]["file_sha256"],
        folder / Path(known["file"]).name: known["sha256"],
    }
    asked = {path: digest for path, digest in beside.items() if path.exists()}
    if model is not None:
        asked[model] = known["sha256"]
    for path, digest in asked.items():
        if hashlib.sha256(read_bytes(path)).hexdigest() != digest:
            raise Wrong(f"{path.name} is not the file that was certified")
    return [path.name for path in asked]


def check_epsilon(certificate: dict[str, Any], account: Account) -> str:
    """Recompute epsilon and compare it with the claim."""
    promise = certificate["guarantee"]
    claim, delta = number(promise["epsilon"], 0.0, math.inf), number(promise["delta"], 1e-300, 1.0)
    if not promise["is_upper_bound"]:
        raise Wrong("the claimed epsilon is no upper bound")
    if promise["released"] != "every_iterate":
        raise Undecided("the claim rests on a theorem about the last iterate, which this program does not know")
    if delta < 1e-11:
        raise Undecided(f"delta {delta:g} is below what sums in double precision can tell")
    found = recomputed_epsilon(account.events, delta=delta, relation=promise["adjacency"])
    if claim < found * (1 - TOLERANCE):
        raise Wrong(
            f"epsilon {claim:.6g} is claimed, but the ledger charges {found:.6g}: more than {100 * TOLERANCE:g} % above"
        )
    allowed = f"a claim may be up to {100 * TOLERANCE:g} % below, for the steps of the two grids"
    return f"epsilon {claim:.6g} claimed, {found:.6g} recomputed from the ledger (delta {delta:g}); {allowed}"


def verify(certificate_path: Path, ledger_path: Path, model_path: Path | None) -> Iterator[str]:
    """Yield a line for everything that was found to hold; raise at the first that does not."""
    certificate = strict_json(read_bytes(certificate_path), certificate_path.name)
    try:
        check_digest(certificate)
        yield "the certificate is as it was written"
        account = Account.read(read_bytes(ledger_path))
        yield f"the ledger's chain of {len(account.heads):,} rows is unbroken"
        check_ledger(certificate, account)
        yield f"{sum(account.events.values()):,} charged rounds and the plan agree with the certificate"
        for name in check_files(certificate, certificate_path.parent, model_path):
            yield f"{name} is the certified file"
        yield check_epsilon(certificate, account)
        if promised_nothing := certificate["guarantee"]["not_private_because"]:
            raise Wrong(f"the certificate itself promises nothing: {'; '.join(promised_nothing)}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Wrong(f"the certificate lacks an entry or has one of the wrong kind: {error}") from None


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("certificate", type=Path, help="certificate.json, or a folder that holds it")
    parser.add_argument("--ledger", type=Path, help="the ledger; ledger.jsonl beside the certificate by default")
    parser.add_argument("--model", type=Path, help="the model's file; the named one beside the certificate by default")
    asked = parser.parse_args(arguments)
    path = asked.certificate / "certificate.json" if asked.certificate.is_dir() else asked.certificate
    try:
        for line in verify(path, asked.ledger or path.parent / "ledger.jsonl", asked.model):
            print(f"  holds: {line}")
    except (Wrong, OSError) as error:
        print(f"  WRONG: {error}\nFAIL")
        return WRONG
    except Undecided as error:
        print(f"  UNDECIDED: {error}\nNOT VERIFIED")
        return UNDECIDED
    print("PASS")
    return HOLDS


if __name__ == "__main__":
    sys.exit(main())
