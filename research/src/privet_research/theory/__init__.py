"""Formulas of the publications as functions, with what is needed to check them by numbers."""
