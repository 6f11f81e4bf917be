"""Published tables and figures, each by one command: its studies, the published claims, and a verdict."""
