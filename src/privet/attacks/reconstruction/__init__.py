"""Reconstruction: rebuild pictures from gradients, and measure how like the originals they are."""
