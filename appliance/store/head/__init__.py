"""The head of the log: what frees its first segments. Layer 2."""
