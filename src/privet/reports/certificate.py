"""A run's certificate: the charges, the guarantee that follows, and everything that a third party needs to check it.

It is a function of the ledger, the plan and the fingerprints of files. It holds no measured value of the model and
nothing computed from training data. ``scripts/verify_certificate.py`` computes the whole certificate again, so an entry
that is added here must be added there, and texts must be equal.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from privet.accounting.guarantee import Guarantee
from privet.accounting.ledger import Ledger, LedgerHead, LedgerView
from privet.accounting.ledger.rows import canonical
from privet.accounting.tail_truncation import KEYSTREAM_RADIUS_BITS, TAIL_SHARE, reach_of_bits, tail_delta
from privet.errors import AccountingError, CheckpointError
from privet.mechanism.events import encode_event
from privet.reports.run_fingerprints import ModelFile, fingerprint_of
from privet.runs.ledger_check import LedgerCheck, check_ledger
from privet.runs.run_files import RunFiles, read_json
from privet.vocabulary import Release

SCHEMA = "privet certificate"
SCHEMA_VERSION = 2
DIGEST = "digest"

_FACTS = ("privet", "python", "packages", "system", "machine", "device")


class Standing(Enum):
    """The standing of a certificate."""

    COMPLETE = "complete"
    UNFINISHED = "unfinished"
    DIFFERS_FROM_PLAN = "differs_from_plan"
    NOT_PRIVATE = "not_private"


@dataclass(frozen=True, kw_only=True)
class NoiseTail:
    """The noise generator, and the cost in delta of the bounded range of its draws.

    Attributes:
        generator: Description of the generator.
        reach: Largest draw of a pair of coordinates in standard deviations; None if unknown.
        delta: Bound on the increase of delta; None if it could not be computed.
        limit: A thousandth of delta.
        unknown_because: Why there is no bound, or None if there is one.
    """

    generator: str
    reach: float | None
    delta: float | None
    limit: float
    unknown_because: str | None

    @property
    def is_within_limit(self) -> bool:
        """Whether the truncated tail costs at most a thousandth of delta."""
        return self.delta is not None and self.delta <= self.limit

    def to_dict(self) -> dict[str, Any]:
        return {
            "generator": self.generator,
            "reach_in_standard_deviations": self.reach,
            "tail_delta": self.delta,
            "tail_delta_limit": self.limit,
            "is_within_limit": self.is_within_limit,
            "unknown_because": self.unknown_because,
        }


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The content of a certificate.

    Attributes:
        check: The ledger, compared with its plan.
        head: The ledger's newest row.
        is_complete: Whether a row of the ledger records the completion of the plan.
        events: All charges, as (JSON form of the event, rounds).
        noise: The generator and its tail.
        model: Fingerprint of the final weights, if the file exists.
        plan_file_sha256: Fingerprint of the plan's file, if it exists.
        versions: One entry per process of the run.
        limits: Limits of the certificate, in sentences.
    """

    check: LedgerCheck
    head: LedgerHead
    is_complete: bool
    events: tuple[tuple[Mapping[str, Any], int], ...]
    noise: NoiseTail
    model: ModelFile | None
    plan_file_sha256: str | None
    versions: tuple[Mapping[str, Any], ...]
    limits: tuple[str, ...]

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of all charges."""
        return self.check.spent

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices of the run: ``cpu``, or names of accelerators; empty where they were not recorded."""
        return tuple(sorted({str(entry["device"]) for entry in self.versions if "device" in entry}))

    @property
    def standing(self) -> Standing:
        """The worst standing that applies."""
        spent = self.guarantee
        if spent.not_private_because or not spent.is_upper_bound or math.isinf(spent.epsilon):
            return Standing.NOT_PRIVATE
        if self.check.mismatch is not None:
            return Standing.DIFFERS_FROM_PLAN
        return Standing.COMPLETE if self.check.is_finished else Standing.UNFINISHED

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, with the digest of all the others.

        The cross-checks of the library are left out: a verifier of the file computes its own.
        """
        stated = replace(self.guarantee, witness=None, cross_check=None)
        values = {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "standing": self.standing.value,
            "summary": str(stated),
            "guarantee": stated.to_dict(),
            "relation": stated.adjacency.words(stated.unit),
            "unit": stated.unit.value,
            "statement": stated.statement(),
            "assumptions": list(stated.assumptions),
            "limits": list(self.limits),
            "ledger": self._ledger(),
            "plan": {
                "hash": self.check.plan_hash,
                "file_sha256": self.plan_file_sha256,
                "values": self.check.plan.to_dict(),
            },
            "model": None if self.model is None else self.model.to_dict(),
            "noise": self.noise.to_dict(),
            "devices": list(self.devices),
            "versions": [dict(entry) for entry in self.versions],
        }
        return values | {DIGEST: hashlib.sha256(canonical(values)).hexdigest()}

    def _ledger(self) -> dict[str, Any]:
        check = self.check
        found: dict[str, Any] = {
            "head": {"seq": self.head.seq, "sha256": self.head.sha256},
            "rows": check.num_rows,
            "rounds_charged": check.rounds_charged,
            "rounds_planned": check.rounds_planned,
            "rounds_given_up": check.num_voids,
            "rounds_run_otherwise": check.num_mismatches,
            "is_complete": self.is_complete,
            "agrees_with_plan": check.mismatch is None,
            "events": [{"event": dict(event), "count": count} for event, count in self.events],
        }
        if check.further:
            found["besides_the_plan"] = [release.body() for release in check.further]
        return found


def certify(folder: str | Path) -> Certificate:
    """Return the certificate of a run folder.

    Guarantee: the figures come from the charged rows of a ledger whose chain was checked row by row, and which holds
    the row that the newest checkpoint names.
    Edge cases: a run that is not finished, differs from its plan, was seeded or has no model gets a certificate that
    says so; a broken chain, a rolled-back ledger or a folder without a ledger is an error.

    Raises:
        LedgerError: there is no ledger, its chain is broken, or it was rolled back.
        CheckpointError: the folder is not a run's, or a file in it is damaged.
    """
    files = RunFiles(folder=Path(folder))
    if not files.folder.is_dir() or not files.is_run:
        raise CheckpointError(
            f"{folder} is not a run's folder. Name the folder given to: privet train -o, or to privatize(folder=...)."
        )
    view = Ledger.read(files.ledger)
    check = check_ledger(files.folder)
    if check.head != view.head.sha256:
        raise CheckpointError(f"The ledger of {folder} grew while it was read: the run is active. Certify it later.")
    versions = _versions(files)
    model = fingerprint_of(files.model)
    noise = _noise_tail(check, view, versions, model)
    return Certificate(
        check=check,
        head=view.head,
        is_complete=view.is_complete,
        events=tuple((encode_event(event), count) for event, count in view.charged),
        noise=noise,
        model=model,
        plan_file_sha256=_sha256(files.plan),
        versions=versions,
        limits=_limits(check, view, model, noise),
    )


def _versions(files: RunFiles) -> tuple[Mapping[str, Any], ...]:
    if not files.environment.exists():
        return ()
    found = read_json(files.environment).get("processes", [])
    entries = [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, list) else []
    return tuple({name: entry[name] for name in _FACTS if name in entry} for entry in entries)


def _noise_tail(
    check: LedgerCheck, view: LedgerView, versions: tuple[Mapping[str, Any], ...], model: ModelFile | None
) -> NoiseTail:
    limit = check.plan.delta * TAIL_SHARE
    devices = sorted({str(entry.get("device", "unknown")) for entry in versions})

    def unknown(generator: str, reason: str) -> NoiseTail:
        return NoiseTail(generator=generator, reach=None, delta=None, limit=limit, unknown_because=reason)

    if not devices:
        return unknown("not recorded", "the run folder does not say on which device noise was drawn")
    if devices != ["cpu"]:
        return unknown(
            f"a generator on {', '.join(devices)} seeded by the operating system, its tail in double precision",
            "the reach of a device's generator is not proven here",
        )
    generator = "an AES-256 counter-mode keystream keyed by the operating system, its radius of 52 random bits"
    if model is None:
        return unknown(generator, "there is no model file that says how many coordinates got noise")
    reach = reach_of_bits(KEYSTREAM_RADIUS_BITS)
    try:
        found = tail_delta(
            view.event,
            adjacency=check.spent.adjacency,
            epsilon=check.spent.epsilon,
            delta=check.spent.delta,
            reach=reach,
            num_coordinates=max(model.num_coordinates, *(release.coordinates for release in view.further), 1),
        )
    except AccountingError as error:
        return unknown(generator, str(error))
    return NoiseTail(generator=generator, reach=reach, delta=found, limit=limit, unknown_because=None)


def _limits(check: LedgerCheck, view: LedgerView, model: ModelFile | None, noise: NoiseTail) -> tuple[str, ...]:
    spent, found = check.spent, []
    if spent.not_private_because:
        found.append(f"Nothing is promised: {'; '.join(spent.not_private_because)}.")
    if check.mismatch is not None:
        found.append("What was charged is not what was planned, so the figures are the ledger's.")
    if not check.is_finished:
        found.append(
            f"The run is not finished: {check.rounds_charged:,} of {check.rounds_planned:,} planned rounds are "
            "charged. The certificate covers every model up to now and none that comes later."
        )
    if check.plan.release is Release.LAST_ITERATE and spent.released is Release.EVERY_ITERATE:
        found.append("The bound on the last model does not apply to this run, so that every iterate is charged.")
    if view.has_unfinished_row:
        found.append("The ledger ends in a row that was never completed. It was never acknowledged and does not count.")
    if model is None:
        found.append("There is no final model in the folder: the certificate is about the training, not about a file.")
    if noise.unknown_because is not None:
        reason = noise.unknown_because.rstrip(".")
        # The error's sentence follows a colon here; words such as RDP keep their capitals.
        reason = reason if reason[1:2].isupper() else reason[:1].lower() + reason[1:]
        found.append(f"What the end of the noise's tail costs is not known: {reason}.")
    elif not noise.is_within_limit:
        found.append(
            f"The end of the noise's tail may cost up to {noise.delta:.2g} of delta, more than a thousandth of it."
        )
    found.append("One run is covered. Choosing among several runs on the same private data costs extra.")
    found.append(
        "Nothing here shows that the whole folder was not put back to an earlier state: compare the ledger's newest "
        "row with one that was kept elsewhere."
    )
    return tuple(found)


def _sha256(path: Path) -> str | None:
    if path.is_symlink() or not path.is_file():
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()
