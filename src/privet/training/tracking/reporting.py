"""The observer that tells a receiver of public values about each step of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privet.training.loop_events import Observer
from privet.training.tracking.progress import Progress
from privet.training.tracking.spending import Spending

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from privet.mechanism.noise import Noise
    from privet.mechanism.sums import ClippedSum
    from privet.plan import Plan


class Reporter(Observer):
    """Tells one receiver the public facts of each step.

    Guarantee:
        A receiver gets the step's number, the learning rate, the masked share and epsilon: values that are known before
        any data is read, or released and accounted. It gets no loss, no batch size and no leave to show times.
    """

    def __init__(self, receiver: Progress, *, plan: Plan, optimizer: Optimizer) -> None:
        """Prepare for one run of a plan."""
        self._receiver, self._plan, self._optimizer = receiver, plan, optimizer
        self._spending = Spending(plan)
        self._masked_share = 0.0

    def run_begins(self, charged_rounds: int) -> None:
        done = charged_rounds * self._plan.sampling.steps_per_round
        self._receiver.started(self._plan.guarantee(), step=done, num_steps=self._plan.num_steps)

    def before_noise(self, clipped: ClippedSum, noise: Noise) -> None:
        self._masked_share = 0.0 if clipped.kept is None else clipped.kept.masked_share

    def after_update(self, step: int, num_examples: int) -> None:
        self._receiver.stepped(
            self._spending.update(
                step + 1,
                learning_rate=float(self._optimizer.param_groups[0]["lr"]),
                masked_share=self._masked_share,
            )
        )

    def run_ends(self, error: BaseException | None) -> None:
        self._receiver.ended()
