"""Private training inside the trainers of other libraries. Nothing of them is imported before it is used."""

from privet._lazy import lazily

__getattr__, __dir__ = lazily(__name__)
