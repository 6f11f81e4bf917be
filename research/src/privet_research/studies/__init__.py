"""Published comparisons, repeated with the controls they lack: one command each."""
