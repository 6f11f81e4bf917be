"""The private training loop, its guards, its checkpoints and its estimators."""

from privet._lazy import lazily

__getattr__, __dir__ = lazily(__name__)
