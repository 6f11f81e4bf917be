"""Networks of the published experiments: plain modules, default initialisation, no interaction between examples.

Names are resolved on first use, so the sizes of named networks do not import torch.
"""

from privet._lazy import lazily

__getattr__, __dir__ = lazily(__name__)
