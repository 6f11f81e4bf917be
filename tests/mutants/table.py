"""All mutants."""

from __future__ import annotations

from tests.mutants.accounting import ACCOUNTING
from tests.mutants.allocation import ALLOCATION
from tests.mutants.clipping import CLIPPING
from tests.mutants.contracts import CONTRACTS
from tests.mutants.correlated import CORRELATED
from tests.mutants.derived import DERIVED
from tests.mutants.distributed import DISTRIBUTED
from tests.mutants.evaluation import EVALUATION
from tests.mutants.formats import FORMATS
from tests.mutants.holding import HOLDING
from tests.mutants.isolation import ISOLATION
from tests.mutants.launch import LAUNCH
from tests.mutants.ledger import LEDGER
from tests.mutants.mutant import Mutant
from tests.mutants.networks import NETWORKS
from tests.mutants.noise import NOISE
from tests.mutants.persons import PERSONS
from tests.mutants.records import RECORDS
from tests.mutants.sampling import SAMPLING
from tests.mutants.tuning import TUNING
from tests.mutants.unseen import UNSEEN
from tests.mutants.weights import WEIGHTS

MUTANTS: tuple[Mutant, ...] = (
    *NOISE,
    *CORRELATED,
    *CLIPPING,
    *HOLDING,
    *DERIVED,
    *LAUNCH,
    *SAMPLING,
    *PERSONS,
    *LEDGER,
    *FORMATS,
    *ACCOUNTING,
    *ALLOCATION,
    *RECORDS,
    *NETWORKS,
    *CONTRACTS,
    *ISOLATION,
    *UNSEEN,
    *TUNING,
    *EVALUATION,
    *WEIGHTS,
    *DISTRIBUTED,
)
