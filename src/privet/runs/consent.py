"""Consent to run a Python file that a recipe names: given on this machine, for this file as it is.

A recipe or a run folder may come from somebody else, and a Python file that is imported can do all that its user can.
So a file is run only if the user of this machine has named it on a command line: ``privet train ... --model
file.py:function`` or ``privet allow file.py:function``. Consent is for one path, one function and one content, and that
of the files beside it that it imports. It is kept in the user's state folder and never in a recipe or a run folder.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from privet.durable import STATE_VARIABLE, state_folder, write_durably
from privet.errors import RecipeError
from privet.runs.beside import imported_beside

_MAX_BYTES = 4_000_000


@dataclass(frozen=True, kw_only=True)
class Code:
    """A Python file as it was read, and the function in it that is called.

    Attributes:
        path: The file, with links resolved.
        function: The function.
        text: What the file holds; exactly this is run.
        beside: The files in its folder that it imports, by their relative paths; of these, exactly this is run.
    """

    path: Path
    function: str
    text: bytes
    beside: Mapping[str, bytes]

    @classmethod
    def read(cls, reference: str) -> Code:
        """Read ``file.py:function``; nothing is run.

        Raises:
            RecipeError: the reference has another form, or there is no such file.
        """
        place, _, function = reference.rpartition(":")
        if not place.endswith(".py") or not function.isidentifier():
            raise RecipeError(f"{reference!r} does not name a function in a Python file, as in path/to/file.py:build.")
        path = Path(os.path.realpath(place)) if "\0" not in place else Path()
        if not path.is_file():
            raise RecipeError(f"There is no file {place}. Name a Python file and a function: path/to/file.py:build.")
        try:
            with open(path, "rb") as file:
                text = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise RecipeError(f"{place} cannot be read: {error.strerror}.") from None
        if len(text) > _MAX_BYTES:
            raise RecipeError(f"{place} is larger than {_MAX_BYTES:,} bytes, which no program written by hand is.")
        return cls(path=path, function=function, text=text, beside=imported_beside(path, text))

    @property
    def sha256(self) -> str:
        """Fingerprint of the file, and of the files beside it that it imports, if there are any."""
        own = hashlib.sha256(self.text).hexdigest()
        if not self.beside:
            return own
        listed = {place: hashlib.sha256(text).hexdigest() for place, text in self.beside.items()}
        return hashlib.sha256(json.dumps([own, listed], sort_keys=True).encode()).hexdigest()

    @property
    def is_allowed(self) -> bool:
        """Whether the user of this machine has agreed to run it."""
        return self._is_recorded()

    def _is_recorded(self) -> bool:
        try:
            with open(self._record, "rb") as file:
                return file.read(len(self._consent) + 1) == self._consent
        except (OSError, ValueError):
            return False

    def allow(self) -> None:
        """Record that the user has named this function on a command line.

        Raises:
            RecipeError: the state folder cannot be written.
        """
        if self._is_recorded():
            return
        try:
            self._record.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_durably(self._record, self._consent)
        except OSError as error:
            if self._is_recorded():  # another process of the same command was faster
                return
            raise RecipeError(
                f"The consent to run {self.path} cannot be kept in {self._record.parent}: {error.strerror}. Name a "
                f"folder that can be written: {STATE_VARIABLE}."
            ) from None

    def refuse_strangers(self) -> None:
        """Refuse code that the user of this machine has not named.

        Raises:
            RecipeError: there is no consent for this file as it is.
        """
        if not self.is_allowed:
            raise RecipeError(
                f"The recipe names code, {self.path}:{self.function}, and nobody on this machine has agreed to run it "
                "as it is, with the files beside it that it imports. It was not run. Read them; if you trust them: "
                f"privet allow {self.path}:{self.function}"
            )

    @property
    def _consent(self) -> bytes:
        told = {"file": str(self.path), "function": self.function, "sha256": self.sha256}
        return json.dumps(told, sort_keys=True).encode()

    @property
    def _record(self) -> Path:
        return state_folder() / "allowed" / f"{hashlib.sha256(self._consent).hexdigest()[:32]}.json"
