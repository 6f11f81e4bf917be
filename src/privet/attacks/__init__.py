"""Attacks on trained models, to be held against what their guarantee allows."""
