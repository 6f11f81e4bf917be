"""Reports on a run."""

from privet._lazy import lazily

__getattr__, __dir__ = lazily(__name__)
