"""A progress bar in a terminal or a notebook, by tqdm."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from privet.accounting.guarantee import Guarantee, rounded_up
from privet.errors import DependencyError
from privet.training.tracking.progress import StepUpdate

if TYPE_CHECKING:
    from privet.runs.measures import CurvePoint


class Bar:
    """Shows steps and epsilon as a bar of ``tqdm.auto``: a widget in a notebook, a line in a terminal.

    Guarantee:
        The bar shows no durations: they depend on the private sizes of batches, and a notebook is saved with its bars.
    """

    _FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt}{postfix}"

    def __init__(self) -> None:
        """Check that tqdm is installed; the bar appears when the run starts."""
        if find_spec("tqdm") is None:
            raise DependencyError("A progress bar needs tqdm. Install it with: pip install 'privet[notebook]'.")
        self._bar: Any = None

    def started(self, promised: Guarantee, *, step: int, num_steps: int) -> None:
        from tqdm.auto import tqdm

        self._bar = tqdm(total=num_steps, initial=step, desc="private steps", bar_format=self._FORMAT)

    def stepped(self, update: StepUpdate) -> None:
        spent, planned = rounded_up(update.epsilon, 3), rounded_up(update.epsilon_planned, 3)
        self._bar.set_postfix_str(f"epsilon <= {spent} of {planned}", refresh=False)
        self._bar.update(update.step - self._bar.n)

    def evaluated(self, point: CurvePoint) -> None:
        """Show nothing: measures are in the report."""

    def ended(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
