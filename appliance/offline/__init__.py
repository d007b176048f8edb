"""Tools for a data directory that no broker works on: check it, show what is in it, rebuild it."""
