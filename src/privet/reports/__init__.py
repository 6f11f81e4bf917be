"""Reports on a run."""
