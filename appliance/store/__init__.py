"""The data directory: the CommitLog, the only source of truth, and files derived from it."""
