"""Turns each recorded use of a parameter into per-example gradients, operation by operation."""
