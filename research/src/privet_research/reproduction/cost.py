"""What the runs behind an entry took, in minutes of each device, as far as files of rows tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NO_NAME = "a device that is not recorded"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Minutes of running.

    Attributes:
        minutes: By device.
        untold: Studies whose files do not tell what they took.
        is_whole: Whether all rows of the other files tell; if not, the minutes are a lower bound.
    """

    minutes: Mapping[str, float]
    untold: Sequence[str]
    is_whole: bool = True

    @property
    def shown(self) -> str:
        """The cost as text."""
        least = "" if self.is_whole else "at least "
        told = [f"{least}{value:,.1f} min {device}" for device, value in self.minutes.items()]
        if self.untold:
            told.append(f"{', '.join(self.untold)}: not recorded")
        return "; ".join(told) or "not recorded"


def total_cost(kept: Sequence[Mapping[str, Any]]) -> Cost:
    """Return what the given files of rows took together.

    A file tells by its ``cost`` (seconds by device), by ``seconds`` with an ``environment``, or by the ``seconds`` of
    its rows, which are a lower bound where some rows have none.
    """
    minutes: dict[str, float] = {}
    untold = []
    is_whole = True
    for values in kept:
        found, of_all = _seconds(values)
        is_whole = is_whole and of_all
        if not found:
            untold.append(str(values["study"]))
            continue
        for device, seconds in found.items():
            minutes[device] = minutes.get(device, 0.0) + seconds / 60
    return Cost(minutes=minutes, untold=list(dict.fromkeys(untold)), is_whole=is_whole)


def _seconds(values: Mapping[str, Any]) -> tuple[Mapping[str, float], bool]:
    """Return seconds by device, and whether they are of all rows; nothing, and True, where no row tells."""
    if values.get("cost"):
        return dict(values["cost"]), True
    if "seconds" in values:
        return {str(values.get("environment", {}).get("device", _NO_NAME)): float(values["seconds"])}, True
    told = [row for row in values["rows"] if row.get("seconds") is not None]
    found: dict[str, float] = {}
    for row in told:
        device = str(row.get("device", _NO_NAME))
        found[device] = found.get(device, 0.0) + float(row["seconds"])
    return found, not told or len(told) == len(values["rows"])
