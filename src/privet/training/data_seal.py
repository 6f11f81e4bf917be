"""Whether a resumed run trains on the data it began with, told by a salted digest that never leaves this machine.

A digest of private data is private: whoever knows all records but one could try candidates for the last. So it is not
part of the run folder, which is made to be shown, but of a folder of the user's own, beside a random salt; a run folder
that is copied elsewhere carries nothing of it. The ledger's rows stay free of anything computed from data.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from privet.durable import STATE_VARIABLE, state_folder, write_durably
from privet.errors import DataError
from privet.training.augmentation import Views
from privet.training.persons import PersonRecords
from privet.training.reading import Digested, HeldInMemory
from privet.training.units import OneItemPerPerson

_LOG = logging.getLogger("privet")
_MAX_BYTES = 4096
# Numbers digested at once: data on a device come over piece by piece.
_CHUNK = 1 << 24


@dataclass(frozen=True, kw_only=True)
class DataSeal:
    """The seal of one run's data.

    Attributes:
        path: Where it is kept, under a name that follows from the ledger's first row.
    """

    path: Path

    @classmethod
    def of_run(cls, ledger: Path) -> DataSeal:
        """Return the seal of the run that a ledger file belongs to."""
        with open(ledger, "rb") as file:
            name = hashlib.sha256(file.readline()).hexdigest()[:32]
        return cls(path=state_folder() / "seals" / f"{name}.json")

    def check(self, dataset: object) -> None:
        """Compare the data with those of the run's first process; seal them if there was none.

        Guarantee: neither the data nor their digest reach a log, a message or the run folder.
        Edge cases: data sets that do not hold their items in memory cannot be compared, nor can runs that began on
        another machine; a state folder that cannot be written is told on the log, and the run goes on.

        Raises:
            DataError: the data are not those the run began with.
        """
        parts = _tensors_held(dataset)
        if parts is None:
            _LOG.info("The data set reads its items from elsewhere, so a resumed run cannot be compared with this one.")
            return
        stored = self._read()
        if stored is None:
            self._write(parts)
            return
        salt, digest = stored
        if not hmac.compare_digest(_digest(parts, salt), digest):
            raise DataError(
                "The data are not those this run began with, and a guarantee speaks of one data set. Resume with the "
                "same data, or start a new run in its own folder and add up both guarantees."
            )

    def _read(self) -> tuple[bytes, bytes] | None:
        try:
            with open(self.path, "rb") as file:
                found = json.loads(file.read(_MAX_BYTES))
            return bytes.fromhex(found["salt"]), bytes.fromhex(found["digest"])
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError):
            raise DataError(
                f"The seal {self.path} of this run's data is damaged. If you are certain that the data are the same, "
                "delete it; a new one is made."
            ) from None

    def _write(self, parts: list[Tensor]) -> None:
        salt = secrets.token_bytes(32)
        content = json.dumps({"digest": _digest(parts, salt).hex(), "salt": salt.hex()})
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_durably(self.path, content.encode())
        except OSError as error:
            _LOG.warning(
                "The data could not be sealed (%s), so a resumed run will not notice other data. Name a folder that "
                "can be written: %s.", error.strerror, STATE_VARIABLE,
            )  # fmt: skip


def data_digest(dataset: object, salt: bytes) -> str | None:
    """Return the digest under which ranks of one run compare their data; None if they are not held in memory."""
    parts = _tensors_held(dataset)
    return None if parts is None else _digest(parts, salt).hex()


def _digest(parts: list[Tensor], salt: bytes) -> bytes:
    digest = hashlib.blake2b(key=salt, digest_size=32)
    for tensor in parts:
        digest.update(f"{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        flat = tensor.detach().reshape(-1)
        for start in range(0, len(flat), _CHUNK):
            digest.update(flat[start : start + _CHUNK].cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.digest()


def _tensors_held(dataset: Any) -> list[Tensor] | None:
    """Return the tensors that a data set's items are taken from, or stand for; None if it does not hold them."""
    if isinstance(dataset, HeldInMemory):
        return list(dataset.held_tensors())
    if isinstance(dataset, Digested):
        return [torch.tensor(list(dataset.records_digest()), dtype=torch.uint8)]
    if isinstance(dataset, Views | OneItemPerPerson):
        return _tensors_held(dataset.dataset)
    if isinstance(dataset, PersonRecords):
        inner = _tensors_held(dataset.dataset)
        return None if inner is None else [*inner, torch.from_numpy(dataset.owners.of_record)]
    if type(dataset) is TensorDataset:
        return list(dataset.tensors)
    if type(dataset) is Subset:
        inner = _tensors_held(dataset.dataset)
        return None if inner is None else [*inner, torch.as_tensor(list(dataset.indices))]
    if type(dataset) in (list, tuple):
        found = [_tensors_of_item(item) for item in dataset]
        return None if any(item is None for item in found) else [part for item in found for part in item or ()]
    return None


def _tensors_of_item(item: Any) -> list[Tensor] | None:
    parts = item if isinstance(item, tuple | list) else (item,)
    if not all(isinstance(part, Tensor | np.ndarray | np.generic | int | float) for part in parts):
        return None
    return [torch.as_tensor(part) for part in parts]
