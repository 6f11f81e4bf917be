"""Check a certificate without the library that wrote it: make it anew from the ledger, and compare every entry.

Usage: python verify_certificate.py RUN            a run's folder that holds certificate.json and ledger.jsonl
       python verify_certificate.py CERTIFICATE --ledger LEDGER [--model MODEL]

A signature in certificate.signature.json is checked as well; --public-key HEX says whose it must be.

Needs Python 3.11, numpy and scipy, and nothing else: no line of privet is used. Epsilon and mu are computed here from
the events of the ledger by composing privacy-loss distributions on a fine grid. Both programs round losses to a grid of
their own, so a claim holds unless it is more than 0.1 % below the figure found here. Every other entry follows from the
ledger, from the plan in its first row and from the files beside it (plan.json, model.safetensors, env.json): it is
written here in the same words, and a certificate with an entry more, less or other than that is refused.

Exit codes: 0 everything holds, 1 something is wrong, 2 nothing is wrong but not all of it can be checked here.
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
from decimal import ROUND_CEILING, Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
from scipy import fft
from scipy.special import i0e, log_ndtr, ndtr, ndtri

HOLDS, WRONG, UNDECIDED = 0, 1, 2
# The claim comes from another grid than the one here, and the two figures differ by the steps of both.
TOLERANCE = 1e-3
# A claim may lie above the figure here by what the library rounds up; a mu besides by the cells of its search.
ABOVE, ABOVE_ABSOLUTE, MU_TOLERANCE, MU_ABSOLUTE = 3e-3, 1e-3, 3e-3, 1e-3
EXACT = 1e-6
VERSION = 2
MAX_BYTES = 1 << 30
MAX_REASON = 200
# What may be released besides the rounds of a plan, and what each rests on.
PURPOSES = {
    "evaluation": (
        "classes, groups, bins and clips of the private evaluation are public and were not chosen by looking at the "
        "private data"
    ),
}
ROW = re.compile(
    rb'(\{"body":(\{.*\})),"crc":"([0-9a-f]{8})"(,"kind":"([a-z]+)","plan":"([0-9A-Za-z:._-]{1,128})",'
    rb'"prev":"([0-9a-f]{64})","process":"([0-9a-f]{16})","seq":(0|[1-9][0-9]{0,15})\})\n'
)


class Wrong(Exception):
    """The certificate or its ledger does not hold."""


class Undecided(Exception):
    """This program cannot recompute what is claimed."""


def strict_json(data: bytes, what: str) -> Any:
    """Read JSON that says everything once, in numbers that are numbers."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise Wrong(f"{what}: a key occurs twice")
        return dict(pairs)

    try:
        return json.loads(data, object_pairs_hook=unique, parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        raise Wrong(f"{what} is not JSON: {error}") from None


def no_number(word: str) -> float:
    """Refuse the words by which JSON's extensions write infinities and NaN."""
    raise ValueError(f"{word} is not a number")


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
        self.assumptions: list[str] = []
        self.plan_hash = ""
        self.is_seeded = self.is_unexplained = self.is_complete = self.has_unfinished_row = False
        self.changes: list[str] = []
        self.tried: list[str] = []
        self.vouched: list[str] = []
        self.besides: list[dict[str, Any]] = []
        self.num_voids = self.num_mismatches = 0
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
        account.has_unfinished_row = not data.endswith(b"\n")
        return account

    @property
    def rounds(self) -> int:
        """How many rounds of the plan are charged; releases besides it are none."""
        return sum(self.planned.values())

    @property
    def planned(self) -> dict[bytes, int]:
        """What is charged without the releases besides the plan."""
        found = dict(self.events)
        for release in self.besides:
            found[canonical(release["event"])] -= 1
        if any(count < 0 for count in found.values()):
            raise Wrong("the ledger gives back a release besides the plan")
        return {key: count for key, count in found.items() if count}

    def _take(self, kind: str, body: Any, plan: str, process: str) -> None:
        if (kind == "create") != (not self.heads):
            raise Wrong("the creating row is not the first row, and only the first")
        if kind == "create":
            check_format(body)
            self.plan, self.plan_hash, self._process = body["plan"], plan, process
            self.is_seeded = "seeded" in body
            self.assumptions = [str(word) for word in body.get("assumes", [])]
            return
        if plan != self.plan_hash:
            raise Wrong(f"row {len(self.heads)} was charged under another plan")
        self._enter(process)
        ends = kind == "complete" and not self.changes and not self.is_unexplained
        self.is_complete = ends or (self.is_complete and kind in ("close", "change", "further"))
        if kind == "reserve":
            if whole(body["count"]) < 1:
                raise Wrong(f"row {len(self.heads)} reserves {body['count']!r} rounds")
            self._charge(body["event"], body["count"])
            self._give(body["event"], body["count"])
        elif kind == "further":
            self._further(**body)
        elif kind == "void":
            self._give(body["event"], -1)
            self.num_voids += 1
        elif kind == "mismatch":
            self._give(body["reserved"], -1)
            self._charge(body["facts"], 1)
            self.num_mismatches += 1
        elif kind == "close":
            for part in body["returned"]:
                if whole(part["count"]) < 1:
                    raise Wrong(f"row {len(self.heads)} gives back {part['count']!r} rounds")
                self._give(part["event"], -part["count"])
                self._charge(part["event"], -part["count"])
            self._closed = True
        elif kind == "change":
            self._change(**body)
        elif kind == "unexplained":
            self.is_unexplained = True
        elif kind == "tried":
            self._tell(self.tried, **body)
        elif kind == "settled":
            self.tried = [reason for reason in self.tried if reason != body["reason"]]
        elif kind == "vouched":
            self._tell(self.vouched, reason=body["assumption"])
        elif kind == "complete" and body == {}:
            return
        else:
            raise Wrong(f"row {len(self.heads)} is of unknown kind {kind!r}")

    def _further(self, *, coordinates: Any, event: Any, purpose: Any) -> None:
        if purpose not in PURPOSES or whole(coordinates) < 1:
            raise Wrong(f"row {len(self.heads)} charges a release besides the plan for no known purpose")
        self._charge(event, 1)
        self._give(event, 1)
        self.besides.append({"coordinates": coordinates, "event": event, "purpose": purpose})

    def _tell(self, stated: list[str], *, reason: Any) -> None:
        if not isinstance(reason, str) or not reason.isprintable() or not 3 <= len(reason) <= MAX_REASON:
            raise Wrong(f"row {len(self.heads)} gives no reason in words")
        if reason not in stated:
            stated.append(reason)

    def _change(self, *, reason: Any, step: Any) -> None:
        is_text = isinstance(reason, str) and reason.isprintable() and reason.strip() == reason
        if not is_text or not 3 <= len(reason) <= MAX_REASON or whole(step) < 0:
            raise Wrong(f"row {len(self.heads)} does not say how the weights were changed")
        words = f"the weights were changed after step {step} by: {reason}; this used no private data"
        if words not in self.changes:
            self.changes.append(words)

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


def check_format(body: Any) -> None:
    """Check the format of a ledger, and that the run has a name where the format asks for one."""
    if whole(body["format"]) not in (1, 2):
        raise Undecided(f"ledgers of format {body['format']} are not known here")
    run = body.get("run")
    if (run is None) != (body["format"] == 1) or (run is not None and re.fullmatch("[0-9a-f]{32}", run) is None):
        raise Wrong("the first row of the ledger does not name its run in the way of its format")


def whole(count: Any) -> int:
    """Return a count that is a whole number and nothing else."""
    if isinstance(count, bool) or not isinstance(count, int):
        raise Wrong(f"{count!r} is no count")
    return count


# How often a step of a rate, a multiplier and a number of records of one unit happens.
Steps = dict[tuple[float, float, int], int]
MOST_RECORDS = 1000


def number(value: Any, low: float, high: float) -> float:
    """Return a number of the right range; where infinity is in it, "infinity" stands for that."""
    if value == "infinity" and high == math.inf:
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
    """Sort what was charged into (rate, multiplier, records) with counts; no noise gives multiplier 0."""
    found: Steps = {}
    for key, rounds in events.items():
        for part, count in flattened(json.loads(key), rounds):
            records = 1
            if part.get("type") == "non_private":
                rate, multiplier = 1.0, 0.0
            elif part.get("type") == "poisson_sampled":
                rate = number(part["sampling_probability"], 0.0, 1.0)
                multiplier = gaussian_multiplier(part["event"])
            elif part.get("type") == "sampled_records":
                rate, records = number(part["sampling_probability"], 0.0, 1.0), whole(part["num_records"])
                multiplier = number(part["noise_multiplier"], 0.0, math.inf)
                if not 1 <= records <= MOST_RECORDS:
                    raise Wrong(f"{records} records of one unit are out of range in an event")
                if rate == 1:
                    multiplier, records = multiplier / records, 1
            else:
                rate, multiplier = 1.0, gaussian_multiplier(part)
            if rate > 0 and not math.isinf(multiplier):
                found[rate, multiplier, records] = found.get((rate, multiplier, records), 0) + count
    return found


def chances(rate: float, records: int) -> list[float]:
    """Return the probabilities of 0, 1, ... of a unit's records in a sample."""
    return [math.comb(records, j) * rate**j * (1 - rate) ** (records - j) for j in range(records + 1)]


def log_density(x: np.ndarray, rate: float, multiplier: float, mean: float, records: int = 1) -> np.ndarray:
    """Return log of the sum of N(j * mean), with the chance of j records in the sample, over N(0)."""
    found = np.full_like(x, -math.inf)
    for j, chance in enumerate(chances(rate, records)):
        if chance > 0:
            shift = j * mean
            found = np.logaddexp(found, math.log(chance) + (2 * shift * x - shift * shift) / (2 * multiplier**2))
    return found


def masses(x: np.ndarray, rate: float, multiplier: float, mean: float, records: int = 1) -> np.ndarray:
    """Return the mass of the same mixture between neighbouring points."""

    def between(centre: float) -> np.ndarray:
        edges = (x - centre) / multiplier
        # From the nearer tail, so that small masses keep their digits.
        return np.where(edges[:-1] > 0, ndtr(-edges[:-1]) - ndtr(-edges[1:]), ndtr(edges[1:]) - ndtr(edges[:-1]))

    parts = [chance * between(j * mean) for j, chance in enumerate(chances(rate, records)) if chance > 0]
    return np.asarray(np.sum(parts, axis=0))


def highest(rate: float, multiplier: float, records: int) -> float:
    """Return an outcome that a step with the unit exceeds with probability below 1e-40 and that none without does."""
    if records == 1:
        return 14 * multiplier + 1
    # a normal tail beyond 14 has mass 1e-44, and a rarer number of records needs a shorter one
    ends = [
        j + 14 * multiplier * math.sqrt(1 + math.log10(chance) / 41)
        for j, chance in enumerate(chances(rate, records))
        if chance > 1e-40
    ]
    return max(ends) + 1


def losses(rate: float, multiplier: float, records: int, direction: str) -> tuple[np.ndarray, np.ndarray]:
    """Return privacy losses of one step and their probabilities, in one of the directions."""
    edges = np.linspace(-14 * multiplier - 1, highest(rate, multiplier, records), 100_001)
    x = (edges[1:] + edges[:-1]) / 2
    upper = log_density(x, rate, multiplier, 1.0, records)
    if direction == "removed":
        return upper, masses(edges, rate, multiplier, 1.0, records)
    if direction == "added":
        return -upper, masses(edges, 1.0, multiplier, 0.0)
    if records > 1:
        raise Wrong("several sampled records of one unit have no bound if the unit is exchanged")
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


def composed(direction: str, steps: Steps) -> tuple[np.ndarray, np.ndarray]:
    """Compose all steps in one direction; return the losses of the whole run and their probabilities."""
    parts = [(*losses(rate, z, records, direction), count) for (rate, z, records), count in steps.items()]
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
    total = np.roll(fft.irfft(product, length), -first % length)
    return (first + np.arange(length)) * spacing, np.maximum(total, 0.0)


def deltas_at(epsilons: np.ndarray, at: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Return sum over losses above each epsilon of mass * (1 - exp(epsilon - loss))."""
    above = at > 0
    at, mass = at[above], mass[above]
    tails = np.append(np.cumsum(mass[::-1])[::-1], 0.0)
    shrunk = np.append(np.cumsum((mass * np.exp(-at))[::-1])[::-1], 0.0)
    place = np.searchsorted(at, epsilons, side="right")
    return np.asarray(np.maximum(tails[place] - np.exp(epsilons) * shrunk[place], 0.0))


def smallest_epsilon(at: np.ndarray, mass: np.ndarray, delta: float) -> float:
    """Return the smallest epsilon whose delta is small enough."""

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


def log_gaussian_delta(mu: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    """Return log delta of the Gaussian mechanism with signal-to-noise ratio mu."""
    upper, lower = log_ndtr(mu / 2 - epsilon / mu), log_ndtr(-mu / 2 - epsilon / mu)
    with np.errstate(divide="ignore"):
        return np.asarray(upper + np.log1p(-np.exp(np.minimum(epsilon + lower - upper, 0.0))))


def bisected(is_low: Any, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return where a condition that holds at low and not at high ends."""
    for _ in range(80):
        middle = (low + high) / 2
        holds = is_low(middle)
        low, high = np.where(holds, middle, low), np.where(holds, high, middle)
    return high


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return epsilon of the Gaussian mechanism with signal-to-noise ratio mu."""
    if mu == 0 or 2 * float(ndtr(mu / 2)) - 1 <= delta:
        return 0.0
    ratio, target = np.array([mu]), math.log(delta)
    high = np.array([mu * mu + 40 * mu * math.sqrt(-target) + 1])
    return float(bisected(lambda e: log_gaussian_delta(ratio, e) > target, np.zeros(1), high)[0])


def covering_mu(curves: list[tuple[np.ndarray, np.ndarray]], epsilon: float) -> float:
    """Return the mu whose Gaussian curve lies above that of the run at every epsilon up to the given one."""
    grid = np.linspace(0.0, epsilon, 2049)
    asked = np.max([deltas_at(grid[:-1], at, mass) for at, mass in curves], axis=0)
    some = asked > 0
    if epsilon == 0 or not some.any():
        return 0.0
    targets, right = np.log(asked[some]), grid[1:][some]
    low, high = np.full_like(right, -30.0), np.full_like(right, 30.0)
    return float(np.exp(bisected(lambda x: log_gaussian_delta(np.exp(x), right) < targets, low, high)).max())


class Figures:
    """Epsilon and mu of a run, and how the library finds them."""

    def __init__(self, *, epsilon: float, mu: float, accountant: str, is_exact: bool) -> None:
        self.epsilon, self.mu, self.accountant, self.is_exact = epsilon, mu, accountant, is_exact


def figures_of(events: dict[bytes, int], *, delta: float, relation: str) -> Figures:
    """Return the figures of everything charged."""
    steps = steps_of(events)
    if any(multiplier == 0 for _, multiplier, _ in steps):
        return Figures(epsilon=math.inf, mu=math.inf, accountant="exact Gaussian", is_exact=True)
    if all(rate == 1 for rate, _, _ in steps):
        factor = 2.0 if relation == "replace_one" else 1.0
        mu = factor * math.sqrt(sum(count / multiplier**2 for (_, multiplier, _), count in steps.items()))
        return Figures(epsilon=gaussian_epsilon(mu, delta), mu=mu, accountant="exact Gaussian", is_exact=True)
    if delta < 1e-11:
        raise Undecided(f"delta {delta:g} is below what sums in double precision can tell")
    directions = ("replaced",) if relation == "replace_one" else ("removed", "added")
    curves = [composed(direction, steps) for direction in directions]
    epsilon = max(smallest_epsilon(at, mass, delta) for at, mass in curves)
    return Figures(epsilon=epsilon, mu=covering_mu(curves, epsilon), accountant="PLD", is_exact=False)


def recomputed_epsilon(events: dict[bytes, int], *, delta: float, relation: str) -> float:
    """Return epsilon of everything charged."""
    return figures_of(events, delta=delta, relation=relation).epsilon


# --------------------------------------------------------------------------------------------- what the plan says

ROUNDS = {"poisson": "steps", "full_batch": "steps", "shuffle": "epochs", "cyclic": "epochs"}
GAUSSIANS = ("gaussian", "elliptical_gaussian", "groupwise_gaussian", "adaptive_gaussian")
PLAIN_CLIPPINGS = ("threshold", "keep_or_drop", "automatic", "per_sample_adaptive", "scheduled")
RELATIONS = {
    "add_or_remove": ("adding or removing one {unit}", "add-or-remove one {unit}"),
    "replace_one": ("replacing one {unit} by any other", "replace one {unit}"),
    "zero_out": ("blanking one {unit} in place", "blank one {unit}"),
}
SEEN_BY = {
    "every_iterate": "everyone who sees the model after any or all of the training steps, checkpoints included",
    "last_iterate": "everyone who sees the final model, provided no earlier version of it was ever shown",
}
WHO = {
    "record": "someone with several records is protected less with every further record.",
    "person": "everything the data hold about one person counts as one.",
    "client": "everything one party of the federation holds counts as one.",
}
ITEM = {
    "record": "one record is one item of the data set, and reading an item (__getitem__) reads that record only",
    "person": "one person is one item of the data set, and reading an item (__getitem__) reads that person's only",
    "client": "one client is one party of the federation, whose update is computed from its own records only",
}
OWNED_ITEM = "one item of the data set is one record of one person, and reading an item reads that record only"
ASSUMED = {
    "record": (),
    "person": ("one item of the data set holds everything about one person, and nobody is in two items",),
    "client": (),
}
OWNED = ("every record names the one person it is about, and nobody has two names",)
OF_PERSONS = ("sampled_persons", "bounded_persons")
DRAWN = {
    "poisson": ("each step includes every record independently by a secret coin (Poisson sampling)",),
    "full_batch": (),
    "shuffle": ("each epoch uses every record at most once; shuffling itself is given no credit",),
    "cyclic": ("each epoch uses every record at most once, in batches fixed by the public order of the data",),
    "cyclic, secret": ("each epoch uses every record at most once, in batches dealt by a secret key",),
}
ALWAYS = (
    "sampled indices and noise are secret and drawn from generators seeded by the operating system",
    "noise is treated as an ideal real-valued Gaussian",
    "plan constants are public and were not chosen by looking at the private data",
    "learning rates, stopping and every other choice during the run were made without looking at private values",
    "weights were changed by the optimizer's own rule from noisy gradients, and else by named public changes only",
    "no program read examples in another thread, switched off torch's dispatch modes or replaced torch's operators",
)
KEYSTREAM = "an AES-256 counter-mode keystream keyed by the operating system, its radius of 52 random bits"
REACH = math.sqrt(2 * 52 * math.log(2))
FACTS = ("privet", "python", "packages", "system", "machine", "device")


def kind_of(plan: dict[str, Any], family: str, known: Any) -> str:
    """Return which piece a plan has; pieces that are not known here are nothing to guess at."""
    kind = plan[family]["kind"]
    if kind not in known:
        raise Undecided(f"this program does not know the {family} {kind!r} of the plan")
    return str(kind)


def positive(value: Any) -> float:
    """Return a number above zero."""
    found = number(value, 0.0, math.inf)
    if not 0 < found < math.inf:
        raise Wrong(f"{value!r} is out of range in the plan")
    return found


def round_event(plan: dict[str, Any]) -> dict[str, Any]:
    """Return what one round of a plan costs."""
    kind_of(plan, "noise", GAUSSIANS)
    multiplier = number(plan["noise"]["noise_multiplier"], 0.0, math.inf)
    clipping = kind_of(plan, "clipping", (*PLAIN_CLIPPINGS, "adaptive_quantile"))
    if clipping == "adaptive_quantile":
        # the count of a step is released beside its sum, and one record moves it by a half
        multiplier = (multiplier**-2 + (positive(plan["clipping"]["count_noise_std"]) / 0.5) ** -2) ** -0.5
    event = {"type": "gaussian", "noise_multiplier": multiplier}
    drawn, records = sampler_of(plan), 1
    if plan["sampling"]["kind"] == "bounded_persons":
        records = whole(plan["sampling"]["max_records"])
    kind, rate = drawn["kind"], number(drawn.get("rate", 1.0), 0.0, 1.0)
    if kind != "poisson" or rate == 1:
        return {"type": "gaussian", "noise_multiplier": multiplier / records}
    if records > 1:
        return {
            "type": "sampled_records",
            "sampling_probability": rate,
            "num_records": records,
            "noise_multiplier": multiplier,
        }
    return {"type": "poisson_sampled", "sampling_probability": rate, "event": event}


def sampler_of(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the sampler that draws the items of a plan, which a sampler of persons contains; its pieces must fit."""
    outer = kind_of(plan, "sampling", (*ROUNDS, *OF_PERSONS))
    if outer not in OF_PERSONS:
        return dict(plan["sampling"])
    inner = plan["sampling"]["sampling"]
    known = ("poisson", "full_batch") if outer == "bounded_persons" else ("poisson", "full_batch", "shuffle")
    kind_of({"sampling": inner}, "sampling", known)
    if whole(plan["sampling"]["max_records"]) < 1 or plan["unit"] != "person":
        raise Wrong("the plan samples records of persons, and its unit or number of records does not fit")
    if outer == "bounded_persons" and plan["adjacency"] == "replace_one" and inner.get("rate", 1.0) != 1:
        raise Wrong("several sampled records of one person have no bound if the person is exchanged")
    return dict(inner)


def drawn_words(plan: dict[str, Any]) -> tuple[str, ...]:
    """Return what is assumed about the sampling."""
    sampling = sampler_of(plan)
    words = DRAWN["cyclic, secret" if sampling.get("secret_partition", False) else sampling["kind"]]
    outer, most = plan["sampling"]["kind"], plan["sampling"].get("max_records")
    some = f"{most:,} record{'' if most == 1 else 's'}" if isinstance(most, int) else ""
    if outer == "sampled_persons":
        taken = f"each step takes at most {some} of a sampled person, chosen at random"
        return (
            *(each.replace("record", "person") for each in words),
            f"{taken}, and clips the mean of their gradients as one",
        )
    if outer == "bounded_persons":
        return (*words, f"at most {some} of each person take part, chosen by a secret key")
    return words


def alike(left: Any, right: Any) -> bool:
    """Whether two events are the same, up to the last digits of their numbers."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(alike(left[name], right[name]) for name in left)
    if isinstance(left, float | int) and isinstance(right, float | int):
        return math.isclose(left, right, rel_tol=1e-9)
    return bool(left == right)


class Story:
    """What plan and ledger tell together, before any figure is computed."""

    def __init__(self, account: Account) -> None:
        plan, self.account = account.plan, account
        self.plan = plan
        self.unit, self.relation = plan["unit"], plan["adjacency"]
        if self.unit not in WHO or self.relation not in RELATIONS:
            raise Wrong("the plan's unit or adjacency is none")
        self.delta = number(plan["delta"], 0.0, 1.0)
        if not 0 < self.delta < 1:
            raise Wrong(f"the plan's delta is {plan['delta']!r}, which is no probability to fail with")
        self.event = round_event(plan)
        drawn = sampler_of(plan)
        self.planned = whole(drawn[ROUNDS[drawn["kind"]]])
        is_planned = all(alike(json.loads(key), self.event) for key in account.planned)
        self.agrees = is_planned and account.rounds <= self.planned and not account.num_mismatches
        hides = plan.get("release", "every_iterate") == "last_iterate"
        if hides:
            check_proof(plan)
        self.is_finished = account.rounds >= self.planned and (account.is_complete or not hides)
        is_whole = len(account.planned) == 1 and is_planned and account.rounds == self.planned
        self.is_last = hides and is_whole and account.is_complete
        self.breaks_off = hides and not self.is_last
        self.released = "last_iterate" if self.is_last else "every_iterate"

    @property
    def standing(self) -> str:
        """What the certificate of a private run can stand for."""
        if not self.agrees:
            return "differs_from_plan"
        return "complete" if self.is_finished else "unfinished"

    @property
    def figures(self) -> Figures:
        """Epsilon and mu."""
        events = self.account.events
        if self.is_last:
            multiplier = self.event["noise_multiplier"] / last_iterate_ratio(self.plan)
            events = {canonical({"type": "gaussian", "noise_multiplier": multiplier}): 1}
            for release in self.account.besides:
                key = canonical(release["event"])
                events[key] = events.get(key, 0) + 1
        found = figures_of(events, delta=self.delta, relation=self.relation)
        if self.is_last:
            found.accountant = "hidden state"
        return found

    @property
    def assumptions(self) -> list[str]:
        """What the guarantee rests on."""
        of_plan = (*(descent_words(self.plan["descent"]) if self.is_last else ()), *drawn_words(self.plan), *ALWAYS)
        has_owners = self.plan["sampling"]["kind"] in OF_PERSONS
        item, of_unit = (OWNED_ITEM, OWNED) if has_owners else (ITEM[self.unit], ASSUMED[self.unit])
        besides = dict.fromkeys(PURPOSES[release["purpose"]] for release in self.account.besides)
        stated = (*self.account.assumptions, *self.account.changes, *besides, *self.account.vouched)
        return [*of_plan, item, *stated, *of_unit]


def check_proof(plan: dict[str, Any]) -> None:
    """Refuse a plan for the last iterate whose pieces the theorem does not cover."""
    descent, clipping = plan["descent"], plan["clipping"]
    rate, ridge = positive(descent["learning_rate"]), number(descent["ridge"], 0.0, 1e300)
    bound, smoothness = positive(descent["gradient_bound"]), positive(descent["smoothness"])
    holds = (
        plan["sampling"]["kind"] in ("cyclic", "full_batch")
        and plan["adjacency"] != "add_or_remove"
        and plan["noise"]["kind"] == "gaussian"
        and plan.get("mask", {"kind": "none"})["kind"] == "none"
        and plan.get("grouping", {"kind": "one_group"})["kind"] == "one_group"
        and clipping["kind"] == "threshold"
        and positive(clipping["norm"]) >= bound * (1 - 1e-9)
        and rate * (2 * ridge + smoothness) <= 2 * (1 + 1e-9)
    )
    if not holds:
        raise Wrong("the plan is for the last iterate, and its pieces are not those of the theorem")


def last_iterate_ratio(plan: dict[str, Any]) -> float:
    """Return what the last iterate costs over what one step costs: the taut string, for a record in the last batch.

    With weights ``W_t = c^(T - t)`` the squared cost is the sum of rise squared over run along the greatest convex
    minorant of the points ``(sum W_u^2, sum W_u s_u)``, where s is 1 at the steps that use the record.
    """
    sampling, descent = plan["sampling"], plan["descent"]
    batches = whole(sampling["batches"]) if sampling["kind"] == "cyclic" else 1
    total = batches * whole(sampling[ROUNDS[sampling["kind"]]])
    if not 0 < total <= 10**7:
        raise Undecided("the plan has more steps than this program follows")
    contraction = max(0.0, 1 - descent["learning_rate"] * descent["ridge"])
    # what happened earlier has been forgotten to 140 digits
    kept = total if contraction == 1 else min(total, 1 if contraction == 0 else int(-322 / math.log(contraction)) + 1)
    weights = contraction ** np.arange(kept - 1, -1, -1, dtype=float)
    used = (np.arange(total - kept + 1, total + 1) % batches) == 0
    at = np.concatenate([[0.0], np.cumsum(weights**2)])
    height = np.concatenate([[0.0], np.cumsum(weights * used)])
    hull: list[int] = []
    for place in range(len(at)):
        while len(hull) > 1 and (at[hull[-1]] - at[hull[-2]]) * (height[place] - height[hull[-2]]) <= (
            height[hull[-1]] - height[hull[-2]]
        ) * (at[place] - at[hull[-2]]):
            hull.pop()
        hull.append(place)
    return math.sqrt(math.fsum(np.diff(height[hull]) ** 2 / np.diff(at[hull])))


def descent_words(descent: dict[str, Any]) -> tuple[str, ...]:
    """Return what must hold for the last iterate to be covered."""
    return (
        (
            "only the model after the last step is ever shown: no earlier model, no average of models, no checkpoint, "
            "and nothing that was computed from them"
        ),
        "the number of steps, interruptions and the initial weights do not depend on the private data",
        (
            f"every record's loss is convex and {descent['smoothness']:.6g}-smooth with gradients of length at most "
            f"{descent['gradient_bound']:.6g}, and steps are plain gradient descent at rate "
            f"{descent['learning_rate']:.6g} with ridge {descent['ridge']:.6g}"
        ),
    )


# --------------------------------------------------------------------------------------- the end of the noise's tail


def beyond(distances: np.ndarray) -> np.ndarray:
    """Return the probability that a plane normal draw centred so far away lies further out than the reach."""
    nodes, weights = np.polynomial.legendre.leggauss(64)
    x = (REACH + np.arange(12.0)[:, None] + (1 + nodes) / 2).ravel()
    at = distances[:, None]
    return np.asarray((x * np.exp(-0.5 * (x - at) ** 2) * i0e(at * x)) @ np.tile(weights / 2, 12))


def lune(distance: Any) -> Any:
    """Bound the mass between two discs, per unit of their distance."""
    return REACH / math.pi * np.exp(-0.5 * np.maximum(0.0, REACH - distance) ** 2)


def tail_delta(steps: Steps, *, factor: float, epsilon: float, delta: float, coordinates: int) -> float:
    """Bound what delta grows by because drawn noise ends at the reach."""
    pairs = (coordinates + 1) // 2
    growth = math.expm1(-sum(steps.values()) * pairs * math.log1p(-math.exp(-0.5 * REACH * REACH)))
    lost = 0.0
    for (rate, multiplier, records), count in steps.items():
        for j, chance in enumerate(chances(rate, records)[1:], 1):
            shift = j * factor / multiplier
            from_afar = math.exp(min(epsilon, 700.0)) * float(lune(0.0)) * shift * math.sqrt(pairs)
            lost += count * chance * (lost_mass(shift, pairs) + from_afar)
    return min(1.0, growth * delta + (1 + growth) * lost)


def lost_mass(shift: float, pairs: int) -> float:
    """Bound the probability that one draw gives a neighbour away, however the distance is spread over pairs."""
    if shift >= REACH:
        return 1.0
    thresholds = np.geomspace(shift * 1e-4, shift, 400)
    ratios = beyond(thresholds)[1:] / thresholds[:-1] ** 2
    of_large = np.append(np.maximum.accumulate(ratios[::-1])[::-1], 0.0) * shift**2
    of_small = lune(thresholds) * shift * math.sqrt(pairs)
    return min(1.0, float((of_large + of_small).min()))


# --------------------------------------------------------------------------------------------- the files beside it


class Files:
    """What the files beside the ledger say; a file that a certificate names and that is not here is told."""

    def __init__(self, certificate: dict[str, Any], folder: Path, model: Path | None) -> None:
        self.missing: list[str] = []
        self.compared: list[str] = []
        plan = self._read(folder / "plan.json", is_named=certificate["plan"]["file_sha256"] is not None)
        self.plan_sha256 = certificate["plan"]["file_sha256"] if plan is None else hashlib.sha256(plan).hexdigest()
        weights = self._read(model or folder / "model.safetensors", is_named=certificate["model"] is not None)
        self.model = certificate["model"] if weights is None else model_entry(weights)
        stated = self._read(folder / "env.json", is_named=bool(certificate["versions"]))
        self.versions = certificate["versions"] if stated is None else versions_in(stated)
        self.devices = sorted({str(entry["device"]) for entry in self.versions if "device" in entry})
        self.drawn_on = sorted({str(entry.get("device", "unknown")) for entry in self.versions})

    def _read(self, path: Path, *, is_named: bool) -> bytes | None:
        if not path.exists() and not path.is_symlink():
            if is_named:
                self.missing.append(path.name)
            return None
        self.compared.append(path.name)
        return read_bytes(path)


def model_entry(data: bytes) -> dict[str, Any]:
    """Return the fingerprint of a file of weights, and how many numbers its header lists."""
    length = int.from_bytes(data[:8], "little")
    header = strict_json(data[8 : 8 + length], "the model's header")
    sizes = [math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__"]
    return {
        "file": "model.safetensors",
        "sha256": hashlib.sha256(data).hexdigest(),
        "num_coordinates": max(1, sum(sizes)),
    }


def versions_in(data: bytes) -> list[dict[str, Any]]:
    """Return what env.json says of the processes that worked on the run."""
    found = strict_json(data, "env.json").get("processes", [])
    entries = [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    return [{name: entry[name] for name in FACTS if name in entry} for entry in entries]


# ------------------------------------------------------------------------------------------ the certificate, made anew


def rounded_up(value: float, digits: int = 4) -> str:
    """Return a number with few significant digits, never below the value itself."""
    return f"{float(Context(prec=digits, rounding=ROUND_CEILING).plus(Decimal(repr(float(value))))):.{digits}g}"


def summary_of(promise: dict[str, Any]) -> str:
    """Return the guarantee in one line."""
    figures = f"(\u03b5={rounded_up(promise['epsilon'])}, \u03b4={rounded_up(promise['delta'])})-DP"
    change = RELATIONS[promise["adjacency"]][1].format(unit=promise["unit"])
    seen = promise["released"].replace("_", " ")
    mu = rounded_up(promise["mu"], 3)
    proven = f"tried, not proven: {'; '.join(promise['tried'])}" if promise["tried"] else "proven"
    return " \u00b7 ".join([f"{figures}, \u03bc\u2264{mu}", change, seen, promise["accountant"], proven])


def statement_of(promise: dict[str, Any]) -> str:
    """Return the guarantee in sentences."""
    epsilon, delta, unit = promise["epsilon"], promise["delta"], promise["unit"]
    odds = rounded_up(math.exp(epsilon)) if epsilon < 700 else f"e to the power of {rounded_up(epsilon)}"
    steep = math.inf if epsilon > 700 else math.exp(epsilon) * 0.01 + delta
    success = min(1.0, steep, 1 - math.exp(-epsilon) * (1 - delta - 0.01))
    success = min(success, float(ndtr(ndtri(0.01) + promise["mu"])) + delta)
    success = min(1.0, math.ceil(success * 1000) / 1000)
    return (
        f"What is promised is ({rounded_up(epsilon)}, {rounded_up(delta)})-differential privacy "
        f"with respect to {RELATIONS[promise['adjacency']][0].format(unit=unit)}, against "
        f"{SEEN_BY[promise['released']]}, even if they know all other data. "
        f"In words: apart from an exception of probability {rounded_up(delta)}, anything an observer may see "
        f"or conclude is at most {odds} times as likely as it would be had that one {unit} been changed in "
        f"this way, and the other way round. "
        f"An attacker who guesses whether the {unit} was used, and who accuses wrongly in at most "
        f"1% of cases, is right in at most {success:.1%} of the cases in which it was. "
        f"One {unit} is what is protected: {WHO[unit]} "
        f"The figures were computed with the {promise['accountant']} accountant."
    ) + "".join([*(f" It assumes that {each}." for each in promise["assumptions"]), evidence_of(promise)])


def evidence_of(promise: dict[str, Any]) -> str:
    """Return the sentence about what was tried and not proven, if anything was."""
    if not promise["tried"]:
        return ""
    return (
        " That examples of a batch were kept apart was tried by experiment and not proven, because of: "
        f"{'; '.join(promise['tried'])}."
    )


def noise_of(story: Story, files: Files, *, epsilon: float, claimed: Any) -> dict[str, Any]:
    """Return where the noise came from and what its end costs; a claimed cost that is right to 6 digits stands."""
    found: dict[str, Any] = {
        "generator": KEYSTREAM,
        "reach_in_standard_deviations": None,
        "tail_delta": None,
        "tail_delta_limit": story.delta * 1e-3,
        "is_within_limit": False,
        "unknown_because": None,
    }
    if not files.drawn_on:
        found["generator"] = "not recorded"
        found["unknown_because"] = "the run folder does not say on which device noise was drawn"
    elif files.drawn_on != ["cpu"]:
        on = ", ".join(files.drawn_on)
        found["generator"] = f"a generator on {on} seeded by the operating system, its tail in double precision"
        found["unknown_because"] = "the reach of a device's generator is not proven here"
    elif files.model is None:
        found["unknown_because"] = "there is no model file that says how many coordinates got noise"
    else:
        cost = tail_delta(
            steps_of(story.account.events),
            factor=2.0 if story.relation == "replace_one" else 1.0,
            epsilon=epsilon,
            delta=story.delta,
            coordinates=max(
                whole(files.model["num_coordinates"]), *(each["coordinates"] for each in story.account.besides), 1
            ),
        )
        is_right = isinstance(claimed, float) and math.isclose(claimed, cost, rel_tol=EXACT)
        found["tail_delta"] = claimed if is_right else cost
        found["reach_in_standard_deviations"] = REACH
        found["is_within_limit"] = found["tail_delta"] <= found["tail_delta_limit"]
    return found


def limits_of(story: Story, files: Files, noise: dict[str, Any]) -> list[str]:
    """Return what a certificate cannot support."""
    account, found = story.account, []
    if not story.agrees:
        found.append("What was charged is not what was planned, so the figures are the ledger's.")
    if not story.is_finished:
        found.append(
            f"The run is not finished: {account.rounds:,} of {story.planned:,} planned rounds are "
            "charged. The certificate covers every model up to now and none that comes later."
        )
    if story.breaks_off:
        found.append("The bound on the last model does not apply to this run, so that every iterate is charged.")
    if account.has_unfinished_row:
        found.append("The ledger ends in a row that was never completed. It was never acknowledged and does not count.")
    if files.model is None:
        found.append("There is no final model in the folder: the certificate is about the training, not about a file.")
    if noise["unknown_because"] is not None:
        found.append(f"What the end of the noise's tail costs is not known: {noise['unknown_because']}.")
    elif not noise["is_within_limit"]:
        found.append(
            f"The end of the noise's tail may cost up to {noise['tail_delta']:.2g} of delta, more than a thousandth "
            "of it."
        )
    found.append("One run is covered. Choosing among several runs on the same private data costs extra.")
    found.append(
        "Nothing here shows that the whole folder was not put back to an earlier state: compare the ledger's newest "
        "row with one that was kept elsewhere."
    )
    return found


def made_anew(certificate: dict[str, Any], story: Story, files: Files, figures: Figures) -> dict[str, Any]:
    """Return the certificate that this ledger and these files have; of the claims it takes epsilon and mu alone."""
    account, claim = story.account, certificate["guarantee"]
    promise = {
        "epsilon": claim["epsilon"],
        "delta": story.plan["delta"],
        "mu": claim["mu"],
        "adjacency": story.relation,
        "unit": story.unit,
        "released": story.released,
        "accountant": figures.accountant,
        "lower": claim["epsilon"] if figures.accountant == "exact Gaussian" else None,
        "cross_check": None,
        "witness": None,
        "assumptions": story.assumptions,
        "proven": True,
        "is_upper_bound": True,
        "not_private_because": [],
        "tried": account.tried,
    }
    noise = noise_of(story, files, epsilon=claim["epsilon"], claimed=certificate["noise"]["tail_delta"])
    return {
        "schema": "privet certificate",
        "schema_version": VERSION,
        "standing": story.standing,
        "summary": summary_of(promise),
        "guarantee": promise,
        "relation": RELATIONS[story.relation][0].format(unit=story.unit),
        "unit": story.unit,
        "statement": statement_of(promise),
        "assumptions": story.assumptions,
        "limits": limits_of(story, files, noise),
        "ledger": {
            "head": {"seq": len(account.heads) - 1, "sha256": account.heads[-1]},
            "rows": len(account.heads),
            "rounds_charged": account.rounds,
            "rounds_planned": story.planned,
            "rounds_given_up": account.num_voids,
            "rounds_run_otherwise": account.num_mismatches,
            "is_complete": account.is_complete,
            "agrees_with_plan": story.agrees,
            "events": [{"event": json.loads(key), "count": count} for key, count in account.events.items()],
        }
        | ({"besides_the_plan": account.besides} if account.besides else {}),
        "plan": {"hash": account.plan_hash, "file_sha256": files.plan_sha256, "values": account.plan},
        "model": files.model,
        "noise": noise,
        "devices": files.devices,
        "versions": files.versions,
    }


def check_digest(certificate: Any) -> None:
    """Check the certificate's own digest and version."""
    if not isinstance(certificate, dict) or certificate.get("schema") != "privet certificate":
        raise Wrong("this is not a certificate")
    version = certificate.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int) or version < VERSION:
        raise Wrong(f"a certificate of version {version!r} says what this program cannot check: certify again")
    if version > VERSION:
        raise Undecided(f"certificates of version {version!r} are not known here")
    values = {name: value for name, value in certificate.items() if name != "digest"}
    if hashlib.sha256(canonical(values)).hexdigest() != certificate.get("digest"):
        raise Wrong("the certificate was changed after it was written: its digest is another")


def check_head(certificate: dict[str, Any], account: Account) -> None:
    """Tell a ledger that was rolled back from one that has grown."""
    seq, head = whole(certificate["ledger"]["head"]["seq"]), certificate["ledger"]["head"]["sha256"]
    if not 0 <= seq < len(account.heads) or account.heads[seq] != head:
        raise Wrong("the ledger does not contain the certificate's head: it was rolled back, or is another run's")
    if len(account.heads) != seq + 1:
        raise Wrong("the ledger has grown since the certificate was written: certify the run again")
    if account.is_seeded:
        raise Wrong("the ledger says that the user chose the seed of the run: nothing is promised")
    if account.is_unexplained:
        raise Wrong("the ledger says that something that was no private step changed the weights: nothing is promised")


def check_figures(certificate: dict[str, Any], figures: Figures, delta: float) -> str:
    """Compare the claimed epsilon and mu with those found here."""
    promise = certificate["guarantee"]
    if math.isinf(figures.epsilon):
        raise Wrong("some release has no noise: nothing is promised")
    for name in ("epsilon", "mu"):
        if not isinstance(promise[name], float) or not 0 <= promise[name] < math.inf:
            raise Wrong(f"the claimed {name} is {promise[name]!r}, which is no finite number of zero or more")
    claim, found = promise["epsilon"], figures.epsilon
    if promise["accountant"] == "RDP" and figures.accountant == "PLD":
        raise Undecided("the claim was computed by Renyi divergences, which this program does not compute")
    if claim < found * (1 - TOLERANCE):
        raise Wrong(
            f"epsilon {claim:.6g} is claimed, but the ledger charges {found:.6g}: more than {100 * TOLERANCE:g} % above"
        )
    above, above_absolute = (EXACT, EXACT) if figures.is_exact else (ABOVE, ABOVE_ABSOLUTE)
    if claim > found * (1 + above) + above_absolute:
        raise Wrong(f"epsilon {claim:.6g} is claimed, and the ledger charges {found:.6g} only")
    slack = EXACT * (1 + figures.mu) if figures.is_exact else MU_TOLERANCE * figures.mu + MU_ABSOLUTE
    if abs(promise["mu"] - figures.mu) > slack:
        raise Wrong(f"mu {promise['mu']:.6g} is claimed, and the ledger gives {figures.mu:.6g}")
    allowed = f"a claim may be up to {100 * TOLERANCE:g} % below, for the steps of the two grids"
    return f"epsilon {claim:.6g} claimed, {found:.6g} recomputed from the ledger (delta {delta:g}); {allowed}"


def difference(stated: Any, found: Any, where: str) -> str | None:
    """Name the first place where two JSON values differ; numbers and truth values of different kinds do."""
    if isinstance(stated, dict) and isinstance(found, dict):
        for name in sorted({*stated, *found}):
            if name not in stated or name not in found:
                return f"{where}{name} " + ("is missing" if name in found else "is no entry of a certificate")
            if (inner := difference(stated[name], found[name], f"{where}{name}.")) is not None:
                return inner
        return None
    if isinstance(stated, list) and isinstance(found, list) and len(stated) == len(found):
        pairs = enumerate(zip(stated, found, strict=True))
        return next((text for i, pair in pairs if (text := difference(*pair, f"{where}{i}."))), None)
    if canonical(stated) == canonical(found):
        return None
    return f"{where.removesuffix('.')} is {str(stated)[:120]!r}, and the ledger and its files give {str(found)[:120]!r}"


def verify(certificate_path: Path, ledger_path: Path, model_path: Path | None) -> Iterator[str]:
    """Yield a line for everything that was found to hold; raise at the first that does not."""
    certificate = strict_json(read_bytes(certificate_path), certificate_path.name)
    try:
        check_digest(certificate)
        yield "the certificate is as it was written"
        account = Account.read(read_bytes(ledger_path))
        yield f"the ledger's chain of {len(account.heads):,} rows is unbroken"
        check_head(certificate, account)
        story, files = Story(account), Files(certificate, ledger_path.parent, model_path)
        figures = story.figures
        yield check_figures(certificate, figures, story.delta)
        stated = {name: value for name, value in certificate.items() if name != "digest"}
        differs = difference(stated, made_anew(certificate, story, files, figures), "")
        if differs is not None:
            raise Wrong(differs)
        yield "every other entry is what the ledger and its files give"
        for name in files.compared:
            yield f"{name} is the certified file"
        if files.missing:
            raise Undecided(f"files that are named and not here were not compared: {', '.join(files.missing)}")
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, ZeroDivisionError) as error:
        raise Wrong(f"the certificate or its ledger lacks an entry or has one of the wrong kind: {error}") from None


