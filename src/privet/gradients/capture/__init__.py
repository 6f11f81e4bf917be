"""Watches a forward pass: every use of a parameter, and the gradient that flows back to it."""
