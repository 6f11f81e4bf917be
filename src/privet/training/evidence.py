"""The evidence of a run: the experiments that stand in the place of a proof are written into its ledger."""

from __future__ import annotations

from privet.accounting.ledger import Ledger
from privet.isolation.watch import Evidence, Watch
from privet.training.loop_events import Observer
from privet.training.preflight.preflight import Preflight


class EvidenceRecorder(Observer):
    """Writes into the ledger which programs were tried and not proven, before gradients of such a program are used."""

    def __init__(self, *, ledger: Ledger, watch: Watch, preflight: Preflight) -> None:
        """Read from the watch and the pre-flight, write to the ledger."""
        self._ledger, self._watch, self._preflight = ledger, watch, preflight

    def evidence_changed(self) -> None:
        if self._preflight.failures:
            self._preflight.check_held()
        found = self._watch.evidence
        self._ledger.note_evidence(tried=found.tried, settled=found.settled, vouched=found.waived)

    def found(self) -> Evidence:
        """Refuse a program whose experiments failed; return the evidence for the others."""
        if self._preflight.failures:
            self._preflight.check_held()
        return self._watch.evidence

    def write(self, found: Evidence) -> None:
        """Write evidence into the ledger."""
        self._ledger.note_evidence(tried=found.tried, settled=found.settled, vouched=found.waived)
