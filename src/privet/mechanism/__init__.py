"""The pieces of a private step: sampling, clipping, masks and noise, as frozen dataclasses. Never imports torch."""

from privet._lazy import lazily

__getattr__, __dir__ = lazily(__name__)
