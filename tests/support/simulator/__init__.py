"""A disk and a clock that a test controls."""
