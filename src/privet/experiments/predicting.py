"""Former place of predictions of a run's model, now in ``privet.runs``; will be removed in 0.3."""

from __future__ import annotations

from privet._lazy import moved

__getattr__ = moved(
    __name__,
    {
        "model_of": "privet.runs.model_of",
        "predict_new": "privet.runs.predict_new",
    },
)
