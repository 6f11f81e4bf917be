"""What a private step costs: events in, guarantees out, and the ledger that proves it. Never imports torch."""
