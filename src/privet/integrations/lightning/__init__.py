"""Private modules of Lightning."""
