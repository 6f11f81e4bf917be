"""Composed curves that are kept: a run, its log, its report and its certificate ask for the same ones many times."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import Lock

from privet.accounting.curves import LossCurves


@dataclass(frozen=True, kw_only=True, eq=False)
class KeptCurves:
    """The curves used last, by everything that they were composed from.

    Attributes:
        most_points: Number of grid points, over all curves, that are kept; a point takes 24 bytes.

    Guarantee: a curve is returned for an equal key only, and no array of it can be written to, so nobody who was given
    a curve can change the figures of another.
    Edge cases: a curve with more points than all that may be kept is composed anew each time; if ``compose`` raises,
    nothing is kept.
    """

    most_points: int
    _curves: OrderedDict[Hashable, LossCurves] = field(default_factory=OrderedDict, init=False, repr=False)
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)

    def get(self, key: Hashable, compose: Callable[[], LossCurves]) -> LossCurves:
        """Return the curve of this key, composed now unless it was kept."""
        with self._lock:
            found = self._curves.get(key)
            if found is not None:
                self._curves.move_to_end(key)
                return found
        made = compose()
        for direction in made.directions:
            for array in (direction.deltas, direction.above, direction.weighted):
                array.setflags(write=False)
        with self._lock:
            self._curves[key] = made
            while self.num_points > self.most_points:
                self._curves.popitem(last=False)
        return made

    @property
    def num_points(self) -> int:
        """Number of grid points of all curves that are kept."""
        return sum(len(direction.deltas) for curve in self._curves.values() for direction in curve.directions)
