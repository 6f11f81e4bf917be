"""Federated learning: parties that keep their records, a coordinator that keeps the model, and a ledger for each."""
