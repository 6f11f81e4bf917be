"""The table of a recipe that asks for a private evaluation after the training, as plain values."""

from __future__ import annotations

from privet.runs.recipes.training_settings import Positive, Table


class EvaluationSettings(Table):
    """A private evaluation on the test part of the data, which is then private as well.

    Attributes:
        epsilon: What the evaluation may cost by itself, at the delta of the plan; the total of the run includes it.
        groups: Columns of categories whose groups are compared; none if not given.
        loss_clip: The largest log loss of a record that counts; a public number; 5 if not given.
        importance: Whether the importance of every column of a table is measured too; no if not given.
    """

    epsilon: Positive
    groups: list[str] | None = None
    loss_clip: Positive | None = None
    importance: bool | None = None
