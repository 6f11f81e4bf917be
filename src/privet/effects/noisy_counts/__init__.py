"""Figures of a model from one noisy vector of counts and sums over private records."""
