"""The private training loop, its guards, its checkpoints and its estimators."""
