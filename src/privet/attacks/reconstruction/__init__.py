"""Reconstruction attacks: rebuild images from gradients, and measure their similarity to the originals."""
