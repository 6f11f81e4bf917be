"""Per-example gradients of one parameter, kept in factored forms."""
