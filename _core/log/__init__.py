"""The CommitLog: its frames, its growing tail, and the part of it that is in memory."""
