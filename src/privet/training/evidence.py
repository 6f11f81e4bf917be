"""The evidence of a run: the experiments that stand in the place of a proof are written into its ledger."""

from __future__ import annotations

from privet.accounting.ledger import Ledger
from privet.isolation.watch import Evidence, Watch
from privet.mechanism.noise import Noise
from privet.mechanism.sums import ClippedSum
from privet.training.loop_events import Observer
from privet.training.preflight.preflight import Preflight


class EvidenceRecorder(Observer):
    """Writes into the ledger what was tried instead of proven, before gradients of such a program are used."""

    def __init__(self, *, ledger: Ledger, watch: Watch, preflight: Preflight) -> None:
        """Read from the watch and the pre-flight, write to the ledger."""
        self._ledger, self._watch, self._preflight = ledger, watch, preflight
        self._noted: Evidence | None = None

    def before_noise(self, clipped: ClippedSum, noise: Noise) -> None:
        if self._preflight.failures:
            self._preflight.check_held()
        found = self._watch.evidence
        if found is not self._noted:
            self._ledger.note_evidence(tried=found.tried, settled=found.settled, vouched=found.waived)
            self._noted = found
