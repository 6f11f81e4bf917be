"""Data sets: readers of the official files, and public facts.

Names are resolved on first use, so ``describe`` does not import torch.
"""

from privet._lazy import lazily

__getattr__, __dir__ = lazily(__name__)
