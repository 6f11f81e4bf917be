"""A run's model as a folder that serves without privet."""
