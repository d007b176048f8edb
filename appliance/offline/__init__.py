"""Offline tools for a data directory: check it, dump its content, rebuild derived files."""
