"""The state derived from the log, in memory and in checkpoints."""
