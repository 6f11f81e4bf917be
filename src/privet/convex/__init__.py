"""Convex learning with differential privacy: noisy cyclic descent and noisy sufficient statistics."""

from privet._lazy import lazily

__getattr__, __dir__ = lazily(__name__)
