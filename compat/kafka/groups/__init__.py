"""Consumer groups of the classic protocol: who is in which group, and who consumes what."""
