"""One private run in several processes: what they tell each other, and how they stay equal."""
