"""The source distribution and the wheel: what is in them, and whether they serve a message."""
