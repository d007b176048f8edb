"""The log as files: the segments and their readers."""
