"""How the programs of a step are launched: one operation after the other, or replayed as recordings."""
