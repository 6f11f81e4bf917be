"""Every error privet raises on purpose.

All are ``ValueError`` subclasses, so ``except ValueError`` keeps working in user code. Each message says what was
asked, what was found and what to do; messages never contain a value computed from private data.
"""

from __future__ import annotations


class PrivetError(ValueError):
    """Base of every deliberate error of this library."""


class ArgumentError(PrivetError):
    """An argument is outside the range in which its meaning (and the guarantee) is defined."""


class PlanError(PrivetError):
    """The pieces of a plan do not fit together, or the plan is not complete enough for what was asked."""


class AccountingError(PrivetError):
    """No accountant can bound the asked event honestly."""


class TruncationError(AccountingError):
    """Batches overflow too often for any epsilon at the asked delta."""


class CalibrationError(AccountingError):
    """No noise in the search range reaches the asked guarantee."""


class BudgetExceeded(PrivetError):
    """The next step, or the plan as a whole, would spend more privacy than was allowed."""


class LedgerError(PrivetError):
    """The ledger cannot be read, written or trusted."""


class LedgerCorrupt(LedgerError):
    """The hash chain of a ledger is broken: rows were edited, reordered, removed or damaged."""


class LedgerBusy(LedgerError):
    """Another process holds the ledger."""


class LedgerWriteError(LedgerError):
    """A row could not be made durable (full disk, read-only file system): nothing was charged and nothing may run."""


class LedgerMismatch(LedgerError):
    """What ran is not what was planned and charged."""


class UnsupportedModel(PrivetError):
    """A layer mixes examples, or a parameter cannot be given an exact per-example gradient."""


class LossError(PrivetError):
    """The loss handed to a private step is not one number per example."""


class LoopError(PrivetError):
    """The training loop broke the order of a private step."""


class WeightsChanged(LoopError):
    """Something that was no private step changed what is trained, so that no guarantee can be given."""


class CheckpointError(PrivetError):
    """A checkpoint cannot be read, or does not belong to this run."""


class DataError(PrivetError):
    """A data file or data set is not what its declaration says."""


class RecipeError(PrivetError):
    """A recipe file cannot be read, or asks for something that does not exist."""


class DependencyError(PrivetError):
    """An optional dependency is needed and not installed."""
