"""Compiled access to parts of `_core` that have no Python API; not part of what is shipped."""
