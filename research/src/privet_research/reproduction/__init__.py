"""Published tables and figures, each by one command: what to run, what the publication says, and a verdict."""
