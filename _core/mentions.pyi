"""Nothing of it is for Python."""
