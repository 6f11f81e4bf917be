"""Estimators in the shape of scikit-learn, and an accounted search for their settings."""

from __future__ import annotations

from privet.training.classifier import PrivateClassifier, PrivateRegressor
from privet.training.estimator import Repeats
from privet.training.estimator_data import ClassesOfLabels
from privet.training.private_search import PrivateSearch

__all__ = ["ClassesOfLabels", "PrivateClassifier", "PrivateRegressor", "PrivateSearch", "Repeats"]
