"""How per-example norms and clipped sums are computed."""
