"""The exceptions of privet.

All are subclasses of ``ValueError``. Each message names the request, the finding and the remedy; no message contains a
value computed from private data.
"""

from __future__ import annotations


class PrivetError(ValueError):
    """Base class of all exceptions of this library."""


class ArgumentError(PrivetError):
    """An argument is outside its valid range."""


class PlanError(PrivetError):
    """The pieces of a plan do not fit together, or the plan is incomplete."""


class AccountingError(PrivetError):
    """No accountant can bound the event."""


class TruncationError(AccountingError):
    """Batches overflow so often that no epsilon exists at the requested delta."""


class CalibrationError(AccountingError):
    """No noise in the search range reaches the requested guarantee."""


class BudgetExceeded(PrivetError):
    """The next step, or the whole plan, would exceed the privacy budget."""


class LedgerError(PrivetError):
    """The ledger cannot be read or written, or is not trustworthy."""


class LedgerCorrupt(LedgerError):
    """The hash chain of a ledger is broken: rows were edited, reordered, removed or damaged."""


class LedgerBusy(LedgerError):
    """Another process holds the ledger."""


class LedgerWriteError(LedgerError):
    """A row could not be written durably (full disk, read-only file system). Nothing was charged; no step may run."""


class LedgerMismatch(LedgerError):
    """The executed run differs from the plan or from the charge."""


class UnsupportedModel(PrivetError):
    """A layer mixes examples, or a parameter has no exact per-example gradient."""


class NoExampleRule(UnsupportedModel):
    """No rule forms the per-example gradients of a parameter; one backward pass for each example does."""


class LossError(PrivetError):
    """The loss of a private step is not one number per example."""


class LoopError(PrivetError):
    """The training loop violated the order of a private step."""


class WeightsChanged(LoopError):
    """Trained weights changed outside a private step, so there is no guarantee."""


class RankError(PrivetError):
    """Another rank of a run in several processes died, hangs or failed. All ranks stop."""


class RanksDisagree(RankError, LedgerMismatch):
    """The ranks of a run hold different plans, models, data or steps. None of them releases anything."""


class CheckpointError(PrivetError):
    """A checkpoint cannot be read, or does not belong to this run."""


class DataError(PrivetError):
    """A data file or data set does not match its declaration."""


class RecipeError(PrivetError):
    """A recipe file cannot be read, or asks for something that does not exist."""


class DependencyError(PrivetError):
    """A required optional dependency is not installed."""
