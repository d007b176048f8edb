"""Requests, records and frames for tests."""
