"""A user's own tables and images: what their owner declares about them, and how their files are read."""
