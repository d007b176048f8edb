"""Deciding what is due, and when to look again. Sans-IO."""
