"""Attacks on trained models and on gradients, compared with the limits that a guarantee sets."""

from privet._lazy import lazily

__getattr__, __dir__ = lazily(__name__)
