"""All mutants."""

from __future__ import annotations

from tests.mutants.accounting import ACCOUNTING
from tests.mutants.clipping import CLIPPING
from tests.mutants.contracts import CONTRACTS
from tests.mutants.formats import FORMATS
from tests.mutants.holding import HOLDING
from tests.mutants.isolation import ISOLATION
from tests.mutants.launch import LAUNCH
from tests.mutants.ledger import LEDGER
from tests.mutants.mutant import Mutant
from tests.mutants.noise import NOISE
from tests.mutants.records import RECORDS
from tests.mutants.sampling import SAMPLING
from tests.mutants.weights import WEIGHTS

MUTANTS: tuple[Mutant, ...] = (
    *NOISE,
    *CLIPPING,
    *HOLDING,
    *LAUNCH,
    *SAMPLING,
    *LEDGER,
    *FORMATS,
    *ACCOUNTING,
    *RECORDS,
    *CONTRACTS,
    *ISOLATION,
    *WEIGHTS,
)
