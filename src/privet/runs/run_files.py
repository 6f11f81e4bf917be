"""The files of a run folder: written atomically, checked on reading."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from privet.accounting.ledger.rows import no_constant, unique_keys
from privet.durable import write_durably
from privet.errors import CheckpointError, PrivetError

MAX_TEXT_BYTES = 64_000_000
_Result = TypeVar("_Result")


class _File:
    """A named entry of a run folder; as an attribute of :class:`RunFiles`, its path."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, files: RunFiles, owner: type[RunFiles]) -> Path:
        return files.folder / self._name


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """The named files of one run folder. A copy of the folder is a copy of the whole run.

    Edge cases: links and anything but regular files are refused on reading, so that a foreign folder cannot
    lead outside of itself.
    """

    folder: Path

    # Written by every run.
    recipe = _File("recipe.toml")  # with all overrides applied
    plan = _File("plan.json")  # the calibrated plan and its guarantee
    ledger = _File("ledger.jsonl")
    checkpoint = _File("checkpoint.safetensors")  # the newest one
    model = _File("model.safetensors")  # the final weights
    steps = _File("steps.jsonl")  # public values of every step
    environment = _File("env.json")  # versions and device of every process of the run
    status = _File("status.json")  # the state in which the newest process left the run
    # Written for public data, or on request.
    metrics = _File("metrics.json")  # measures on test data
    unprotected = _File("unprotected.jsonl")  # values of training batches outside the guarantee
    tensorboard = _File("tensorboard")  # a folder
    # Written by evaluations and audits.
    calibration = _File("calibration.json")
    membership = _File("membership.json")
    fairness = _File("fairness.json")
    robustness = _File("robustness.json")
    long_tail = _File("long_tail.png")  # public test pictures of lowest and highest loss
    evaluation = _File("evaluation.json")  # figures of private records, released with noise and charged
    importance = _File("importance.json")  # of columns, on public records
    reconstruction = _File("reconstruction.json")
    reconstruction_pictures = _File("reconstruction.png")
    audit = _File("audit.json")

    @property
    def is_run(self) -> bool:
        """Whether a run was started here."""
        return self.recipe.exists() or self.ledger.exists()

    @property
    def is_own_loop(self) -> bool:
        """Whether the run is a training loop of the user's own: it has a ledger and no recipe."""
        return self.ledger.exists() and not self.recipe.exists() and not self.plan.exists()

    def prepare(self) -> None:
        """Create the folder for a new run.

        Raises:
            CheckpointError: it cannot be created, or it holds something that is not a run.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            others = [entry.name for entry in self.folder.iterdir() if not entry.name.endswith(".new")]
        except OSError as error:
            raise CheckpointError(f"The run folder {self.folder} cannot be used: {error.strerror}.") from None
        if others and not self.is_run:
            raise CheckpointError(
                f"{self.folder} holds files that are not a run's ({min(others)!r}). Name a new or an empty folder."
            )


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file's contents atomically and durably.

    Raises:
        CheckpointError: the disk refuses; the previous contents are untouched.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        write_durably(path, data)
    except OSError as error:
        raise CheckpointError(
            f"Could not write {path}: {error.strerror}. Its previous contents are intact, and the ledger holds all "
            "charges. Free space or fix the folder's permissions, then run the same command again to resume."
        ) from error


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write plain values as JSON, atomically."""
    write_whole(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def read_text(path: Path) -> str:
    """Read a text file of a run folder.

    Raises:
        CheckpointError: it is missing, a link, not a regular file, too large, or not UTF-8.
    """
    try:
        if path.is_symlink() or not path.is_file():
            what = "a link" if path.is_symlink() else "missing" if not path.exists() else "not a regular file"
            raise CheckpointError(f"{path} is {what}. A run folder holds the files that privet train wrote.")
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise CheckpointError(f"{path} is larger than {MAX_TEXT_BYTES:,} bytes, which privet never writes.")
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise CheckpointError(f"{path} is not UTF-8 text: it is damaged. Restore it from a copy.") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of a run folder; refuses duplicate keys, NaN and anything but an object."""
    try:
        data = json.loads(read_text(path), object_pairs_hook=unique_keys, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is not the JSON that privet wrote: {error}. Restore it from a copy.") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} must hold one JSON object, got {type(data).__name__}.")
    return data


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file of lines; an unfinished last line is left out."""
    for line in read_text(path).split("\n")[:-1]:
        try:
            row = json.loads(line, parse_constant=no_constant)
        except (ValueError, RecursionError):
            raise CheckpointError(f"{path} holds a line that is not JSON. Restore it from a copy.") from None
        if isinstance(row, dict):
            yield row


def read_result(path: Path, parse: Callable[[dict[str, Any]], _Result]) -> _Result | None:
    """Read a file of results in a run's folder; None where it does not exist.

    Raises:
        CheckpointError: the file is damaged.
    """
    if not path.exists():
        return None
    try:
        return parse(read_json(path))
    except PrivetError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def listed(rows: object) -> list[Any]:
    """Return stored rows as a list; any other value as a list of one, which the parser of a row then refuses."""
    return rows if isinstance(rows, list) else [rows]
