"""Benchmarks: how fast the broker is beside what the client and the machine allow (README.md)."""
