"""The verbs ``privet study`` and ``privet reproduce``."""
