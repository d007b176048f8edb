"""Runs: pending timers and timer ids as of a checkpoint."""
