"""The files of a search over settings, and the check of its ledger. Needs no torch.

The folder of a search::

    tuning.json     what was asked for, and the recipe of a trial with its calibrated noise
    search.jsonl    the ledger of the search: its charges, each durable before a trial reads data
    secret.json     the number of trials and the key of their settings; not to be shown
    trials/         the runs; not to be shown, except where every trial is charged
    chosen/         the best model, its recipe, its guarantee and its statement, which include the search
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dp_accounting.dp_event import RepeatAndSelectDpEvent

from privet.accounting.guarantee import SEEDED, Guarantee
from privet.accounting.ledger.rollback import read_newest
from privet.mechanism.events import same_event
from privet.plan import Plan
from privet.runs.run_files import RunFiles

_LEDGER = "search.jsonl"


@dataclass(frozen=True, kw_only=True)
class SearchFiles:
    """The files of a search."""

    folder: Path

    @property
    def asked(self) -> Path:
        return self.folder / "tuning.json"

    @property
    def ledger(self) -> Path:
        return self.folder / _LEDGER

    @property
    def secret(self) -> Path:
        return self.folder / "secret.json"

    @property
    def trials(self) -> Path:
        return self.folder / "trials"

    @property
    def chosen(self) -> Path:
        return self.folder / "chosen"

    def trial(self, number: int) -> Path:
        return self.trials / f"{number:04d}"

    def begun(self) -> list[int]:
        """Return the numbers of all trials that were begun."""
        return sorted(int(path.name) for path in self.trials.iterdir()) if self.trials.exists() else []

    def score(self, number: int) -> Path:
        """Return the file that a finished trial has."""
        return self.trial(number) / "trial.json"

    def broken_off(self) -> list[int]:
        """Return the numbers of the trials that charged a step and have no result."""
        return [
            number
            for number in self.begun()
            if not self.score(number).exists() and RunFiles(folder=self.trial(number)).ledger.exists()
        ]


@dataclass(frozen=True, kw_only=True)
class SearchCheck:
    """The result of reading the ledger of a search whose chain is intact.

    Attributes:
        spent: The guarantee of all charges: that of the chosen model.
        num_searches: Charges for a random number of trials together; one, or none where every trial is charged.
        num_trials: Charges for one trial in full.
        num_rows: Rows in the chain.
        head: SHA-256 of the newest row.
        mismatch: Why the charges do not agree with the trials, or None if they do.
    """

    spent: Guarantee
    num_searches: int
    num_trials: int
    num_rows: int
    head: str
    mismatch: str | None


def search_at(path: Path) -> SearchFiles | None:
    """Return the search whose folder or ledger this is; None if it is something else."""
    files = SearchFiles(folder=path.parent if path.name == _LEDGER else path)
    return files if files.asked.is_file() and files.ledger.is_file() else None


def check_search(files: SearchFiles) -> SearchCheck:
    """Read the ledger of a search, and compare its charges with the trials in its folder.

    Raises:
        LedgerError: its chain is broken, or it was rolled back.
    """
    view = read_newest(files.ledger, where=files.folder)
    plan = Plan.from_dict(view.plan, where="ledger")
    one_run = plan.event
    together = sum(
        count
        for event, count in view.charged
        if isinstance(event, RepeatAndSelectDpEvent) and same_event(event.event, one_run)
    )
    single = sum(count for event, count in view.charged if same_event(event, one_run))
    owed = len(files.broken_off() if together else files.begun())
    mismatch = None
    if not plan.matches_hash(view.plan_hash) or together + single != sum(count for _, count in view.charged):
        mismatch = "The ledger charges something else than a search, or trials, of the plan in its first row."
    elif owed > single:
        mismatch = f"{owed} trials are to be charged in full, and {single} are. Take the search up again."
    return SearchCheck(
        spent=plan.account_event(
            view.event, assumptions=view.assumptions, not_private_because=(SEEDED,) if view.is_seeded else ()
        ),
        num_searches=together,
        num_trials=single,
        num_rows=view.num_rows,
        head=view.head.sha256,
        mismatch=mismatch,
    )
