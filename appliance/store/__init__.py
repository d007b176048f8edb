"""The data directory: the CommitLog, which is the truth, and the files that follow from it."""
