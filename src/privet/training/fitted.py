"""What estimators and their searches have in common once they are fitted: a guarantee."""

from __future__ import annotations

from dataclasses import dataclass, field

from privet.accounting.guarantee import Guarantee
from privet.errors import LoopError


@dataclass
class Fitted:
    """An object with ``fit(...)``, which leaves the guarantee of what it releases."""

    # Not set by the constructor: scikit-learn wants estimators to have nothing but their parameters at first.
    _guarantee: Guarantee | None = field(default=None, init=False, repr=False)

    @property
    def guarantee_(self) -> Guarantee:
        """The guarantee of what was released; an error before ``fit``."""
        if self._guarantee is None:
            raise self._not_fitted()
        return self._guarantee

    def _not_fitted(self) -> Exception:
        """Return the error of an object that was not fitted."""
        return LoopError(f"This {type(self).__name__} has not been trained. Call fit(...) first.")
