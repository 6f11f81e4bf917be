"""Effects of private training on a model: convergence, confidence, fairness and robustness."""

from privet._lazy import lazily

__getattr__, __dir__ = lazily(__name__)
