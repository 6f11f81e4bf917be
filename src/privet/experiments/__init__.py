"""Former name of ``privet.runs``; goes in 0.3."""
