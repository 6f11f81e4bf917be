"""Convex learning with differential privacy: noisy cyclic descent and noisy sufficient statistics."""
