"""Gradient engines: from per-example losses to one clipped sum."""
