"""All mutants."""

from __future__ import annotations

from tests.mutants.accounting import ACCOUNTING
from tests.mutants.clipping import CLIPPING
from tests.mutants.holding import HOLDING
from tests.mutants.ledger import LEDGER
from tests.mutants.mutant import Mutant
from tests.mutants.noise import NOISE
from tests.mutants.sampling import SAMPLING

MUTANTS: tuple[Mutant, ...] = (*NOISE, *CLIPPING, *HOLDING, *SAMPLING, *LEDGER, *ACCOUNTING)
