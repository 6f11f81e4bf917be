"""Measures per-example norms: strategies, the planner that chooses among them, and their kernels."""
