"""One private run in several processes: their messages, and how they stay equal."""
