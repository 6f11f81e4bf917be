"""Former name of ``privet.runs``; will be removed in 0.3."""
