"""A user's own tables and images: declarations and readers."""
