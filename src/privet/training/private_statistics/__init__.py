"""Statistics of private data that are released before training, each for a charged round."""
