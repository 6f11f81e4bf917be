"""The guard of a run: between two private updates nothing may change the model and its optimizer."""
