"""The studies behind privet's methods, and the published tables and figures that they repeat."""
