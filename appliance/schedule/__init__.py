"""Decides when to deliver timers. Sans-IO."""
