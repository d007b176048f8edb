"""Compatibility with other systems: one package for each foreign protocol."""
