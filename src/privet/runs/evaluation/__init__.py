"""Evaluation of a run's model on test data, after training. The run's guarantee does not cover these figures."""