# ---------------------------------------------------------------------------------------------------------- signatures
# Ed25519 as in RFC 8032, section 5.1: verification alone. It is written out here so that this program needs no package
# for it. It handles no secret, so that the time it takes tells nothing.

FIELD = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
CURVE = -121665 * pow(121666, -1, FIELD) % FIELD
Point = tuple[int, int, int, int]


def add_points(p: Point, q: Point) -> Point:
    """Add two points of the curve, in extended coordinates."""
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % FIELD, (p[1] + p[0]) * (q[1] + q[0]) % FIELD
    c, d = 2 * p[3] * q[3] * CURVE % FIELD, 2 * p[2] * q[2] % FIELD
    e, f, g, h = b - a, d - c, d + c, b + a
    return (e * f % FIELD, g * h % FIELD, f * g % FIELD, e * h % FIELD)


def multiplied(scalar: int, point: Point) -> Point:
    """Add a point to itself so many times."""
    found: Point = (0, 1, 1, 0)
    while scalar:
        found = add_points(found, point) if scalar & 1 else found
        point, scalar = add_points(point, point), scalar >> 1
    return found


def point_of(data: bytes) -> Point:
    """Return the point that 32 bytes stand for; raise ValueError where there is none."""
    number_, sign = int.from_bytes(data, "little"), data[31] >> 7
    y = number_ & ((1 << 255) - 1)
    if len(data) != 32 or y >= FIELD:
        raise ValueError("no point")
    square = (y * y - 1) * pow(CURVE * y * y + 1, -1, FIELD) % FIELD
    x = pow(square, (FIELD + 3) // 8, FIELD)
    if (x * x - square) % FIELD:
        x = x * pow(2, (FIELD - 1) // 4, FIELD) % FIELD
    if (x * x - square) % FIELD or (x == 0 and sign):
        raise ValueError("no point")
    x = FIELD - x if x & 1 != sign else x
    return (x, y, 1, x * y % FIELD)


def is_signed(message: bytes, *, public_key: bytes, signature: bytes) -> bool:
    """Whether this is the Ed25519 signature of the message by the holder of the key."""
    if len(public_key) != 32 or len(signature) != 64:
        return False
    try:
        key, commitment = point_of(public_key), point_of(signature[:32])
    except ValueError:
        return False
    scalar = int.from_bytes(signature[32:], "little")
    if scalar >= ORDER:
        return False
    challenge = int.from_bytes(hashlib.sha512(signature[:32] + public_key + message).digest(), "little") % ORDER
    base = point_of(bytes([0x58]) + bytes([0x66]) * 31)
    left, right = multiplied(scalar, base), add_points(commitment, multiplied(challenge, key))
    return not ((left[0] * right[2] - right[0] * left[2]) % FIELD or (left[1] * right[2] - right[1] * left[2]) % FIELD)


def check_signature(certificate_path: Path, expected: str | None) -> Iterator[str]:
    """Check the signature beside a certificate, if there is one, and whose it is, if that was asked."""
    path = certificate_path.with_name("certificate.signature.json")
    if not path.exists():
        if expected is not None:
            raise Wrong("a signature was asked for, and there is none beside the certificate")
        return
    told = strict_json(read_bytes(path), path.name)
    if not isinstance(told, dict) or told.get("schema") != "privet signature" or told.get("algorithm") != "Ed25519":
        raise Wrong(f"{path.name} is no signature of a certificate")
    try:
        key, signature = bytes.fromhex(told["public_key"]), bytes.fromhex(told["signature"])
    except (KeyError, TypeError, ValueError):
        raise Wrong(f"{path.name} lacks a key or a signature in hex digits") from None
    if not is_signed(read_bytes(certificate_path), public_key=key, signature=signature):
        raise Wrong("the signature is not one of this certificate by the key that it names")
    if expected is not None and key.hex() != expected.strip().lower():
        raise Wrong(f"the certificate is signed by the key {key.hex()}, and another was asked for")
    whose = "as asked" if expected is not None else "compare it with one that you know: --public-key"
    yield f"signed with the Ed25519 key {key.hex()} ({whose})"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("certificate", type=Path, help="certificate.json, or a folder that holds it")
    parser.add_argument("--ledger", type=Path, help="the ledger; ledger.jsonl beside the certificate by default")
    parser.add_argument("--model", type=Path, help="the model's file; the named one beside the certificate by default")
    parser.add_argument("--public-key", help="the Ed25519 key, in hex digits, that must have signed the certificate")
    asked = parser.parse_args(arguments)
    path = asked.certificate / "certificate.json" if asked.certificate.is_dir() else asked.certificate
    try:
        for line in verify(path, asked.ledger or path.parent / "ledger.jsonl", asked.model):
            print(f"  holds: {line}")
        for line in check_signature(path, asked.public_key):
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
