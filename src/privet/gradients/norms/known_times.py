"""Times of strategies that earlier processes measured on this machine, kept in the cache folder of the user.

Guarantee:
    The file holds no data and no verdict: digests of shapes, and what a strategy takes for each example. The number of
    examples is rounded to a power of two before it enters a digest, since the true size of a batch is private; times
    and bytes are of one example, in two digits. A file that is missing, damaged or of other versions is no error: all
    is measured again. Which strategy is used changes no result beyond rounding.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from privet.durable import cache_folder, write_durably
from privet.gradients.forms.per_example import PerExample
from privet.gradients.norms.budgets import Tried
from privet.gradients.norms.product_precision import convolutions_round, products_round
from privet.gradients.norms.strategies import Strategy

_log = logging.getLogger("privet")

_Row = tuple[str, float, float]
# So many shapes are kept; then the file begins anew.
_MOST = 4096


@dataclass(kw_only=True)
class KnownTimes:
    """What strategies took for shapes, in one file for each kind of device.

    Attributes:
        file: Where they are kept.
    """

    file: Path
    _rows: dict[str, list[_Row]] = field(default_factory=dict)
    _has_new: bool = False

    def __post_init__(self) -> None:
        """Read the file, if there is one that can be read."""
        with suppress(OSError, ValueError, TypeError, AttributeError):
            found = json.loads(self.file.read_text(encoding="utf-8"))
            self._rows = {str(key): [_checked(row) for row in rows] for key, rows in found.items()}

    @classmethod
    def of(cls, device: torch.device) -> KnownTimes | None:
        """Return those of a device; None for a processor, on which strategies are soon compared."""
        if device.type != "cuda":
            return None
        about = _digest([torch.cuda.get_device_name(device), *_versions()])
        return cls(file=cache_folder() / "strategies" / f"{about}.json")

    def tried(
        self, options: Sequence[Strategy], part: PerExample, *, counts_launches: bool, works: Callable[[Strategy], bool]
    ) -> list[Tried] | None:
        """Return what the options took in an earlier process; None unless all of them are known.

        ``works`` is asked about the fastest, which is about to be used.
        """
        rows = self._rows.get(_key(options, part, counts_launches))
        if rows is None or [name for name, _, _ in rows] != [repr(option) for option in options]:
            return None
        size = len(part)
        found = [
            Tried(
                strategy=option,
                seconds=seconds * size,
                kept_bytes=kept * size,
                failure=None if math.isfinite(seconds) else "it failed in an earlier process",
            )
            for option, (_, seconds, kept) in zip(options, rows, strict=True)
        ]
        best = min(found, key=lambda each: each.seconds)
        return found if math.isfinite(best.seconds) and works(best.strategy) else None

    def note(self, tried: Sequence[Tried], part: PerExample, *, counts_launches: bool) -> None:
        """Remember what was measured."""
        size = len(part)
        rows = [
            (repr(each.strategy), float(f"{each.seconds / size:.1e}"), float(f"{each.kept_bytes / size:.1e}"))
            for each in tried
        ]
        if len(self._rows) >= _MOST:
            self._rows.clear()
        self._rows[_key([each.strategy for each in tried], part, counts_launches)] = rows
        self._has_new = True

    def save(self) -> None:
        """Write the file if there is something new; a folder that cannot be written is no error."""
        if not self._has_new:
            return
        self._has_new = False
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_durably(self.file, json.dumps(self._rows).encode())
        except OSError as error:
            _log.debug("The times of strategies were not kept: %s.", error)


def _checked(row: Sequence[object]) -> _Row:
    name, seconds, kept = row
    if not isinstance(name, str) or not isinstance(seconds, float) or not isinstance(kept, float) or seconds < 0:
        raise ValueError(f"not a measurement: {row!r}")
    return name, seconds, kept


def _key(options: Sequence[Strategy], part: PerExample, counts_launches: bool) -> str:
    rounded = 1 << round(math.log2(max(1, len(part))))
    precision = (products_round(), convolutions_round())
    about = [type(part).__name__, part.shape_key, rounded, *map(repr, options), counts_launches, *precision]
    return _digest(about)


def _digest(values: Sequence[object]) -> str:
    return blake2b("\n".join(map(str, values)).encode(), digest_size=12).hexdigest()


@lru_cache(maxsize=1)
def _versions() -> tuple[str, ...]:
    """Return the versions of all that the speed of a strategy depends on."""
    found = [str(torch.__version__)]
    for name in ("triton", "privet"):
        try:
            found.append(version(name))
        except PackageNotFoundError:
            found.append("")
    return tuple(found)
