"""Clients for tests, and the suites of real ones."""
